package launch

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// A signal that comes while serve is away reaches the ranks when it is back, once if serve answers.
func TestSignalsReachTheNextServe(t *testing.T) {
	signals, started := make(chan os.Signal), make(chan struct{})
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		<-started
	}, func(c *talk) {
		c.attached()
		passes(c, unix.SIGUSR1, true)
		passes(c, unix.SIGUSR2, false)
	}, func(c *talk) {
		c.attached()
		passes(c, unix.SIGUSR2, true)
		c.done(ok())
		c.left()
	})
	l := newLauncher(t, s, 1)
	l.Signals = signals
	l.Started = func(uint32) error { close(started); return nil }
	var once sync.Once
	l.Status = &Status{W: writes(func([]byte) { // it looks for serve
		once.Do(func() {
			signals <- unix.SIGUSR1
			signals <- unix.SIGUSR2 // when this one is taken, the first was passed on
		})
	})}
	if code, err := l.run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// passes demands that the next signal for all ranks is sig. serve answers, or is killed before.
func passes(c *talk, sig unix.Signal, answer bool) {
	m, f := expect[*control.Signal](c)
	if f == nil || m.Job != 5 || m.Rank != control.None || m.Signal != int32(sig) {
		c.serve.t.Errorf("passed on is %v instead of %v", m, sig)
		return
	}
	if answer {
		c.Answer(f, &control.Done{}, nil)
	}
}

// serve is killed while a job and its margay run are stopped by Ctrl-Z. fg continues the job, and
// the signal that asked for the stop is not repeated.
func TestContinuedAfterRestart(t *testing.T) {
	signals, started, suspended, looks := make(chan os.Signal), make(chan struct{}), make(chan struct{}), make(chan struct{})
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		<-started
		signals <- unix.SIGTSTP
		_, f := expect[*control.Kill](c)
		c.Answer(f, &control.Done{}, nil)
		<-suspended
	}, func(c *talk) {
		c.attached()
		passes(c, unix.SIGCONT, true)
		passes(c, unix.SIGUSR1, true)
		c.done(ok())
		c.left()
	})
	l := newLauncher(t, s, 1)
	l.Signals = signals
	l.Suspend = func() { close(suspended); <-looks }
	l.Started = func(uint32) error { close(started); return nil }
	var once sync.Once
	l.Status = &Status{W: writes(func([]byte) {
		once.Do(func() {
			close(looks)
			signals <- unix.SIGUSR1 // when it is taken, the ranks were continued
		})
	})}
	if code, err := l.run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// Ranks that are held are released although serve is killed at that moment, and a job is ended that
// its user wants to end.
func TestOrdersReachTheNextServe(t *testing.T) {
	signals := make(chan os.Signal, 2)
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		passes(c, unix.SIGCONT, false)
	}, func(c *talk) {
		c.attached()
		passes(c, unix.SIGCONT, true)
		signals <- unix.SIGINT
		passes(c, unix.SIGINT, true)
		signals <- unix.SIGINT
		expect[*control.Kill](c)
	}, func(c *talk) {
		c.attached()
		if m, _ := expect[*control.Kill](c); m.GetJob() != 5 || !m.GetForce() {
			t.Errorf("the job is ended by %v", m)
		}
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 137, Error: control.FromError(control.Failf(control.Code_CODE_KILLED, "killed"))})
		c.left()
	})
	l := newLauncher(t, s, 1)
	l.Signals = signals
	l.Held = func(context.Context, uint32) (bool, error) { return true, nil }
	code, err := l.run(t)
	var interrupted *Interrupted
	if code != 130 || !errors.As(err, &interrupted) {
		t.Errorf("status %d, %v", code, err)
	}
}

// The tasks of an array get the signals, too.
func TestArraySignalsReachTheNextServe(t *testing.T) {
	signals := make(chan os.Signal, 1)
	cut := make(chan struct{})
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None})
		signals <- unix.SIGUSR1
		passes(c, unix.SIGUSR1, false)
	}, func(c *talk) {
		c.attached()
		passes(c, unix.SIGUSR1, true)
		c.says(1, "") // when it is acknowledged, the client has the answer
		expect[*control.Ack](c)
		signals <- unix.SIGTSTP
		passes(c, unix.SIGSTOP, false)
		c.Close()
		close(cut)
	}, func(c *talk) {
		c.attached()
		passes(c, unix.SIGCONT, true)
		c.done(ok())
		c.left()
	})
	l := newLauncher(t, s, 1)
	l.Signals, l.Suspend = signals, func() { <-cut }
	if code, err := runArray(t, l.arrayOf(t, "0")); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// recordedAsker keeps the orders that it gets, and how to answer them.
type recordedAsker struct {
	got     []proto.Message
	answers []func()
}

func (r *recordedAsker) AskThen(m proto.Message, then func(proto.Message, error)) (uint64, error) {
	r.got = append(r.got, m)
	r.answers = append(r.answers, func() { then(&control.Done{}, nil) })
	return 0, nil
}

// Orders are repeated in order, but for those that were answered or that later ones make void.
func TestOrders(t *testing.T) {
	first, second := new(recordedAsker), new(recordedAsker)
	var o orders
	o.over(first)
	given := []proto.Message{
		signalAll(5, unix.SIGUSR1), // answered
		signalAll(5, unix.SIGUSR2), // given again
		signalAll(5, unix.SIGTSTP), // continued
		signalAll(6, unix.SIGTSTP), // of another job
		signalAll(5, unix.SIGTERM),
		signalAll(5, unix.SIGCONT),
		signalAll(5, unix.SIGUSR2),
		endJob(5),
	}
	for _, m := range given {
		o.give(m)
	}
	first.answers[0]()
	o.over(second)
	if !slices.Equal(first.got, given) || !slices.Equal(second.got, given[3:]) {
		t.Errorf("first %v, then %v", first.got, second.got)
	}
	for _, answer := range first.answers { // late, and for orders that were given twice
		answer()
	}
	third := new(recordedAsker)
	if o.over(third); len(third.got) != 0 {
		t.Errorf("repeated are %v", third.got)
	}
	o.give(signalAll(5, unix.SIGCONT))
	o.give(signalAll(5, unix.SIGTTIN))
	fourth := new(recordedAsker)
	if o.over(fourth); len(fourth.got) != 1 || fourth.got[0].(*control.Signal).Signal != int32(unix.SIGTTIN) {
		t.Errorf("repeated are %v", fourth.got)
	}
}
