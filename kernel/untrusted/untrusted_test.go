package untrusted

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/rights"
)

// socketPair returns two connected stream sockets.
func socketPair(t *testing.T) (near, far *os.File, raw syscall.RawConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	near, far = os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
	if raw, err = near.SyscallConn(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { near.Close(); far.Close() })
	return near, far, raw
}

// lingering returns a TCP socket that takes an hour to close, because its peer reads nothing.
func lingering(t *testing.T) *os.File {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	peer, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { peer.Close() })
	f, err := conn.(*net.TCPConn).File()
	if err != nil {
		t.Fatal(err)
	}
	fd := int(f.Fd())
	unix.SetNonblock(fd, true)
	for {
		if _, err := unix.Write(fd, make([]byte, 1<<16)); err != nil {
			break
		}
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		t.Fatal(err)
	}
	return f
}

// Closing waits for no descriptor, whether it was received or still waits in a socket.
func TestClose(t *testing.T) {
	near, far, raw := socketPair(t)
	received, waiting := lingering(t), lingering(t)
	send := func(f *os.File) {
		t.Helper()
		if err := unix.Sendmsg(int(far.Fd()), []byte{1}, rights.Encode(f), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	send(received)
	data, control := make([]byte, 16), make([]byte, ControlSpace())
	files, err := Receive(raw, data, control)
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	send(waiting)
	before := check.Descriptors(t)
	Close([]*os.File{received})
	Close(files)
	Close([]*os.File{waiting})
	held, err := Hold(raw)
	if err != nil {
		t.Fatal(err)
	}
	near.Close()
	CloseSockets([]*os.File{held})
	check.Await(t, "end of all files", func() bool { return check.Descriptors(t) <= before-4 })
}

// A held socket is closed at once only if nothing is in it, and nothing can come.
func TestEmpty(t *testing.T) {
	for _, c := range []struct {
		name string
		kind int
		send [][]byte
		flag int
		open bool
		want bool
	}{
		{name: "stream", kind: unix.SOCK_STREAM, want: true},
		{name: "packets", kind: unix.SOCK_SEQPACKET, want: true},
		{name: "open stream", kind: unix.SOCK_STREAM, open: true},
		{name: "open packets", kind: unix.SOCK_SEQPACKET, open: true},
		{name: "byte", kind: unix.SOCK_STREAM, send: [][]byte{{1}}},
		{name: "urgent byte", kind: unix.SOCK_STREAM, send: [][]byte{{1}}, flag: unix.MSG_OOB},
		{name: "packet", kind: unix.SOCK_SEQPACKET, send: [][]byte{{1}}},
		{name: "packet without data", kind: unix.SOCK_SEQPACKET, send: [][]byte{{}}},
		{name: "packet behind one without data", kind: unix.SOCK_SEQPACKET, send: [][]byte{{}, {1}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			fds, err := unix.Socketpair(unix.AF_UNIX, c.kind|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			if err != nil {
				t.Fatal(err)
			}
			near, far := os.NewFile(uintptr(fds[0]), "near"), os.NewFile(uintptr(fds[1]), "far")
			defer near.Close()
			defer far.Close()
			for _, data := range c.send {
				if err := unix.Sendmsg(fds[1], data, nil, nil, c.flag); err != nil {
					t.Fatal(err)
				}
			}
			if !c.open {
				far.Close()
			}
			if got := empty(near); got != c.want {
				t.Errorf("empty: %v", got)
			}
		})
	}
}

// The end of a stream, and of the socket itself, end waiting.
func TestReceiveEnds(t *testing.T) {
	near, far, raw := socketPair(t)
	if _, err := far.Write([]byte("abc")); err != nil {
		t.Fatal(err)
	}
	far.Close()
	data, control := make([]byte, 16), make([]byte, ControlSpace())
	if files, err := Receive(raw, data, control); err != nil || len(files) != 0 {
		t.Errorf("%d files, %v", len(files), err)
	}
	if _, err := Receive(raw, data, control); !errors.Is(err, os.ErrClosed) {
		t.Errorf("behind the end: %v", err)
	}
	near.Close()
	if _, err := Receive(raw, data, control); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("from a closed socket: %v", err)
	}
	if _, err := Hold(raw); err == nil {
		t.Error("a closed socket is held")
	}
}
