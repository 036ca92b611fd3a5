package message

import (
	"fmt"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"margay/internal/throwaway"
	"margay/kernel/abi/id"
	"margay/kernel/fabric"
)

// spinner is a thread on a core of its own that only handles messages: it polls the send rings of
// all ranks of the node, and receives the messages from other nodes. While it runs, no rank rings.
//
// The spinner never waits: messages without credits stay in their rank's ring, and any number of
// frames for another node is queued (fabric.Prompt); the credits bound it. So two nodes never wait
// for each other. It sends turn messages of a rank at most before it looks at the others: one that
// sends without end would keep it from all other jobs.
type spinner struct {
	guests   chan *guest
	work     chan func()
	stopping atomic.Bool
	ended    chan struct{}
}

// turn is the most messages of a rank that the spinner sends at a time.
const turn = 512

// guest is a rank whose send ring the spinner polls.
type guest struct {
	rank *rank
	left chan bool // receives whether the rank has ended and all of its messages are sent
}

// Spin starts a thread on a CPU that handles all messages until Rest. No other thread should run on
// that CPU.
func (e *Engine) Spin(cpu id.CPU) error {
	e.spinning.Lock()
	defer e.spinning.Unlock()
	if e.spinner.Load() != nil {
		return nil
	}
	s := &spinner{guests: make(chan *guest), work: make(chan func()), ended: make(chan struct{})}
	// A goroutine that sends may wait for a node whose spinner would wait for this one. From now on
	// no sender waits, and the loop waits for those that began before.
	e.prompt.Store(true)
	jobs := e.all()
	for _, j := range jobs {
		j.sending.Lock()
		//lint:ignore SA2001 the goroutine that held it is done
		j.sending.Unlock()
	}
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	started := make(chan error)
	throwaway.Go(func() { s.run(cpu, started) })
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

// Rest ends the thread that Spin started.
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

// class returns the class of frames of messages.
func (e *Engine) class() fabric.Class {
	if e.prompt.Load() {
		return fabric.Prompt
	}
	return fabric.User
}

// run is the spinner's thread. It is bound to its CPU and ends with run.
func (s *spinner) run(cpu id.CPU, started chan<- error) {
	defer close(s.ended)
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

// attend lets the spinner send a rank's messages. It returns false when the spinner ends, and true
// when all messages that the rank will ever send are sent.
func (s *spinner) attend(r *rank) bool {
	g := &guest{rank: r, left: make(chan bool, 1)}
	select {
	case s.guests <- g:
		return <-g.left
	case <-s.ended:
		return false
	}
}

// do runs f on the spinner and waits for it. It reports false if the spinner has ended.
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

// look sends the messages in the rank's ring, without waiting. It reports whether the rank will
// never send more.
func (r *rank) look() (over bool) {
	if !r.endpoint.Sent().Ready() && r.endpoint.Entered() == r.seen && !r.isEnding() && r.job.context.Err() == nil {
		return false
	}
	_, over = r.step(false)
	return over
}
