package control

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// PeerUser returns the user whose process is at the other end of a unix socket: as it was when it
// connected, or began to listen.
func PeerUser(c *net.UnixConn) (uid int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var credErr error
	if err := raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if credErr != nil {
		return 0, fmt.Errorf("user at the other end of %v: %w", c.RemoteAddr(), credErr)
	}
	return int(cred.Uid), nil
}
