package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/internal/printable"
)

// insistTime is how soon a second interrupt must follow the first to end the job whatever its ranks
// do.
const insistTime = 3 * time.Second

// hangUp is how long ranks have after their terminal has gone before the job is ended.
const hangUp = time.Second

var errHangUp = errors.New("the terminal is gone")

// Interrupted is the error of a client that a signal has ended before its job did, or whose job
// ended by a signal that the client was sent.
type Interrupted struct {
	Signal syscall.Signal
	Err    error // how the job has ended, or nil
}

func (e *Interrupted) Error() string {
	if e.Err != nil {
		return e.Err.Error()
	}
	return "ended by " + printable.Signal(e.Signal)
}

func (e *Interrupted) Unwrap() error { return e.Err }

// interrupted makes the client end like its job, if the job's status belongs to a forwarded signal
// that ends programs from outside.
func (s *session) interrupted(code int, err error) error {
	for _, sig := range []syscall.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP} {
		if code == 128+int(sig) && s.passed.Load()&(1<<sig) != 0 {
			return &Interrupted{sig, err}
		}
	}
	return err
}

// interrupts decides what an interrupt means besides that all ranks get it, by those before it.
type interrupts struct {
	last   time.Time
	ending bool // the job is being ended
}

// The meanings of an interrupt.
type insistence int

const (
	announce insistence = iota // announce the effect of another one
	end                        // the job is ended
	leave                      // the client ends, whatever becomes of the job
)

// next returns the meaning of an interrupt at a time.
func (i *interrupts) next(now time.Time) insistence {
	switch {
	case i.ending:
		return leave
	case !i.last.IsZero() && now.Sub(i.last) < insistTime:
		i.ending = true
		return end
	}
	i.last = now
	return announce
}

// early holds the signals that come before there is a rank. It returns, and cancels, when one of
// them ends programs; else with the others when the ranks run.
func (s *session) early(ctx context.Context, cancel context.CancelCauseFunc) (held []os.Signal) {
	for {
		select {
		case <-s.running:
			return held
		case <-ctx.Done():
			return held
		case sig := <-s.Signals:
			select {
			case <-s.running: // at the same time: it is for the ranks
				return append(held, sig)
			default:
			}
			if endsEarly(sig) {
				cancel(&Interrupted{Signal: sig.(syscall.Signal)})
				return nil
			}
			switch sig {
			case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
				s.suspend()
			case unix.SIGCONT, unix.SIGWINCH: // they are about what was before the ranks
			default:
				held = append(held, sig)
			}
		}
	}
}

// endsEarly reports whether a signal ends the client when there is no rank yet.
func endsEarly(sig os.Signal) bool {
	switch sig {
	case unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT:
		return true
	}
	return false
}

// suspend stops this process, if it can be.
func (s *session) suspend() {
	if s.Suspend != nil {
		s.Suspend()
	}
}

// stopGrace is how long ranks that catch SIGTSTP have before they are stopped.
const stopGrace = 100 * time.Millisecond

// stopTimeout bounds how long this process goes on when serve does not answer that the ranks stop.
const stopTimeout = 5 * time.Second

// stop stops the ranks and then this process, until it is continued, and then the ranks continue.
// They have been sent the signal that asks for it. Linux alone would not stop them: no shell of
// theirs could continue them.
func (s *session) stop(ctx context.Context) {
	select {
	case <-time.After(stopGrace):
	case <-ctx.Done():
		return
	}
	asking, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	_, err := s.current().Call(asking, &control.Kill{Job: s.job, Rank: control.None, Signal: int32(unix.SIGSTOP)})
	if ctx.Err() != nil {
		return // the job has ended
	}
	if err != nil {
		s.Status.Warnf("the ranks of job %d may go on: %v", s.job, err)
	}
	if s.Terminal != nil {
		s.Terminal.Restore()
	}
	s.suspend()
	s.orders.give(signalAll(s.job, unix.SIGCONT))
	if err := s.takeTerminal(); err != nil {
		s.Status.Warnf("%v", err)
	}
}

// forward sends signals to the ranks until ctx ends, early ones first. It returns early if the job
// must be given up.
func (s *session) forward(ctx context.Context, early []os.Signal) error {
	for _, sig := range early {
		if err := s.forwardOne(ctx, sig.(syscall.Signal)); err != nil {
			return err
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case sig := <-s.Signals:
			if err := s.forwardOne(ctx, sig.(syscall.Signal)); err != nil {
				return err
			}
		case sig := <-s.keys:
			if err := s.forwardOne(ctx, sig.(syscall.Signal)); err != nil {
				return err
			}
		}
	}
}

func (s *session) forwardOne(ctx context.Context, sig syscall.Signal) error {
	if s.forTerminal(sig) {
		return nil
	}
	s.passed.Or(1 << sig)
	s.orders.give(signalAll(s.job, sig))
	switch sig {
	case unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU:
		s.stop(ctx)
	case unix.SIGHUP:
		select {
		case <-time.After(hangUp):
		case <-ctx.Done():
		}
		return errHangUp
	case unix.SIGINT:
		switch s.interrupts.next(time.Now()) {
		case announce:
			s.Status.Warnf("SIGINT is sent to the ranks of job %d; Ctrl-C again within %d s ends the job", s.job, insistTime/time.Second)
		case end:
			s.insist()
		case leave:
			return &Interrupted{Signal: sig}
		}
	}
	return nil
}

// insist has the job ended, whatever its ranks do.
func (s *session) insist() {
	s.insisted.Store(true)
	s.Status.Warnf("ending job %d", s.job)
	s.orders.give(endJob(s.job))
}

// Describe says how a rank ended.
func Describe(exit *control.ExitStatus) string {
	text := fmt.Sprintf("exited with status %d", exit.Code)
	if exit.Signal != 0 {
		text = "was killed by " + printable.Signal(syscall.Signal(exit.Signal)) + describeFault(exit)
	}
	if exit.Reason != "" {
		text += ": " + exit.Reason
	}
	return text
}

// Computed is the processor time of a rank.
func Computed(u *control.Usage) time.Duration {
	return time.Duration(u.GetUserNs() + u.GetSystemNs()).Round(time.Millisecond)
}

// usage says in words what a rank has used.
func usage(u *control.Usage) string {
	return fmt.Sprintf("%v of processor time, %d major and %d minor page faults, preempted %d times", Computed(u),
		u.GetMajorFaults(), u.GetMinorFaults(), u.GetPreemptions())
}

// nodeList names the nodes of a job.
func nodeList(places []*control.Place) string {
	var nodes []uint32
	for _, p := range places {
		nodes = append(nodes, p.Node)
	}
	return nodeset.Condense(slices.Compact(nodes))
}
