package serve

import (
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
)

// A job that loses a node during its launch gets the rest of its nodes and its spare, although
// others want them. Without another try they are free again after a while.
func TestSpares(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c, other := m.client(), m.client()
		s := spec(4)
		s.Spares, s.Launch = 1, "a launch"
		one := &control.RunRequest{Spec: spec(1)}
		lost := c.begin(&control.RunRequest{Spec: s})
		reply := started(t, lost)
		other.refused(one, control.Code_CODE_NO_ROOM, "0 of 6 are free")
		h := m.local(control.Role_ROLE_HOLDER)
		h.tell(&control.NodeExit{Node: 1, Reason: "it fell over"})
		if state := c.ended(); state.Error == nil || state.Error.Code != control.Code_CODE_LAUNCH_LOST {
			t.Fatalf("job %d ends as %v", reply, state)
		}
		synctest.Wait()
		other.refused(one, control.Code_CODE_NO_ROOM, "0 of 4 are free")
		waiting := m.client()
		patient := spec(2)
		patient.WaitMs = -1
		queued := waiting.begin(&control.RunRequest{Spec: patient})
		waits(t, queued)
		s.Spares = 0
		again := must[*control.RunReply](c, &control.RunRequest{Spec: s})
		if nodes := again.Places; nodes[0].Node != 0 || nodes[3].Node != 2 {
			t.Errorf("the next try is on %v", nodes)
		}
		h.tell(&control.NodeExit{Node: 2, Reason: "it fell over"})
		c.ended()
		waits(t, queued)
		time.Sleep(holdTime + time.Second)
		started(t, queued)
		if len(m.server.held) > 0 {
			t.Errorf("%v are held", m.server.held)
		}
	})
}

// Spares are free as soon as the ranks run, and with a job that fails for another reason.
func TestSparesAreFreed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		s := spec(2)
		s.Spares, s.Launch = 2, "a launch"
		job := c.run(s)
		if free := c.freeCores(); free != 4 {
			t.Errorf("%d cores are free", free)
		}
		m.end(c, job, 2)
		began := must[*control.RunReply](c, &control.RunRequest{Spec: s})
		if free := c.freeCores(); free != 0 {
			t.Errorf("%d cores are free beside spares", free)
		}
		must[*control.Done](c, &control.Kill{Job: began.Job, Force: true})
		c.ended()
		if free := c.freeCores(); free != 6 {
			t.Errorf("%d cores are free in the end", free)
		}
		s.Spares = 3
		c.refused(&control.RunRequest{Spec: s}, control.Code_CODE_NO_ROOM, "2 ranks fit, but --spares 3 needs as many other nodes with enough free cores, and there are 2")
		s.WaitMs = -1
		c.refused(&control.RunRequest{Spec: s}, control.Code_CODE_NO_ROOM, "it would wait for ever: 2 ranks fit, but --spares 3 needs")
	})
}

// What was kept for the next try of a launch is free as soon as that try does not fit.
func TestSparesAreGivenBack(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		s := spec(4)
		s.Spares, s.Launch = 1, "a launch"
		started(t, c.begin(&control.RunRequest{Spec: s}))
		m.local(control.Role_ROLE_HOLDER).tell(&control.NodeExit{Node: 1, Reason: "it fell over"})
		c.ended()
		queued := m.client().begin(&control.RunRequest{Spec: patient(2)})
		waits(t, queued)
		c.refused(&control.RunRequest{Spec: s}, control.Code_CODE_NO_ROOM, "--spares 1 needs")
		started(t, queued)
	})
}
