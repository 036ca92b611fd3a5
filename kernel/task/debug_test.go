//go:build !guest

package task_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/gdb"
	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// attached is debug for a debugger that attaches, after one before has gone.
func attached(t *testing.T, c *task.Container, rank id.Rank, plays string) net.Conn {
	t.Helper()
	send := server(t, plays)
	for begun := time.Now(); ; time.Sleep(10 * time.Millisecond) {
		stream, refusal := debug(t, c, rank, send)
		if refusal == "" {
			return stream
		}
		if !strings.HasPrefix(refusal, "a debugger has rank") || time.Since(begun) > patience {
			t.Fatal(refusal)
		}
	}
}

// A debugger is refused with a reason, and the rank can have another one then: gdbserver has said
// why it ends, the archive is cut, there is no such rank, the rank has ended.
func TestDebugRefused(t *testing.T) {
	e := newEvents()
	c := start(t, spec(2, "sleep"), e)
	played := server(t)
	refused := func(rank id.Rank, send func(io.Writer) error) string {
		stream, refusal := debug(t, c, rank, send)
		stream.Close()
		return refusal
	}
	for range 2 {
		if got := refused(1, played); !strings.HasPrefix(got, "--attach - and no more") {
			t.Errorf("gdbserver ends, and the answer is %q", got)
		}
	}
	garbage := func(w io.Writer) error {
		_, err := w.Write(make([]byte, 100))
		return errors.Join(err, w.(net.Conn).(*net.UnixConn).CloseWrite())
	}
	if got := refused(0, garbage); !strings.Contains(got, "gdbserver") {
		t.Errorf("the archive is cut, and the answer is %q", got)
	}
	if got := refused(2, played); got != "rank 2 is not on this node, or has not begun" {
		t.Errorf("there is no such rank, and the answer is %q", got)
	}
	late := func(w io.Writer) error { // the rank ends while the archive is on its way
		if err := c.Signal(0, unix.SIGKILL); err != nil {
			return err
		}
		for begun := time.Now(); len(e.exits()) == 0; time.Sleep(time.Millisecond) {
			if time.Since(begun) > patience {
				return errors.New("the rank does not end")
			}
		}
		return played(w)
	}
	if got := refused(0, late); !strings.HasSuffix(got, "rank 0 has ended") {
		t.Errorf("the rank ends, and the answer is %q", got)
	}
	if got := refused(0, played); got != "rank 0 has ended" {
		t.Errorf("the rank has ended, and the answer is %q", got)
	}
}

// A rank ends although a debugger that does not look at it has stopped it: one that the node kills,
// and one that is killed by another process.
func TestDebugKilled(t *testing.T) {
	e := newEvents()
	c := start(t, spec(2, "sleep"), e)
	e.await(t, "the ranks", func() bool { return len(e.processes()) == 2 })
	attached(t, c, 0, playsAttached)
	attached(t, c, 1, playsAttached)
	if err := c.Signal(0, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	e.await(t, "the end of rank 0", func() bool { return e.exits()[0].Signal == unix.SIGKILL })
	if len(e.exits()) > 1 {
		t.Error("the other rank has ended, too")
	}
	if err := unix.PidfdSendSignal(int(e.processes()[1].File.Fd()), unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	e.await(t, "the end of rank 1", func() bool { return e.exits()[1].Signal == unix.SIGKILL })
}

// The last reply of a gdbserver whose rank has ended is passed on, and the stream ends.
func TestDebugLastReply(t *testing.T) {
	s := spec(1, "cat")
	e := newEvents()
	c := start(t, s, e)
	stream := attached(t, c, 0, playsCarrier)
	if _, err := stream.Write(gdb.AppendPacket(nil, []byte("c"))); err != nil {
		t.Fatal(err)
	}
	if err := c.Input(0, 0, nil, true); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(stream); err != nil || string(got) != "$W00#00" {
		t.Errorf("%q, %v", got, err)
	}
	e.await(t, "the end of the rank", func() bool { return len(e.exits()) == 1 })
}

// answers checks that a played gdbserver answers.
func answers(t *testing.T, stream net.Conn) {
	t.Helper()
	if _, err := stream.Write(gdb.AppendPacket(nil, []byte("Z0,1,1"))); err != nil {
		t.Fatal(err)
	}
	reply := make([]byte, len("$OK#9a"))
	if _, err := io.ReadFull(stream, reply); err != nil || string(reply) != "$OK#9a" {
		t.Errorf("%q, %v", reply, err)
	}
}

// gdb can look at a rank of a job that is stopped. The rank goes on with its job.
func TestDebugStopped(t *testing.T) {
	e := newEvents()
	c := start(t, spec(1, "cat"), e)
	stream := attached(t, c, 0, playsAttached)
	if err := c.Signal(task.AllRanks, unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	answers(t, stream)
	stream.Close()
	attached(t, c, 0, playsAttached).Close()
	if err := c.Input(0, 0, []byte("goes on"), true); err != nil {
		t.Fatal(err)
	}
	if text := e.text(0, task.Stdout); text != "" {
		t.Errorf("the rank of a stopped job says %q", text)
	}
	if err := c.Signal(task.AllRanks, unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	e.await(t, "the end of the rank", func() bool { return len(e.exits()) == 1 })
	if text := e.text(0, task.Stdout); text != "goes on" {
		t.Errorf("the rank says %q", text)
	}
}

// A gdbserver that reads nothing, and whose standard error stays open, is killed when gdb is gone.
// The rank goes on, and can have another debugger.
func TestDebugDeaf(t *testing.T) {
	s := spec(1, "cat")
	e := newEvents()
	c := start(t, s, e)
	deaf := attached(t, c, 0, playsDeaf)
	deaf.Close()
	next := attached(t, c, 0, playsAttached)
	answers(t, next)
	next.Close()
	if err := c.Input(0, 0, []byte("goes on"), true); err != nil {
		t.Fatal(err)
	}
	e.await(t, "the end of the rank", func() bool { return len(e.exits()) == 1 })
	if got := e.text(0, task.Stdout); got != "goes on" {
		t.Errorf("the rank says %q", got)
	}
}
