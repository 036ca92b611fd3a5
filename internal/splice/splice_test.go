package splice

import (
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// pair returns two connected sockets.
func pair(t *testing.T) (conns [2]net.Conn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "socket")
		if conns[i], err = net.FileConn(f); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return conns
}

// The last words of a side arrive, though it does not take what the other one sends.
func TestLastWords(t *testing.T) {
	for range 200 {
		near, far := pair(t), pair(t)
		joined, sent := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(joined)
			Join(near[1], far[1])
		}()
		go func() {
			defer close(sent)
			for bytes := make([]byte, 4<<10); ; {
				if _, err := near[0].Write(bytes); err != nil {
					return
				}
			}
		}()
		if _, err := io.ReadFull(far[0], make([]byte, 16<<10)); err != nil {
			t.Fatal(err)
		}
		if _, err := far[0].Write([]byte("no")); err != nil {
			t.Fatal(err)
		}
		far[0].Close()
		text := make([]byte, 2)
		if _, err := io.ReadFull(near[0], text); err != nil || string(text) != "no" {
			t.Fatalf("%q, %v", text, err)
		}
		near[0].Close()
		<-joined
		<-sent
	}
}

func TestJoin(t *testing.T) {
	a, near := net.Pipe()
	b, far := net.Pipe()
	joined := make(chan struct{})
	go func() {
		defer close(joined)
		Join(near, far)
	}()
	for from, to := range map[net.Conn]net.Conn{a: b, b: a} {
		go from.Write([]byte("word"))
		text := make([]byte, 4)
		if _, err := io.ReadFull(to, text); err != nil || string(text) != "word" {
			t.Errorf("%q, %v", text, err)
		}
	}
	a.Close()
	if _, err := b.Read(make([]byte, 1)); err != io.EOF {
		t.Errorf("one side has ended, the other one reads %v", err)
	}
	<-joined
}
