package serve

import (
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// halt sends a signal to the ranks of a job, as margay kill and Ctrl-Z do.
func (c *playedClient) halt(job uint32, sig unix.Signal) {
	must[*control.Done](c, &control.Kill{Job: job, Rank: control.None, Signal: int32(sig)})
}

// isStopped reports whether a job is listed as stopped.
func (c *playedClient) isStopped(job uint32) bool {
	jobs := must[*control.Jobs](c, &control.ListJobs{Job: job})
	return len(jobs.Jobs) == 1 && jobs.Jobs[0].Stopped
}

// A stopped job stays stopped on all nodes, including nodes that were away, and across a restart of
// serve, until it is continued.
func TestHalt(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(3))
		sent := func(what string, want ...[]unix.Signal) {
			t.Helper()
			for i, n := range m.played {
				if got := signals(n); !slices.Equal(got, want[i]) {
					t.Errorf("%s: node %d gets %v instead of %v", what, i, got, want[i])
				}
			}
		}
		stop, cont := []unix.Signal{unix.SIGSTOP}, []unix.Signal{unix.SIGCONT}
		away := func() {
			m.played[1].conn.Close()
			synctest.Wait()
		}
		back := func() {
			m.played[1].hosts(job, control.JobPhase_JOB_RUNNING)
			m.played[1].connect()
		}
		away()
		c.halt(job, unix.SIGSTOP)
		sent("stop, node 1 away", stop, nil)
		back()
		sent("node 1 is back", nil, stop)
		if !c.isStopped(job) {
			t.Error("it is not listed as stopped")
		}
		must[*control.Done](c, &control.Kill{Job: job, Rank: 0, Signal: int32(unix.SIGCONT)})
		sent("one rank", cont, nil)
		if !c.isStopped(job) {
			t.Error("one rank has continued the job")
		}
		m.restart()
		c = m.attach(job)
		m.back(job, control.JobPhase_JOB_RUNNING, 0, 1)
		sent("serve is restarted", stop, stop)
		away()
		c.halt(job, unix.SIGCONT)
		back()
		sent("continue, node 1 away", cont, cont)
		if c.isStopped(job) {
			t.Error("it is listed as stopped")
		}
	})
}

// A stopped job that is asked to end continues, so that its ranks can handle the signal.
func TestHaltedJobEnds(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(m *machine, c *playedClient, job uint32)
		want []unix.Signal
	}{
		{"kill", func(_ *machine, c *playedClient, job uint32) { c.halt(job, unix.SIGTERM) }, []unix.Signal{unix.SIGTERM, unix.SIGCONT}},
		{"interrupt", func(_ *machine, c *playedClient, job uint32) { c.halt(job, unix.SIGINT) }, []unix.Signal{unix.SIGINT}},
		{"rank fails", func(m *machine, _ *playedClient, job uint32) { m.played[1].exits(job, 1, 2, 6, 0) }, []unix.Signal{unix.SIGTERM, unix.SIGCONT}},
	} {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				job := c.run(spec(3))
				c.halt(job, unix.SIGSTOP)
				signals(m.played[0])
				test.end(m, c, job)
				synctest.Wait()
				if got := signals(m.played[0]); !slices.Equal(got, test.want) {
					t.Errorf("node 0 gets %v instead of %v", got, test.want)
				}
			})
		})
	}
}

// The ranks of a job that is stopped during its launch are stopped.
func TestHaltedDuringLaunch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, n := m.client(), m.played[0]
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(1)})
		c.halt(reply.Job, unix.SIGSTOP)
		signals(n)
		n.tell(&control.Loaded{Job: reply.Job})
		one[*control.Start](t, &n.recorder)
		if got := signals(n); !slices.Equal(got, []unix.Signal{unix.SIGSTOP}) || !c.isStopped(reply.Job) {
			t.Errorf("its node gets %v", got)
		}
	})
}

// The client of a job that is held is notified when another lets it go on, also if that is in the
// past when it comes back. The client of another job is not.
func TestHeldContinued(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		held := spec(2)
		held.Hold = true
		c, other := m.client(), m.client()
		job := c.run(held)
		other.halt(job, unix.SIGCONT)
		if state := one[*control.JobState](t, &c.recorder); state.Phase != control.JobPhase_JOB_RUNNING || unix.Signal(state.Halt) != unix.SIGCONT {
			t.Errorf("the client is notified of %v", state)
		}
		stopped := c.run(spec(1))
		other.halt(stopped, unix.SIGSTOP)
		other.halt(stopped, unix.SIGCONT)
		none[*control.JobState](t, &c.recorder, "it is not held")
		m.restart()
		if state := must[*control.JobState](m.client(), &control.Attach{Job: job}); unix.Signal(state.Halt) != unix.SIGCONT {
			t.Errorf("a client that comes back finds %v", state)
		}
	})
}
