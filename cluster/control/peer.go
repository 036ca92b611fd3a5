package control

import (
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Peer is the process at the other end of a unix socket, as Linux knows it: as it was when it
// connected, or began to listen.
type Peer struct {
	UID  uint32
	GIDs []uint32 // all groups
	PID  int32    // 0 if this process cannot see it: it is in another PID namespace
}

// PeerOf returns the other end of a unix socket.
func PeerOf(c net.Conn) (peer Peer, err error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return Peer{}, fmt.Errorf("%T is not a unix socket: the user at its other end is not known", c)
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return Peer{}, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) {
		if cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); credErr == nil {
			peer.GIDs, credErr = peerGroups(int(fd))
		}
	})
	if err := errors.Join(err, credErr); err != nil {
		return Peer{}, fmt.Errorf("user at the other end of %v: %w", c.RemoteAddr(), err)
	}
	peer.UID, peer.GIDs, peer.PID = cred.Uid, append(peer.GIDs, cred.Gid), cred.Pid
	return peer, nil
}

// silence is how long the other host of a connection may be silent.
const silence = 20 * time.Second

// Probe has a TCP connection between a user of another host and serve end when the other host has
// been silent for 20 seconds, also while data are on their way.
func Probe(c *net.TCPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var set error
	err = raw.Control(func(fd uintptr) {
		set = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(silence.Milliseconds()))
	})
	probes := net.KeepAliveConfig{Enable: true, Idle: silence / 4, Interval: silence / 4, Count: 3}
	return errors.Join(err, set, c.SetKeepAliveConfig(probes))
}

// HungUp reports whether the other side has closed a connection over a socket. Serve finds that out
// only when it has read everything that was sent before.
func (c *Conn) HungUp() (hungUp bool) {
	stream := c.net
	if over, is := stream.(interface{ NetConn() net.Conn }); is { // TLS
		stream = over.NetConn()
	}
	s, ok := stream.(syscall.Conn)
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
