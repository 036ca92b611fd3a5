package launch

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"margay/internal/check"
)

// failing fails every write.
type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

// Messages are written when the output no longer is; the first error is reported once.
func TestMessagesAfterAnError(t *testing.T) {
	check.Leaks(t)
	failures := 0
	o := newOutlet(func(error) { failures++ })
	var said strings.Builder
	status := o.status(&Status{W: &said})
	out := o.writer(failing{})
	_, _ = out.Write([]byte("one"))
	_, _ = out.Write([]byte("two"))
	status.Warnf("lost")
	if err := o.flush(t.Context()); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("flush: %v", err)
	}
	status.Warnf("gone")
	_ = o.flush(t.Context())
	if failures != 1 || !strings.Contains(said.String(), "lost") || !strings.Contains(said.String(), "gone") {
		t.Errorf("%d errors were reported, and it says %q", failures, said.String())
	}
}

// Once the job is given up, unread output is reported, and does not hold up the end.
func TestUnread(t *testing.T) {
	check.Leaks(t)
	r, w := io.Pipe()
	o := newOutlet(func(err error) {})
	_, _ = o.writer(w).Write([]byte("line\n"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := o.flush(ctx); !errors.Is(err, errUnread) {
		t.Errorf("flush: %v", err)
	}
	r.Close()
	_ = o.flush(t.Context())
}

// stuck is a file that takes nothing before it is released.
type stuck chan struct{}

func (s stuck) Write(data []byte) (int, error) {
	<-s
	return len(data), nil
}

func (s stuck) Stat() (os.FileInfo, error) { return nil, nil }

// quiet is another file, in memory.
type quiet struct {
	mu   sync.Mutex
	text strings.Builder
}

func (q *quiet) Stat() (os.FileInfo, error) { return nil, nil }

func (q *quiet) Write(data []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.text.Write(data)
}

func (q *quiet) String() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.text.String()
}

// Messages go ahead of output that is not read, if they go to another file. They do not go ahead of
// other messages, nor of output before that was read.
func TestMessagesGoAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out, said := make(stuck), new(quiet)
		o := newOutlet(func(error) {})
		errors := o.writer(said)
		_, _ = errors.Write([]byte("rank\n"))
		_, _ = o.writer(out).Write([]byte("one"))
		status := o.status(&Status{W: said})
		status.Warnf("first")
		time.Sleep(aheadAfter / 2)
		status.Warnf("second")
		synctest.Wait()
		if said.String() != "rank\n" {
			t.Errorf("at once it says %q", said.String())
		}
		time.Sleep(2 * aheadAfter)
		synctest.Wait()
		if text := said.String(); text != "rank\nmargay: first\nmargay: second\n" {
			t.Errorf("beside output that is not read it says %q", text)
		}
		o.status(&Status{W: out}).Warnf("in order")
		time.Sleep(time.Minute)
		close(out)
		if err := o.flush(t.Context()); err != nil || o.size != 0 {
			t.Errorf("%v, %d bytes are left", err, o.size)
		}
		time.Sleep(2 * aheadAfter) // no timer is left
	})
	if apart(os.Stdout, os.Stdout) {
		t.Error("a file is another one than itself")
	}
}

// Progress does not pile up behind a reader that does not read.
func TestProgressDoesNotPileUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reader, out := io.Pipe()
		o := newOutlet(func(error) {})
		p := o.status(&Status{W: out, Terminal: true}).Progress("copying", 0)
		for n := range int64(1000) {
			time.Sleep(progressDelay)
			p.Set(n << 20)
		}
		if len(o.queue) > 1 || o.size > 100 {
			t.Errorf("%d pieces of %d bytes wait", len(o.queue), o.size)
		}
		p.Done()
		go func() { _, _ = io.Copy(io.Discard, reader) }()
		_ = o.flush(t.Context())
		reader.Close()
	})
}
