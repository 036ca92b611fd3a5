package launch

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"

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
