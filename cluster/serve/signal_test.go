package serve

import (
	"slices"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// A signal of a client reaches nodes that are away when they are back, and is answered then.
func TestSignalWaitsForNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(3))
		m.played[1].conn.Close()
		synctest.Wait()
		all := func(sig unix.Signal) *control.Signal {
			return &control.Signal{Job: job, Rank: control.None, Signal: int32(sig)}
		}
		usr, term, again := c.begin(all(unix.SIGUSR1)), c.begin(all(unix.SIGTERM)), c.begin(all(unix.SIGTERM))
		want := []unix.Signal{unix.SIGUSR1, unix.SIGTERM, unix.SIGTERM}
		if got := signals(m.played[0]); !slices.Equal(got, want) {
			t.Errorf("node 0 gets %v", got)
		}
		waits(t, usr)
		waits(t, again)
		answered(t, term) // the other one is the same
		m.played[1].hosts(job, control.JobPhase_JOB_RUNNING)
		m.played[1].connect()
		if got := signals(m.played[1]); !slices.Equal(got, want[:2]) {
			t.Errorf("node 1 gets %v", got)
		}
		answered(t, usr)
		answered(t, again)
		m.played[1].connect()
		if got := signals(m.played[1]); len(got) != 0 {
			t.Errorf("connected again, node 1 gets %v", got)
		}
		must[*control.Done](c, all(unix.SIGUSR2))
		must[*control.Done](c, &control.Signal{Job: job + 1, Rank: control.None, Signal: int32(unix.SIGUSR2)}) // which there is not
	})
}

// answered demands the answer Done.
func answered(t *testing.T, answer <-chan asked) {
	t.Helper()
	synctest.Wait()
	select {
	case a := <-answer:
		if _, done := a.message.(*control.Done); !done {
			t.Fatalf("answered with %v, %v", a.message, a.err)
		}
	default:
		t.Fatal("it waits still")
	}
}

// The signals that wait for a node are bounded.
func TestSignalsThatWaitAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(1))
		m.played[0].conn.Close()
		synctest.Wait()
		for sig := range int32(3 * mostWaiting) {
			c.tell(&control.Signal{Job: job, Rank: control.None, Signal: 1000 + sig})
		}
		m.played[0].hosts(job, control.JobPhase_JOB_RUNNING)
		m.played[0].connect()
		if got := signals(m.played[0]); len(got) != mostWaiting || got[0] != 1000+2*mostWaiting {
			t.Errorf("%d come: %v", len(got), got)
		}
	})
}

// A signal for a job that is being launched reaches its ranks when they have started: before, a
// node has none.
func TestSignalDuringLaunch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(3)})
		for rank, sig := range map[int32]unix.Signal{control.None: unix.SIGTERM, 2: unix.SIGUSR1} {
			must[*control.Done](m.client(), &control.Kill{Job: reply.Job, Rank: rank, Signal: int32(sig)})
		}
		for _, n := range m.played {
			if got := signals(n); len(got) > 0 {
				t.Errorf("before it has ranks, node %d gets %v", n.number, got)
			}
			n.tell(&control.Loaded{Job: reply.Job})
		}
		for i, want := range [][]unix.Signal{{unix.SIGTERM}, {unix.SIGUSR1, unix.SIGTERM}} {
			got := signals(m.played[i])
			if slices.Sort(got); !slices.Equal(got, want) {
				t.Errorf("node %d gets %v", i, got)
			}
		}
	})
}
