package agent

import (
	"context"
	"errors"
	"net"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/kernel"
)

// ordered is an agent with a played kernel. Requests go over near, or over the next connection.
func ordered(t *testing.T, k *playedKernel) (ask func(ctx context.Context, request proto.Message)) {
	t.Helper()
	a := newMachine(t).agent(3, new(lines))
	a.node = k
	near, far := net.Pipe()
	conn, serve := control.NewConn(near), control.NewConn(far)
	t.Cleanup(conn.Close)
	t.Cleanup(serve.Close)
	go serve.Serve(func(*control.Frame) {})
	return func(ctx context.Context, request proto.Message) {
		a.handle(ctx, conn, control.NewFrame(request))
		synctest.Wait()
	}
}

func (k *playedKernel) done() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.calls)
}

// A job that serve forgets during its preparation is forgotten afterwards, or the node would keep
// it. Other jobs do not wait for that.
func TestForgetFollowsPrepare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		prepared := make(chan struct{})
		k := new(playedKernel)
		k.prepare = func(s kernel.JobSpec) error {
			<-prepared
			return k.note("prepare %d", s.Job)
		}
		ask := ordered(t, k)
		session, over := context.WithCancel(t.Context())
		ask(session, &control.Prepare{Job: 6, Spec: new(control.JobSpec)})
		over() // the next request comes over another connection
		ask(t.Context(), &control.Forget{Job: 6})
		ask(t.Context(), &control.Forget{Job: 7})
		if calls := k.done(); !slices.Equal(calls, []string{"forget 7"}) {
			t.Errorf("while the job is prepared, the kernel is asked to %v", calls)
		}
		close(prepared)
		synctest.Wait()
		if calls := k.done(); !slices.Equal(calls, []string{"forget 7", "prepare 6", "forget 6"}) {
			t.Errorf("the kernel was asked to %v", calls)
		}
	})
}

// A job whose start hangs can be forgotten: the request cancels the start.
func TestForgetEndsStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := new(playedKernel)
		k.start = func(ctx context.Context) error {
			<-ctx.Done()
			return k.note("given up: %v", ctx.Err())
		}
		ask := ordered(t, k)
		ask(t.Context(), &control.Start{Job: 6})
		ask(t.Context(), &control.Start{Job: 6})
		ask(t.Context(), &control.Forget{Job: 6})
		given := "given up: context canceled"
		if calls := k.done(); !slices.Equal(calls, []string{given, given, "forget 6"}) {
			t.Errorf("the kernel was asked to %v", calls)
		}
	})
}

// The ranks of a job start although the connection that has brought the request is lost: serve has
// recorded the job as running. If they do not start, the next connection brings the error.
func TestStartOutlivesConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := make(chan struct{})
		k := &playedKernel{refuse: errors.New("it has no program")}
		k.start = func(ctx context.Context) error {
			select {
			case <-asked:
				return k.note("start")
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		a := newMachine(t).agent(3, new(lines))
		a.node = k
		near, far := net.Pipe()
		conn := control.NewConn(near)
		session, over := context.WithCancel(t.Context())
		a.handle(session, conn, control.NewFrame(&control.Start{Job: 6}))
		synctest.Wait()
		over()
		conn.Close()
		far.Close()
		synctest.Wait()
		close(asked)
		synctest.Wait()
		if calls := k.done(); !slices.Equal(calls, []string{"start"}) {
			t.Errorf("the kernel was asked to %v", calls)
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		if m := a.faults[6]; m == nil || m.Error.GetText() != "it has no program" {
			t.Errorf("serve will get %v", m)
		}
	})
}
