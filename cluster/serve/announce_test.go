package serve

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// lastWords ends both ranks of a node well, and makes the node report which files are lost with the
// job.
func lastWords(n *playedNode, job uint32, unkept *control.Unkept) {
	n.exits(job, 1, uint32(2*n.number), 0, 0)
	n.tell(&control.Record{
		Job: job, Seq: 2, Rank: uint32(2*n.number) + 1, Stream: control.Stream_STREAM_EXIT, Exit: new(control.ExitStatus), Last: true, Unkept: unkept,
	})
}

// The client of a job learns of its end before slow nodes have forgotten the job, if their last
// records are complete. The job looks ended then, but no other job gets its cores until the nodes
// have forgotten it: placement is unaffected.
func TestEndBeforeNodesForget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 2)
		m.played[1].answers = map[string]proto.Message{"SetDuties": &control.DutiesSet{Info: m.played[1].register().Info}}
		for _, n := range m.played {
			n.connect()
		}
		const slow = 5 * time.Second
		m.played[1].slow = map[string]time.Duration{"Forget": slow}
		c := m.client()
		job := c.run(spec(4))
		lastWords(m.played[0], job, &control.Unkept{Node: 7, Files: 1, Names: []string{"result"}})
		lastWords(m.played[1], job, new(control.Unkept))
		for _, r := range c.ackAll() {
			if r.Unkept != nil {
				t.Errorf("the client gets %v", r)
			}
		}
		state := c.ended()
		if len(state.Unkept) != 1 || state.Unkept[0].Node != 0 || state.Unkept[0].Names[0] != "result" || state.ExitCode != 0 {
			t.Errorf("it ended as %v", state)
		}
		c.conn.Close()
		synctest.Wait() // serve has noticed that
		other := m.client()
		if s := other.summary(job); s.Phase != control.JobPhase_JOB_DONE || s.EndNs == 0 || other.freeCores() != 4 {
			t.Errorf("it is listed as %v, and %d cores are free", s, other.freeCores())
		}
		if state := must[*control.JobState](m.client(), &control.Attach{Job: job}); state.Phase != control.JobPhase_JOB_DONE {
			t.Errorf("a client that comes back gets %v", state)
		}
		if _, err := other.ask(&control.RunRequest{Spec: spec(5)}); err == nil || strings.Contains(err.Error(), "has the others") {
			t.Errorf("a job that is too large is refused with %v", err)
		}
		duties := other.begin(&control.SetDuties{Node: 1})
		synctest.Wait()
		if early := take[*control.SetDuties](&m.played[1].recorder); len(early) > 0 {
			t.Errorf("the duties of cores change that look free and are not: %v", early)
		}
		took := time.Now()
		reply := must[*control.RunReply](other, &control.RunRequest{Spec: spec(4)})
		if waited := time.Since(took); waited != slow || reply.Places[0].Node != 0 {
			t.Errorf("the next job has waited for %v, and is at %v", waited, reply.Places)
		}
		if set := <-duties; set.err != nil {
			t.Errorf("then the duties do not change: %v", set.err)
		}
		for _, n := range m.played {
			if forgets := take[*control.Forget](&n.recorder); len(forgets) != 1 {
				t.Errorf("node %d is to forget %v", n.number, forgets)
			}
		}
	})
}

// A serve that is restarted before nodes have forgotten a job makes them forget it, and keeps its
// end.
func TestRestartBeforeNodesForget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		m.played[1].mute["Forget"] = true
		c := m.client()
		job := c.run(spec(4))
		lastWords(m.played[0], job, new(control.Unkept))
		lastWords(m.played[1], job, new(control.Unkept))
		c.ackAll()
		c.ended()
		m.restart()
		delete(m.played[1].mute, "Forget")
		m.played[0].connect()
		m.back(job, control.JobPhase_JOB_DONE, 1)
		other := m.client()
		time.Sleep(time.Second)
		if s := other.summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 0 || other.freeCores() != 4 {
			t.Errorf("it is listed as %v, and %d cores are free", s, other.freeCores())
		}
	})
}

// A client that knows that a job has ended may reboot the job's nodes.
func TestRebootBeforeNodesForget(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		m.played[0].mute["Forget"] = true
		m.playHolder(func(*playedClient, *control.RebootNode) error { return nil })
		c := m.client()
		job := c.run(spec(2))
		lastWords(m.played[0], job, new(control.Unkept))
		c.ackAll()
		c.ended()
		must[*control.Done](m.client(), reboots(false, 0))
	})
}
