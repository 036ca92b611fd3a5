package control

import (
	"fmt"
	"net"
	"syscall"

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

// HungUp reports whether the other side has closed a connection over a socket. Serve finds that out
// only when it has read everything that was sent before.
func (c *Conn) HungUp() (hungUp bool) {
	s, ok := c.net.(syscall.Conn)
	if !ok {
		return c.Err() != nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		state := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		n, err := unix.Poll(state, 0)
		hungUp = err == nil && n > 0
	})
	return hungUp || err != nil // err: this side has closed it
}
