package channel

import (
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Go polls a nonblocking descriptor: node kernel and job init, which keep the socket, would wake
// for each datagram that passes through it.
func TestSocketIsNotPolled(t *testing.T) {
	s, _, err := OpenSocket(netip.MustParseAddr("127.0.0.1"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	flags, err := unix.FcntlInt(s.Fd(), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags of the socket %#x, %v", flags, err)
	}
	if err := s.SetDeadline(time.Now()); err == nil {
		t.Error("the runtime polls the socket")
	}
}
