package margay

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// address is a socket address as Linux has it, which is comparable.
type address unix.RawSockaddrInet4

// setPort sets the port, which is big-endian.
func (a *address) setPort(port uint16) {
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&a.Port))[:], port)
}

// send sends a datagram. One that Linux does not take is lost, like any other.
func send(socket int, b []byte, to *address) {
	_, _, _ = syscall.RawSyscall6(syscall.SYS_SENDTO, uintptr(socket), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)),
		unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, uintptr(unsafe.Pointer(to)), unsafe.Sizeof(*to))
}

// receive takes a datagram into buffer, if there is one.
func receive(socket int, buffer []byte) (b []byte, from address, ok bool) {
	size := uint32(unsafe.Sizeof(from))
	n, _, err := syscall.RawSyscall6(syscall.SYS_RECVFROM, uintptr(socket), uintptr(unsafe.Pointer(&buffer[0])), uintptr(len(buffer)),
		unix.MSG_DONTWAIT, uintptr(unsafe.Pointer(&from)), uintptr(unsafe.Pointer(&size)))
	if err != 0 {
		return nil, from, false
	}
	return buffer[:n], from, true
}
