package task

import (
	"context"
	"testing"
	"time"

	"margay/kernel/link"
	"margay/kernel/task/outbox"
)

// An init also reports errors of messages that are not answered. An error that came before a
// request is not its answer.
func TestAskPassesOverOldAnswers(t *testing.T) {
	conn, file, err := link.Pair()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	far, err := link.NewConn(file)
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	c := &Container{conn: conn, replies: make(chan link.Message, 1), gone: make(chan struct{})}
	c.out = outbox.New(conn, outbox.Default, func(error) {})
	old := link.New(Failed, &StartError{Op: Resize, Text: "no terminal"})
	if err := c.dispatch(old, nil); err != nil {
		t.Fatal(err)
	}
	go func() {
		if m, err := far.Recv(); err == nil {
			_ = c.dispatch(link.New(m.Kind, nil), nil)
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.ask(ctx, link.New(Collect, nil)); err != nil {
		t.Error(err)
	}
}
