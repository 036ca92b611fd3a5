// Package allocation is the client's side of an allocation: cores of a machine that a user holds
// for the jobs of a command.
//
// Ask gets the cores, over a connection to serve that an Allocation keeps. When serve is started
// again, it connects again, and the allocation goes on. serve ends the allocation when it has no
// client for a while, when its time is over, when it is killed or has lost a node, or when Release
// says how its command has ended.
//
// Locks: Allocation.mu guards the connection and the end. It is held for nothing else.
package allocation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"margay/cluster/client"
	"margay/cluster/control"
)

// Options are what the user wants.
type Options struct {
	Socket  string // of serve
	Spec    *control.JobSpec
	Command []string          // for people: what it is for
	Notice  func(text string) // called with what the user should know; it must be safe for concurrent use
}

// Bounds of waiting for serve, and for another try when serve was started again before it had an
// answer.
const (
	reconnectTimeout = 20 * time.Second
	askTries         = 5
	askPause         = 100 * time.Millisecond
)

// signalRoom is how many signals may wait for Signals to be read. Others are lost.
const signalRoom = 64

// Allocation is an allocation that this process holds.
type Allocation struct {
	Job    uint32
	Places []*control.Place

	options Options
	signals chan syscall.Signal
	ended   chan struct{}
	closing context.Context
	close   context.CancelFunc

	mu    sync.Mutex
	conn  *control.Conn
	exit  *control.ExitStatus // how its command has ended; nil: it runs
	state *control.JobState   // its last one; nil: it has not ended, or that is not known
	err   error               // why it is lost
}

// Ask gets an allocation, and waits for it if the spec says so, until ctx ends. Close must be
// called.
func Ask(ctx context.Context, o Options) (*Allocation, error) {
	o.Spec.Allocation = true
	a := &Allocation{options: o, signals: make(chan syscall.Signal, signalRoom), ended: make(chan struct{})}
	a.closing, a.close = context.WithCancel(context.WithoutCancel(ctx))
	for try := 1; ; try++ {
		spoilt, err := a.ask(ctx)
		switch {
		case err == nil:
			go a.keep()
			return a, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case !spoilt || try == askTries:
			return nil, err
		}
		o.Notice(fmt.Sprintf("%v; asking again", err))
		select {
		case <-time.After(askPause << try):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// ask is one try. It reports whether another one may do better.
func (a *Allocation) ask(ctx context.Context) (spoilt bool, err error) {
	conn, err := a.dial(ctx)
	if err != nil {
		return false, err
	}
	request := &control.RunRequest{Spec: a.options.Spec, Exec: new(control.Exec)}
	for _, word := range a.options.Command {
		request.Exec.Argv = append(request.Exec.Argv, []byte(word))
	}
	answer, err := conn.Call(ctx, request)
	reply, ok := answer.(*control.RunReply)
	switch {
	case err == nil && ok:
		a.Job, a.Places = reply.Job, reply.Places
		_ = conn.Send(&control.FileChunk{Job: a.Job, Last: true}) // serve keeps it from now on when the connection breaks
		return false, nil
	case err == nil:
		err = fmt.Errorf("serve answered RunRequest with %T", answer)
	case lost(conn, err), errors.Is(err, &control.Failure{Code: control.Code_CODE_RESTARTED}):
		spoilt = !client.Gone(conn.Err())
	}
	conn.Close()
	return spoilt, err
}

// dial connects to serve, and makes the connection the current one.
func (a *Allocation) dial(ctx context.Context) (*control.Conn, error) {
	dialing, cancel := context.WithTimeout(ctx, reconnectTimeout)
	defer cancel()
	conn, err := client.Dial(dialing, a.options.Socket)
	if err != nil {
		return nil, err
	}
	a.mu.Lock()
	a.conn = conn
	a.mu.Unlock()
	go conn.Serve(a.handle)
	return conn, nil
}

// lost reports whether a request has failed because its connection ended, and not by its answer.
func lost(conn *control.Conn, err error) bool {
	var answer *control.Failure
	return err != nil && conn.Err() != nil && !errors.As(err, &answer)
}

// Signals are signals for the command.
func (a *Allocation) Signals() <-chan syscall.Signal { return a.signals }

// Ended is closed when the allocation has ended. End then says how.
func (a *Allocation) Ended() <-chan struct{} { return a.ended }

// End returns the last state of an allocation that has ended, or why it is lost.
func (a *Allocation) End() (*control.JobState, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state, a.err
}

// Release ends the allocation, because its command has ended, and waits until its cores are free or
// ctx ends. Without it, Close leaves an allocation whose client is gone.
func (a *Allocation) Release(ctx context.Context, exit *control.ExitStatus) (*control.JobState, error) {
	a.mu.Lock()
	a.exit = exit
	conn := a.conn
	a.mu.Unlock()
	_ = conn.Send(&control.EndAllocation{Job: a.Job, Exit: exit}) // keep sends it again over another connection
	select {
	case <-a.ended:
		return a.End()
	case <-ctx.Done():
		return nil, fmt.Errorf("release allocation %d: %w", a.Job, context.Cause(ctx))
	}
}

// Close ends the connection to serve.
func (a *Allocation) Close() {
	a.close()
	a.current().Close()
}

func (a *Allocation) current() *control.Conn {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conn
}

// handle takes what serve sends.
func (a *Allocation) handle(f *control.Frame) {
	switch m := f.Message().(type) {
	case *control.JobState:
		if m.Phase == control.JobPhase_JOB_DONE {
			a.end(m, nil)
		}
	case *control.Signal:
		select {
		case a.signals <- syscall.Signal(m.Signal):
		default:
		}
	case *control.LogLine:
		a.options.Notice(m.Text)
	}
}

// end notes that the allocation has ended. Only the first end counts.
func (a *Allocation) end(state *control.JobState, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-a.ended:
	default:
		a.state, a.err = state, err
		close(a.ended)
	}
}

// keep finds the allocation again at the serve that has taken an old one's place.
func (a *Allocation) keep() {
	for {
		conn := a.current()
		select {
		case <-conn.Done():
		case <-a.ended:
			return
		case <-a.closing.Done():
			return
		}
		if err := conn.Err(); client.Gone(err) {
			a.end(nil, err)
			return
		}
		if err := a.attach(); err != nil {
			a.end(nil, fmt.Errorf("allocation %d is lost: %w", a.Job, err))
			return
		}
	}
}

// attach connects again.
func (a *Allocation) attach() error {
	attaching, cancel := context.WithTimeout(a.closing, reconnectTimeout)
	defer cancel()
	for {
		conn, err := a.dial(attaching)
		if err != nil {
			return err
		}
		answer, err := conn.Call(attaching, &control.Attach{Job: a.Job})
		if lost(conn, err) && attaching.Err() == nil {
			continue // this serve has gone as well
		}
		if err != nil {
			return err
		}
		state, ok := answer.(*control.JobState)
		if !ok {
			return fmt.Errorf("serve answered Attach with %T", answer)
		}
		a.mu.Lock()
		exit := a.exit
		a.mu.Unlock()
		switch {
		case state.Phase == control.JobPhase_JOB_DONE:
			a.end(state, nil)
		case exit != nil:
			_ = conn.Send(&control.EndAllocation{Job: a.Job, Exit: exit})
		}
		return nil
	}
}
