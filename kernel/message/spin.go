package message

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/fabric"
)

// spinner is a thread on a core of its own that does nothing but handle messages: it looks into the send rings of all ranks of
// the node, and has the messages that come from other nodes handed to it. No rank need ring while it does.
//
// It never waits: what a rank sends is left in its ring while the window is closed, and what goes to another node is queued
// however much that is (fabric.Prompt), which the windows bound. So two nodes never wait for each other.
type spinner struct {
	guests   chan *guest
	work     chan func()
	stopping atomic.Bool
	ended    chan struct{}
}

// guest is a rank whose send ring the spinner looks into.
type guest struct {
	rank *rank
	left chan bool // gets whether the rank has ended and all of its messages are sent
}

// Spin has a thread of its own on a CPU handle all messages, until Rest. The CPU is to be nobody else's.
func (e *Engine) Spin(cpu id.CPU) error {
	e.spinning.Lock()
	defer e.spinning.Unlock()
	if e.spinner.Load() != nil {
		return nil
	}
	s := &spinner{guests: make(chan *guest), work: make(chan func()), ended: make(chan struct{})}
	// Who sends already may wait for a node whose spinner would wait for this one: from now on nobody does.
	e.prompt.Store(true)
	jobs := e.all()
	for _, j := range jobs {
		j.sending.Lock()
		//lint:ignore SA2001 whoever held it has gone
		j.sending.Unlock()
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	started := make(chan error)
	go s.run(cpu, started)
	if err := <-started; err != nil {
		e.rested()
		return fmt.Errorf("message: spin on CPU %d: %w", cpu, err)
	}
	e.spinner.Store(s)
	for _, j := range e.all() {
		for _, r := range j.local {
			r.stir()
		}
	}
	return nil
}

// Rest ends what Spin has begun.
func (e *Engine) Rest() {
	e.spinning.Lock()
	defer e.spinning.Unlock()
	if s := e.spinner.Swap(nil); s != nil {
		s.stopping.Store(true)
		<-s.ended
		e.rested()
	}
}

func (e *Engine) rested() {
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) - 1)
	e.prompt.Store(false)
}

// all returns the jobs.
func (e *Engine) all() []*Job {
	e.mu.Lock()
	defer e.mu.Unlock()
	jobs := make([]*Job, 0, len(e.jobs))
	for _, j := range e.jobs {
		jobs = append(jobs, j)
	}
	return jobs
}

// class is that of frames of messages.
func (e *Engine) class() fabric.Class {
	if e.prompt.Load() {
		return fabric.Prompt
	}
	return fabric.User
}

// run is the life of the spinner's thread, which ends with it since it is bound to its CPU.
func (s *spinner) run(cpu id.CPU, started chan<- error) {
	defer close(s.ended)
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(int(cpu))
	err := unix.SchedSetaffinity(0, &set)
	started <- err
	if err != nil {
		return
	}
	var guests []*guest
	for !s.stopping.Load() {
		select {
		case g := <-s.guests:
			guests = append(guests, g)
		case f := <-s.work:
			f()
		default:
		}
		stay := guests[:0]
		for _, g := range guests {
			if g.rank.look() {
				g.left <- true
			} else {
				stay = append(stay, g)
			}
		}
		guests = stay
	}
	for _, g := range guests {
		g.left <- false
	}
}

// attend has the spinner send a rank's messages. It returns when the spinner ends, or with true when all is sent that the rank
// will ever send.
func (s *spinner) attend(r *rank) bool {
	g := &guest{rank: r, left: make(chan bool, 1)}
	select {
	case s.guests <- g:
		return <-g.left
	case <-s.ended:
		return false
	}
}

// do has the spinner do something and waits for that. It reports false when the spinner has ended.
func (s *spinner) do(f func()) bool {
	done := make(chan struct{})
	select {
	case s.work <- func() { defer close(done); f() }:
		<-done
		return true
	case <-s.ended:
		return false
	}
}

// look sends what the rank has put into its ring, without waiting. It reports whether the rank will never send any more.
func (r *rank) look() (over bool) {
	if !r.sent.Ready() && r.area.Entered().Load() == r.seen && !r.isEnding() && r.job.context.Err() == nil {
		return false
	}
	_, over = r.step(false)
	return over
}

// stir has pump look around.
func (r *rank) stir() {
	select {
	case r.rung <- struct{}{}:
	default:
	}
}
