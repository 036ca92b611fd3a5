//go:build !guest

package task_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/gdb"
	"margay/kernel/abi/id"
)

// A debugger is refused with a reason, and the rank can have another one then: gdbserver has said
// why it ends, the archive is cut, there is no such rank, the rank has ended.
func TestDebugRefused(t *testing.T) {
	exe, err := application()
	if err != nil {
		t.Fatal(err)
	}
	server := filepath.Join(t.TempDir(), "server")
	if err := os.WriteFile(server, exe, 0o600); err != nil {
		t.Fatal(err)
	}
	e := newEvents()
	c := start(t, spec(2, "sleep"), e)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	debug := func(rank id.Rank, send func(io.Writer) error) string {
		t.Helper()
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		own, far := os.NewFile(uintptr(fds[0]), "stream"), os.NewFile(uintptr(fds[1]), "stream")
		defer own.Close()
		err = c.Debug(ctx, rank, far)
		far.Close()
		if err != nil {
			t.Fatal(err)
		}
		stream, err := net.FileConn(own)
		if err != nil {
			t.Fatal(err)
		}
		defer stream.Close()
		if err := stream.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		go send(stream) // the answer may come before its end
		refusal, err := gdb.ReadAnswer(stream)
		if err != nil {
			t.Fatal(err)
		}
		return refusal
	}
	played := func(w io.Writer) error { return gdb.WriteFiles(w, []gdb.File{{Name: gdb.Server, Path: server}}) }
	for range 2 {
		if got := debug(1, played); !strings.HasPrefix(got, "--attach - and no more") {
			t.Errorf("gdbserver ends, and the answer is %q", got)
		}
	}
	garbage := func(w io.Writer) error {
		_, err := w.Write(make([]byte, 100))
		return errors.Join(err, w.(net.Conn).(*net.UnixConn).CloseWrite())
	}
	if got := debug(0, garbage); !strings.Contains(got, "gdbserver") {
		t.Errorf("the archive is cut, and the answer is %q", got)
	}
	if got := debug(2, played); got != "rank 2 is not on this node, or has not begun" {
		t.Errorf("there is no such rank, and the answer is %q", got)
	}
	if err := c.Signal(0, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.await(t, "the end of rank 0", func() bool { return len(e.exits()) == 1 })
	if got := debug(0, played); got != "rank 0 has ended" {
		t.Errorf("the rank has ended, and the answer is %q", got)
	}
}
