package launch

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// A signal is passed on; a second interrupt soon after the first ends the job.
func TestSignals(t *testing.T) {
	signals, started := make(chan os.Signal), make(chan struct{})
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		<-started
		for _, sig := range []os.Signal{unix.SIGUSR1, unix.SIGINT, unix.SIGINT} {
			signals <- sig
			if m, f := expect[*control.Signal](c); f != nil && (m.Job != 5 || m.Rank != control.None || m.Signal != int32(sig.(unix.Signal))) {
				t.Errorf("%v is passed on as %v", sig, m)
			}
		}
		if m, f := expect[*control.Kill](c); f == nil || !m.Force || m.Job != 5 {
			t.Errorf("the job is ended with %v", m)
		}
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 137, Error: control.FromError(control.Failf(control.Code_CODE_KILLED, "killed"))})
	})
	l := newLauncher(t, s, 1)
	l.Signals = signals
	l.Started = func(uint32) error { close(started); return nil }
	code, err := l.run(t)
	if code != 130 || err == nil || err.Error() != "job 5 was ended by Ctrl-C" {
		t.Errorf("status %d, %v", code, err)
	}
	told := "margay: SIGINT is sent to the ranks of job 5; Ctrl-C again within 3 s ends the job\nmargay: ending job 5\n"
	if l.status.String() != told {
		t.Errorf("the user is told %q", l.status.String())
	}
}

// Whatever the time between interrupts, each does something: announce, end or leave.
func TestInterrupts(t *testing.T) {
	for _, test := range []struct {
		name  string
		after []time.Duration
		want  []insistence
	}{
		{"twice", []time.Duration{0, 2 * time.Second}, []insistence{announce, end}},
		{"slowly", []time.Duration{0, 4 * time.Second, 4 * time.Second, time.Second}, []insistence{announce, announce, announce, end}},
		{"the limit", []time.Duration{0, insistTime, insistTime - 1}, []insistence{announce, announce, end}},
		{"thrice", []time.Duration{0, time.Second, time.Hour}, []insistence{announce, end, leave}},
	} {
		var i interrupts
		now := time.Now()
		for n, after := range test.after {
			now = now.Add(after)
			if got := i.next(now); got != test.want[n] {
				t.Errorf("%s: interrupt %d means %v", test.name, n, got)
			}
		}
	}
}

func isUSR1(m proto.Message) bool {
	s, is := m.(*control.Signal)
	return is && s.Signal == int32(unix.SIGUSR1)
}

// While there is no job yet, because serve does not answer, a signal ends the client, and one for
// ranks waits for them.
func TestEarlySignals(t *testing.T) {
	signals := make(chan os.Signal, 2)
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		if f != nil {
			signals <- unix.SIGINT
		}
		expect[*control.Ack](c) // until the client has gone
	}, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 1}, nil)
		signals <- unix.SIGINT  // while its files are copied
		expect[*control.Ack](c) // until the client has gone
	}, func(c *talk) {
		c.launched(1)
		for c.Err() == nil && !slices.ContainsFunc(c.serve.messages(), isUSR1) {
			time.Sleep(time.Millisecond)
		}
		c.done(ok())
	})
	launcher := func() *launcher { // files are one run's, which may still read them when it has returned
		l := newLauncher(t, s, 1)
		l.Signals = signals
		return l
	}
	for range 2 {
		if code, err := launcher().run(t); code != 130 || err == nil || err.Error() != "ended by SIGINT" {
			t.Errorf("status %d, %v", code, err)
		}
	}
	signals <- unix.SIGUSR1
	if code, err := launcher().run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// While the files of a job or an array are read, which may take long, a signal ends the client.
func TestSignalWhileFilesAreRead(t *testing.T) {
	for name, run := range map[string]func(*launcher) (int, error){
		"a job":    func(l *launcher) (int, error) { return l.run(t) },
		"an array": func(l *launcher) (int, error) { return runArray(t, l.arrayOf(t, "0")) },
	} {
		t.Run(name, func(t *testing.T) {
			signals, read := make(chan os.Signal, 2), make(chan struct{})
			come := func() {
				signals <- unix.SIGUSR1 // is for ranks
				signals <- unix.SIGINT
			}
			s := new(playedServe)
			if name == "a job" { // which connects in the meantime
				s = serveTo(t, func(c *talk) {
					come()
					expect[*control.RunRequest](c) // the client has gone
				})
			}
			l := newLauncher(t, s, 1)
			l.Signals = signals
			var reading sync.WaitGroup
			begun := make(chan struct{})
			reading.Go(func() {
				l.Files.packing.Do(func() {
					close(begun)
					<-read
				})
			})
			<-begun
			if name == "an array" {
				come()
			}
			if code, err := run(l); code != 130 || err == nil || err.Error() != "ended by SIGINT" {
				t.Errorf("status %d, %v", code, err)
			}
			close(read)
			reading.Wait()
		})
	}
}

