package serve

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// asked returns how many nodes have got a request since the last call.
func (m *machine) asked(request proto.Message) (nodes int) {
	synctest.Wait()
	for _, n := range m.played {
		n.mu.Lock()
		for i, got := range n.got {
			if got.ProtoReflect().Descriptor() == request.ProtoReflect().Descriptor() {
				n.got = slices.Delete(n.got, i, i+1)
				nodes++
				break
			}
		}
		n.mu.Unlock()
	}
	return nodes
}

// Only as many nodes as serve asks at a time take part in a launch, or in the end of a job. A mute
// node holds up no other for long.
func TestNodesInTurns(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 5, func(c *Config) { c.AtOnce = 2 })
		for _, n := range m.played {
			n.slow = map[string]time.Duration{"Prepare": time.Second, "Start": time.Second, "Forget": time.Second}
		}
		inTurns := func(request proto.Message, turns ...int) {
			t.Helper()
			for i, want := range turns {
				if got := m.asked(request); got != want {
					t.Errorf("turn %d: %d nodes get %T", i, got, request)
				}
				time.Sleep(time.Second)
			}
			if got := m.asked(request); got != 0 {
				t.Errorf("%d more nodes get %T", got, request)
			}
		}
		c := m.client()
		c.tell(&control.RunRequest{Spec: spec(10)})
		inTurns(new(control.Prepare), 2, 2, 1)
		for _, n := range m.played {
			n.tell(&control.Loaded{Job: 1})
		}
		inTurns(new(control.Start), 2, 2, 1)
		m.played[1].mute["Forget"] = true
		must[*control.Done](c, &control.Kill{Job: 1, Rank: control.None, Force: true})
		inTurns(new(control.Forget), 2, 1, 1, 1)
		time.Sleep(forgetTimeout)
		if free := c.freeCores(); free != 8 {
			t.Errorf("%d cores are free, one node does not forget the job", free)
		}
	})
}

// A node gets the signals for ranks that it has yet to start when it has started them, once each.
func TestSignalWhileStarting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const takes = 10 * time.Second
		m := up(t, 2, func(c *Config) { c.AtOnce = 1 })
		for _, n := range m.played {
			n.slow = map[string]time.Duration{"Start": takes}
		}
		c := m.client()
		c.tell(&control.RunRequest{Spec: spec(4)})
		for _, n := range m.played {
			n.tell(&control.Loaded{Job: 1})
		}
		time.Sleep(takes + time.Second) // the first node has started its ranks
		for _, sig := range []unix.Signal{unix.SIGUSR1, unix.SIGINT, unix.SIGUSR1} {
			c.halt(1, sig)
		}
		must[*control.Done](c, &control.Kill{Job: 1, Rank: 2, Signal: int32(unix.SIGUSR1)})
		synctest.Wait()
		if got := signals(m.played[0]); !slices.Equal(got, []unix.Signal{unix.SIGUSR1, unix.SIGINT, unix.SIGUSR1}) {
			t.Errorf("node 0, whose ranks run, gets %v", got)
		}
		none[*control.Signal](t, &m.played[1].recorder, "its ranks do not run")
		time.Sleep(takes)
		if got := signals(m.played[1]); !slices.Equal(got, []unix.Signal{unix.SIGINT, unix.SIGUSR1, unix.SIGUSR1}) {
			t.Errorf("node 1, whose ranks run now, gets %v", got)
		}
		c.halt(1, unix.SIGINT)
		synctest.Wait()
		if got := signals(m.played[1]); !slices.Equal(got, []unix.Signal{unix.SIGINT}) {
			t.Errorf("node 1 gets %v", got)
		}
	})
}

// A client cannot make serve keep any number of signals.
func TestSignalsWhileStartingAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.played[0].slow = map[string]time.Duration{"Start": time.Second}
		c := m.client()
		c.tell(&control.RunRequest{Spec: spec(1)})
		m.played[0].tell(&control.Loaded{Job: 1})
		for i := range int32(3 * mostWaiting) {
			c.tell(&control.Signal{Job: 1, Rank: control.None, Signal: 100 + i})
		}
		time.Sleep(time.Second)
		if got := signals(m.played[0]); len(got) != mostWaiting || got[0] != 100+2*mostWaiting {
			t.Errorf("it gets %d signals, the first is %d", len(got), got[0])
		}
	})
}

// A node that starts its ranks for a restarted serve, which ends the job, gets the signal when it
// has them.
func TestEndedWhileStartingAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		job := m.client().run(spec(4))
		m.played[0].exits(job, 1, 0, 3, 0)
		m.restart()
		m.attach(job)
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		m.played[1].slow = map[string]time.Duration{"Start": 3 * time.Second}
		m.back(job, control.JobPhase_JOB_PREPARED, 1)
		time.Sleep(2500 * time.Millisecond)
		signals(m.played[1])
		time.Sleep(time.Second)
		if got := signals(m.played[1]); !slices.Equal(got, []unix.Signal{unix.SIGKILL}) {
			t.Errorf("when its ranks have started, it gets %v", got)
		}
	})
}

// A job whose ranks are ended while nodes have yet to start theirs does not fail because these have
// not ended: a node gets the signal when it has started them.
func TestEndedWhileStarting(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const takes = 10 * time.Second
		m := up(t, 3, func(c *Config) { c.AtOnce = 1 })
		for _, n := range m.played {
			n.slow = map[string]time.Duration{"Start": takes}
		}
		c := m.client()
		c.tell(&control.RunRequest{Spec: spec(6)})
		for _, n := range m.played {
			n.tell(&control.Loaded{Job: 1})
		}
		time.Sleep(time.Second)
		m.played[0].exits(1, 1, 0, 3, 0)
		for i, n := range m.played {
			time.Sleep(takes)
			signals := take[*control.Signal](&n.recorder) // the last one follows the start
			if len(signals) == 0 || unix.Signal(signals[len(signals)-1].Signal) != unix.SIGKILL {
				t.Errorf("node%d, whose ranks have started, got %v", i, signals)
			}
			for rank := range uint32(2) {
				if rank > 0 || i > 0 {
					n.exits(1, uint64(rank)+1, uint32(2*i)+rank, 0, 9)
				}
			}
		}
		c.ackAll()
		states := take[*control.JobState](&c.recorder)
		if state := states[len(states)-1]; state.Phase != control.JobPhase_JOB_DONE || state.Error != nil || state.ExitCode != 3 {
			t.Errorf("it ended with %v", state)
		}
	})
}
