package train

import (
	"iter"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Receiver receives trains from a socket, without memory for each call. It is not safe for
// concurrent use.
type Receiver struct {
	socket  int
	buffer  [Longest]byte
	control [24]byte // CMSG_SPACE of an int
	name    unix.RawSockaddrInet4
	vector  unix.Iovec
	header  unix.Msghdr
	from    unix.SockaddrInet4
}

// NewReceiver returns a receiver. The socket stays the caller's. Where Linux does not receive
// trains, each datagram comes alone.
func NewReceiver(socket int) *Receiver {
	_ = unix.SetsockoptInt(socket, unix.SOL_UDP, unix.UDP_GRO, 1)
	r := &Receiver{socket: socket}
	r.vector.Base, r.header.Iov = &r.buffer[0], &r.vector
	r.vector.SetLen(len(r.buffer))
	r.header.SetIovlen(1)
	r.header.Name, r.header.Control = (*byte)(unsafe.Pointer(&r.name)), &r.control[0]
	return r
}

// Receive waits for the next train, unless flags say otherwise (recvmsg(2)), and returns its
// datagrams and where they come from, valid until the next call.
func (r *Receiver) Receive(flags int) (datagrams iter.Seq[[]byte], from *unix.SockaddrInet4, err error) {
	r.name = unix.RawSockaddrInet4{}
	r.header.Namelen = uint32(unsafe.Sizeof(r.name))
	r.header.SetControllen(len(r.control))
	n, _, errno := unix.Syscall(unix.SYS_RECVMSG, uintptr(r.socket), uintptr(unsafe.Pointer(&r.header)), uintptr(flags))
	if errno != 0 {
		return nil, nil, errno
	}
	port := (*[2]byte)(unsafe.Pointer(&r.name.Port)) // big-endian
	r.from = unix.SockaddrInet4{Addr: r.name.Addr, Port: int(port[0])<<8 | int(port[1])}
	return Split(r.buffer[:n], r.control[:r.header.Controllen]), &r.from, nil
}