// A signal that comes while the client looks for a serve that is away ends the client during a
// launch, as at any other time of it.
func TestSignalWhileServeIsAway(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		l := newLauncher(t, serveTo(t, func(c *talk) {
			_, f := expect[*control.RunRequest](c)
			c.Answer(f, &control.RunReply{Job: 5}, nil)
		}), 1)
		signals := make(chan os.Signal, 1)
		l.Signals = signals
		l.Status = &Status{W: writes(func(text []byte) {
			if strings.Contains(string(text), "looking for it") {
				signals <- sig
			}
		})}
		code, err := l.run(t)
		var interrupted *Interrupted
		if code != 128+int(sig) || !errors.As(err, &interrupted) || interrupted.Signal != sig {
			t.Errorf("%v: status %d, %v", sig, code, err)
		}
	}
}

// writes is a terminal that reports each write.
type writes func(text []byte)

func (w writes) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

// An ended client takes no further signal: it may be meant for the repeated launch.
func TestSignalsOfTheNext(t *testing.T) {
	const tries = 20
	signals := make(chan os.Signal, 1)
	plays := make([]func(*talk), tries)
	for i := range plays {
		plays[i] = func(c *talk) {
			c.launched(1)
			expect[*control.Signal](c)
			c.done(ok())
		}
	}
	l := newLauncher(t, serveTo(t, plays...), 1)
	l.Signals, l.Status = signals, &Status{W: slow{}}
	l.Started = func(uint32) error { signals <- unix.SIGINT; return nil }
	for range tries {
		if code, err := l.run(t); code != 0 {
			t.Fatalf("status %d, %v", code, err)
		}
		signals <- unix.SIGUSR1
		time.Sleep(2 * slowness)
		select {
		case <-signals:
		default:
			t.Fatal("the next signal was taken")
		}
	}
}

// slow is a terminal that takes its time.
type slow struct{}

const slowness = 10 * time.Millisecond

func (slow) Write(text []byte) (int, error) {
	time.Sleep(slowness)
	return len(text), nil
}

// When the terminal closes, the ranks get the signal, and then the job is given up.
func TestHangUp(t *testing.T) {
	signals, started := make(chan os.Signal), make(chan struct{})
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		<-started
		signals <- unix.SIGHUP
		if m, f := expect[*control.Signal](c); f == nil || m.Signal != int32(unix.SIGHUP) {
			t.Errorf("the ranks are told %v", m)
		}
		expect[*control.Ack](c)
	})
	l := newLauncher(t, s, 1)
	l.Signals, l.Started = signals, func(uint32) error { close(started); return nil }
	if code, err := l.run(t); code != ExitMargay || !errors.Is(err, errHangUp) {
		t.Errorf("status %d, %v", code, err)
	}
}

// When another lets held ranks go on, Held ends, and the ranks get standard input. They are not
// continued once more.
func TestHeldContinued(t *testing.T) {
	waits := make(chan struct{})
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		<-waits
		_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None, Halt: int32(unix.SIGCONT)})
		if in, _ := expect[*control.Stdin](c); string(in.GetData()) != "input" {
			t.Errorf("the ranks get %q", in.GetData())
		}
		c.done(ok())
		c.left()
	})
	l := newLauncher(t, s, 1)
	l.Spec.Stdin, l.Stdin = control.StdinMode_STDIN_FIRST, strings.NewReader("input")
	l.Held = func(ctx context.Context, _ uint32) (bool, error) {
		close(waits)
		<-ctx.Done()
		return false, ctx.Err()
	}
	if code, err := l.run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
	for _, m := range s.messages() {
		if signal, is := m.(*control.Signal); is {
			t.Errorf("the ranks get %v", signal)
		}
	}
}
