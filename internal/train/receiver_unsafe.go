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

// Peek returns the first trains that wait in the socket, most at most, and leaves them there. Each
// is valid until the next one. Others may receive from the socket at the same time, and then trains
// may be missing. Peek never waits.
func (r *Receiver) Peek(most int) iter.Seq2[*unix.SockaddrInet4, iter.Seq[[]byte]] {
	return func(yield func(*unix.SockaddrInet4, iter.Seq[[]byte]) bool) {
		// Linux counts how far it was peeked (socket(7)), and shows the train behind that.
		if unix.SetsockoptInt(r.socket, unix.SOL_SOCKET, unix.SO_PEEK_OFF, 0) != nil {
			return
		}
		defer unix.SetsockoptInt(r.socket, unix.SOL_SOCKET, unix.SO_PEEK_OFF, -1)
		for range most {
			datagrams, from, err := r.Receive(unix.MSG_DONTWAIT | unix.MSG_PEEK)
			if err != nil || !yield(from, datagrams) {
				return
			}
		}
	}
}
