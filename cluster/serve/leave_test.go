package serve

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// A client of several jobs can leave one of them, and withdraw one of its requests, without the
// others.
func TestLeave(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		left, stays := c.run(spec(1)), c.run(spec(1))
		other.tell(&control.Leave{Job: left})
		c.tell(&control.Leave{Job: stays + 1}) // there is none
		none[*control.Forget](t, &m.played[0].recorder, "a stranger leaves a job")
		c.tell(&control.Leave{Job: left})
		if f := one[*control.Forget](t, &m.played[0].recorder); f.Job != left {
			t.Errorf("the node must forget %v", f)
		}
		if s := other.summary(left); s.Phase != control.JobPhase_JOB_DONE || s.Error != "its margay run is gone" {
			t.Errorf("it is recorded as %v", s)
		}
		if s := other.summary(stays); s.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("the other one is recorded as %v", s)
		}
		none[*control.JobState](t, &c.recorder, "the end of a job comes to a client that has left it")

		answers := make(chan error, 1)
		call, err := c.conn.AskThen(&control.RunRequest{Spec: patient(2)}, func(_ proto.Message, err error) { answers <- err })
		if err != nil {
			t.Fatal(err)
		}
		waiting := c.begin(&control.RunRequest{Spec: patient(2)})
		other.tell(&control.Withdraw{Call: call})
		c.tell(&control.Withdraw{Call: call + 1000})
		if len(answers) > 0 {
			t.Error("a stranger withdraws a request")
		}
		c.tell(&control.Withdraw{Call: call})
		synctest.Wait()
		select {
		case err := <-answers:
			if !errors.Is(err, &control.Failure{Code: control.Code_CODE_KILLED}) {
				t.Errorf("a request that is withdrawn: %v", err)
			}
		default:
			t.Error("a request that is withdrawn has no answer")
		}
		waits(t, waiting)
	})
}

// A job that its client gives up has the reason of the client, which may have any length.
func TestGivenUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		job := c.run(spec(1))
		c.tell(&control.Leave{Job: job, Why: "write output: no space\n" + strings.Repeat("x", 1000)})
		one[*control.Forget](t, &m.played[0].recorder)
		if s := other.summary(job); !strings.HasPrefix(s.Error, "its margay run gave up: write output: no space?xxx") || len(s.Error) > 2*maxWhy {
			t.Errorf("it is recorded as %v", s)
		}
	})
}

// While serve does not know yet which cores the machine has, a client of several jobs can attach to
// those that go on. Its requests for others wait in order, also for what withdraws one.
func TestRequestsRightAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		job := m.client().run(spec(1))
		m.restart()
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		c := m.client()
		answers := make(chan error, 1)
		call, err := c.conn.AskThen(&control.RunRequest{Spec: patient(4)}, func(_ proto.Message, err error) { answers <- err })
		if err != nil {
			t.Fatal(err)
		}
		waiting := c.begin(&control.RunRequest{Spec: patient(1)})
		if state := must[*control.JobState](c, &control.Attach{Job: job}); state.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("it attaches to %v", state)
		}
		c.tell(&control.Withdraw{Call: call})
		waits(t, waiting)
		m.played[1].connect()
		started(t, waiting)
		if err := <-answers; !errors.Is(err, &control.Failure{Code: control.Code_CODE_KILLED}) {
			t.Errorf("the request that is withdrawn: %v", err)
		}
		if s := c.summary(job); s.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("the job that goes on is %v", s)
		}
	})
}

// Requests that wait for serve to know the cores count as what they take in memory.
func TestLargeRequestRightAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.restart()
		c := m.client()
		words := func(n int) proto.Message {
			return &control.RunRequest{Spec: patient(1), Exec: &control.Exec{Env: make([][]byte, n)}}
		}
		c.begin(words(1000))
		must[*control.Nodes](c, &control.ListNodes{}) // the connection is read on
		c.begin(words(control.MaxFrame / wordSize))
		waits(t, c.begin(&control.ListNodes{}))
	})
}
