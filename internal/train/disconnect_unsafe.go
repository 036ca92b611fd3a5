package train

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Disconnect makes a connected UDP socket receive datagrams from everywhere again. It keeps its
// address and port if it was bound to them (connect(2), AF_UNSPEC).
func Disconnect(socket int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, err := unix.RawSyscall(unix.SYS_CONNECT, uintptr(socket), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); err != 0 {
		return fmt.Errorf("disconnect a socket: %w", err)
	}
	return nil
}
