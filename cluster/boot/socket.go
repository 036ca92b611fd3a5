package boot

import (
	"errors"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Buffers of sockets, in bytes.
const (
	// stormBuffer holds the questions that a thousand machines send at the same moment: for a
	// datagram Linux counts up to 2,304 bytes.
	stormBuffer = 4 << 20
	// SendBuffer bounds the part of a file that a connection buffers. Buffered data counts as
	// fetched before the node has it. The bound also keeps many connections small.
	SendBuffer = 256 << 10
)

// Tune sets the buffers of a socket of this host for the services; it is a
// net.ListenConfig.Control. Without the rights of root, a socket for datagrams gets as large a
// buffer as the host allows.
func Tune(network, _ string, raw syscall.RawConn) error {
	var err error
	failed := raw.Control(func(fd uintptr) {
		if strings.HasPrefix(network, "tcp") {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, SendBuffer)
			return
		}
		if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, stormBuffer) != nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, stormBuffer)
		}
	})
	return errors.Join(failed, err)
}
