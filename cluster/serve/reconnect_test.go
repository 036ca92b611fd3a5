package serve

import (
	"errors"
	"testing"
	"time"

	"margay/cluster/control"
)

// A node that returns is asked to end jobs that no longer exist, and gets no new job until it has
// done so.
func TestNodeHasOldJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		n := m.played[0]
		n.mute["Forget"] = true
		n.hosts(17, control.JobPhase_JOB_RUNNING)
		n.connect()
		if f := one[*control.Forget](t, &n.recorder); f.Job != 17 {
			t.Errorf("it is to forget %v", f)
		}
		none[*control.Rewind](t, &n.recorder, "nobody wants its output")
		if free := m.client().freeCores(); free != 0 {
			t.Errorf("%d cores are free, on which there may be processes", free)
		}
		n.mute["Forget"] = false
		n.connect()
		if free := m.client().freeCores(); free != 2 {
			t.Errorf("%d cores are free", free)
		}
	})
}

// A node whose connection broke continues its jobs, and resends messages that may have been lost
// with the connection.
func TestNodeReconnects(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(1))
		n := m.played[0]
		old := n.conn
		n.hosts(job, control.JobPhase_JOB_RUNNING)
		n.connect() // before serve has noticed the end of the old connection
		<-old.Done()
		if r := one[*control.Rewind](t, &n.recorder); r.Job != job {
			t.Errorf("it is to rewind %v", r)
		}
		n.exits(job, 1, 0, 0, 0)
		c.ackAll()
		if state := c.ended(); state.ExitCode != 0 {
			t.Errorf("it ended as %v", state)
		}
	})
}

// serve cannot know which parts of a launch a reconnecting node has lost, so the client can ask for
// the job again. A job whose launch is complete continues.
func TestNodeReconnectsDuringLaunch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		running := c.run(spec(1))
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(3)})
		m.played[1].tell(&control.Loaded{Job: reply.Job})
		m.played[0].jobs = []*control.HostedJob{{Job: running, Phase: control.JobPhase_JOB_RUNNING}, {Job: reply.Job, Phase: control.JobPhase_JOB_PREPARED}}
		m.played[0].connect()
		state := c.ended()
		if state.Job != reply.Job || !errors.Is(state.Error.Err(), &control.Failure{Code: control.Code_CODE_RESTARTED}) ||
			state.Error.Err().Error() != "node0: it connected again while the job was being launched" {
			t.Errorf("it ended as %v", state)
		}
		if s := c.summary(running); s.Phase != control.JobPhase_JOB_RUNNING || c.freeCores() != 3 {
			t.Errorf("the other job is %v", s)
		}
	})
}

// The same holds if the connection breaks while the node is asked to prepare the job, whenever the
// node returns. A node that does not return is dead.
func TestNodeReconnectsAtPrepare(t *testing.T) {
	for _, back := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			m := up(t, 2)
			c := m.client()
			n := m.played[1]
			n.mute["Prepare"] = true
			if err := c.conn.Send(&control.RunRequest{Spec: spec(4)}); err != nil {
				t.Fatal(err)
			}
			one[*control.Prepare](t, &n.recorder)
			n.conn.Close()
			time.Sleep(time.Second)
			none[*control.JobState](t, &c.recorder, "the node may come back")
			code, says := control.Code_CODE_LAUNCH_LOST, "node1: it has been silent for 10s; if it stays silent, margay node reboot -m m node1 reboots it; machine up --dead-after waits longer on a busy host"
			if back {
				code, says = control.Code_CODE_RESTARTED, "node1: it connected again while the job was being launched"
				n.connect()
			} else {
				time.Sleep(13 * time.Second)
			}
			if state := c.ended(); !errors.Is(state.Error.Err(), &control.Failure{Code: code}) || state.Error.Err().Error() != says {
				t.Errorf("it ended as %v", state)
			}
			none[*control.Start](t, &m.played[0].recorder, "it was started")
		})
	}
}

// A node that loses its connection while it is asked to start a job is asked again, unless it has
// received the request.
func TestNodeReconnectsAtStart(t *testing.T) {
	for phase, starts := range map[control.JobPhase]int{control.JobPhase_JOB_PREPARED: 2, control.JobPhase_JOB_RUNNING: 1} {
		bubble(t, func(t *testing.T) {
			m := up(t, 2)
			c := m.client()
			n := m.played[1]
			n.mute["Start"] = true
			reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(4)})
			for _, n := range m.played {
				n.tell(&control.Loaded{Job: reply.Job})
			}
			n.mute["Start"] = false
			n.hosts(reply.Job, phase)
			n.connect()
			if state := one[*control.JobState](t, &c.recorder); state.Phase != control.JobPhase_JOB_RUNNING {
				t.Errorf("the job is %v", state)
			}
			if got := take[*control.Start](&n.recorder); len(got) != starts {
				t.Errorf("a node that had the job as %v was told to start it %d times", phase, len(got))
			}
		})
	}
}
