package launch

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/cluster/control"
)

// When serve is started again the job goes on: nothing is printed twice, and what was not
// acknowledged is waited for.
func TestReconnect(t *testing.T) {
	s := serveTo(t,
		func(c *talk) {
			c.launched(1)
			c.says(1, "a")
			expect[*control.Ack](c)
		},
		func(c *talk) { expect[*control.Attach](c) }, // it is killed again before it can answer
		func(c *talk) {
			c.attached()
			c.says(3, "c") // the one before it was lost with the connection
			c.says(1, "a")
			c.says(2, "b")
			for {
				if ack, f := expect[*control.Ack](c); f == nil || ack.Seq == 2 {
					break
				}
			}
			c.done(ok())
		})
	l := newLauncher(t, s, 1)
	if code, err := l.run(t); code != 0 || err != nil || l.stdout.String() != "ab" {
		t.Errorf("status %d, %v, output %q", code, err, l.stdout.String())
	}
	if !strings.Contains(l.status.String(), "the connection to serve is lost") || !strings.Contains(l.status.String(), "job 5 goes on") {
		t.Errorf("the user is told %q", l.status.String())
	}
}

func TestEndedMeanwhile(t *testing.T) {
	s := serveTo(t, func(c *talk) { c.launched(1) }, func(c *talk) {
		_, f := expect[*control.Attach](c)
		c.Answer(f, &control.JobState{Job: 5, Phase: control.JobPhase_JOB_DONE, FirstFailed: control.None, ExitCode: 125, Error: &control.Error{Text: "x", Node: -1, Rank: -1}}, nil)
		expect[*control.Ack](c)
	})
	if code, err := newLauncher(t, s, 1).run(t); code != 125 || err == nil || err.Error() != "x" {
		t.Errorf("status %d, %v", code, err)
	}
}

// What ends the job and the end of the connection can come together. It is the job's end that
// counts.
func TestEndAndHangUp(t *testing.T) {
	near, far := net.Pipe()
	far.Close()
	conn := control.NewConn(near)
	conn.Close()
	for range 50 {
		s := &session{Options: Options{Socket: "/no/such/socket", Status: &Status{W: io.Discard}, Spec: new(control.JobSpec)}, conn: conn,
			running: make(chan struct{}), ended: make(chan *control.JobState, 1), failed: make(chan error, 1)}
		s.ended <- &control.JobState{FirstFailed: control.None, ExitCode: 125, Error: &control.Error{Text: "the machine goes down", Node: -1, Rank: -1}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		code, err := s.wait(ctx)
		cancel()
		if code != 125 || err == nil || err.Error() != "the machine goes down" {
			t.Fatalf("status %d, %v", code, err)
		}
	}
}

// A launch that a restart of serve has spoilt is repeated, but not for ever.
func TestSpoiltLaunch(t *testing.T) {
	cut := func(c *talk) { expect[*control.RunRequest](c) }
	spoilt := func(c *talk) {
		c.launched(1)
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 125, Error: control.FromError(control.Failf(control.Code_CODE_RESTARTED, "serve was started again"))})
		expect[*control.Ack](c)
	}
	s := serveTo(t, cut, spoilt, func(c *talk) {
		c.launched(1)
		c.done(ok())
	})
	if code, err := newLauncher(t, s, 1).run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
	s = serveTo(t, slices.Repeat([]func(*talk){cut}, launchTries)...)
	if code, err := newLauncher(t, s, 1).run(t); code != ExitMargay || !errors.Is(err, errSpoilt) {
		t.Errorf("status %d, %v", code, err)
	}
}

