package margay

import (
	"encoding/binary"
	"iter"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/internal/train"
)

// address is a socket address as Linux has it, which is comparable.
type address unix.RawSockaddrInet4

// setPort sets the port, which is big-endian.
func (a *address) setPort(port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&a.Port))[:], port)
}

// send sends a datagram, for nil to where the socket is connected. One that Linux does not take is
// lost, like any other.
func send(socket int, b []byte, to *address) syscall.Errno {
	var length uintptr
	if to != nil {
		length = unsafe.Sizeof(*to)
	}
	_, _, err := syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(socket), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, uintptr(unsafe.Pointer(to)), length)
	return err
}

// inbox receives trains from a socket, without memory for each.
type inbox struct {
	socket  int
	from    address
	buffer  [train.Longest]byte
	control [24]byte // CMSG_SPACE of an int
	vector  unix.Iovec
	header  unix.Msghdr
}

func newInbox(socket int) *inbox {
	in := &inbox{socket: socket}
	in.vector.Base, in.header.Iov = &in.buffer[0], &in.vector
	in.vector.SetLen(len(in.buffer))
	in.header.SetIovlen(1)
	in.header.Name, in.header.Control = (*byte)(unsafe.Pointer(&in.from)), &in.control[0]
	return in
}

// receive takes a train, if there is one, and returns its datagrams, which are valid until the next
// call, and where they come from.
func (in *inbox) receive() (datagrams iter.Seq[[]byte], from address, ok bool) {
	in.header.Namelen = uint32(unsafe.Sizeof(in.from))
	in.header.SetControllen(len(in.control))
	n, _, err := syscall.RawSyscall(syscall.SYS_RECVMSG, uintptr(in.socket), uintptr(unsafe.Pointer(&in.header)), unix.MSG_DONTWAIT)
	if err != 0 {
		return nil, from, false
	}
	return train.Split(in.buffer[:n], in.control[:in.header.Controllen]), in.from, true
}