// A launch that has lost a node is repeated with a warning that names it, but not for ever, and not
// at all where that is not wanted.
func TestLaunchLosesNode(t *testing.T) {
	lost := func(c *talk) {
		c.launched(1)
		failure := control.Failf(control.Code_CODE_LAUNCH_LOST, "it was killed").At(1)
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 125, Error: control.FromError(failure)})
		expect[*control.Ack](c)
	}
	l := newLauncher(t, serveTo(t, lost, func(c *talk) {
		c.launched(1)
		c.done(ok())
	}), 1)
	if code, err := l.run(t); code != 0 || err != nil || !strings.Contains(l.status.String(), "node1: it was killed; starting it again") {
		t.Errorf("status %d, %v, the user reads %q", code, err, l.status.String())
	}
	l = newLauncher(t, serveTo(t, slices.Repeat([]func(*talk){lost}, launchTries)...), 1)
	if code, err := l.run(t); code != ExitMargay || err == nil || !strings.Contains(err.Error(), "node1: it was killed; given up after 5 tries") {
		t.Errorf("status %d, %v", code, err)
	}
	l = newLauncher(t, serveTo(t, lost), 1)
	l.NoRetry = true
	if code, err := l.run(t); code != ExitMargay || err == nil || !strings.Contains(err.Error(), "node1: it was killed") {
		t.Errorf("with NoRetry: status %d, %v", code, err)
	}
}

// A launch that the end of the machine has cut short is not repeated.
func TestMachineGoesDownDuringLaunch(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		expect[*control.RunRequest](c)
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 125, Error: control.FromError(control.Failf(control.Code_CODE_NODE_LOST, "the machine goes down"))})
	})
	if code, err := newLauncher(t, s, 1).run(t); code != ExitMargay || err == nil || err.Error() != "the machine goes down" {
		t.Errorf("status %d, %v", code, err)
	}
}

// What serve says of its end is the end of the job, whether it was launched or runs: no other serve
// is looked for.
func TestMachineGoesDown(t *testing.T) {
	for name, before := range map[string]func(c *talk){
		"while it is launched": func(c *talk) { expect[*control.RunRequest](c) },
		"while it runs":        func(c *talk) { c.launched(1) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLauncher(t, serveTo(t, func(c *talk) {
				before(c)
				c.Dismiss(control.Failf(control.Code_CODE_DOWN, "the machine goes down"))
			}), 1)
			if code, err := l.run(t); code != ExitMargay || err == nil || err.Error() != "the machine goes down" || strings.Contains(l.status.String(), "looking") {
				t.Errorf("status %d, %v, the user is told %q", code, err, l.status.String())
			}
		})
	}
}

// A machine that has gone without a word is looked for until its folder is gone.
func TestMachineIsGone(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		if err := os.RemoveAll(filepath.Dir(c.serve.socket)); err != nil {
			t.Error(err)
		}
	})
	if code, err := newLauncher(t, s, 1).run(t); code != ExitMargay || err == nil || err.Error() != "job 5 is lost: the machine is gone" {
		t.Errorf("status %d, %v", code, err)
	}
}

// blockedWriter is a reader of output that does not read until it is released.
type blockedWriter struct {
	released chan struct{}
	to       io.Writer
}

func (b *blockedWriter) Write(data []byte) (int, error) {
	select {
	case <-b.released:
		return b.to.Write(data)
	case <-time.After(patience): // so that the test ends
		return 0, os.ErrDeadlineExceeded
	}
}

// A job whose output is not read goes on when serve is started again, twice.
func TestReconnectWithBlockedReader(t *testing.T) {
	const large, all = 3, 250
	text := strings.Repeat("x", outletBytes/2)
	says := func(c *talk) {
		for seq := range uint64(large) {
			c.says(seq+1, text)
		}
		for seq := range uint64(all - large) { // to be taken before the end of the connection is seen
			c.says(large+seq+1, "y")
		}
		c.Flush(patience)
	}
	blocked := &blockedWriter{released: make(chan struct{})}
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		if err := c.NetConn().(*net.UnixConn).SetWriteBuffer(1 << 20); err != nil { // for all of it
			t.Error(err)
		}
		says(c)
	}, func(c *talk) {
		c.attached()
		c.says(1, text) // again
		c.Flush(patience)
	}, func(c *talk) {
		c.attached()
		close(blocked.released)
		says(c)
		for {
			if ack, f := expect[*control.Ack](c); f == nil || ack.Seq == all {
				break
			}
		}
		c.done(ok())
		c.left()
	})
	l := newLauncher(t, s, 1)
	blocked.to, l.Stdout = &l.stdout, blocked
	if code, err := l.run(t); code != 0 || err != nil || l.stdout.String() != strings.Repeat(text, large)+strings.Repeat("y", all-large) {
		t.Errorf("status %d, %v, %d bytes of output", code, err, l.stdout.Len())
	}
}
