package serve

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// A node gets no request about a job after the request to forget it: it would keep the job forever.
func TestNothingFollowsForget(t *testing.T) {
	for name, launch := range map[string]func(m *machine, j *job, client *control.Conn){
		"prepare": func(m *machine, j *job, client *control.Conn) {
			m.server.launch(j, new(control.RunRequest), new(control.Frame), client)
		},
		"start": func(m *machine, j *job, _ *control.Conn) {
			m.server.step(j, startTimeout, &control.Start{Job: j.number}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				j, err := m.server.create(spec(4), nil)
				if err != nil {
					t.Fatal(err)
				}
				must[*control.Done](c, &control.Kill{Job: j.number, Force: true})
				<-j.done
				launched := control.NewConn(m.clients.Dial(t))
				t.Cleanup(launched.Close)
				launch(m, j, launched)
				for _, n := range m.played {
					one[*control.Forget](t, &n.recorder)
					none[proto.Message](t, &n.recorder, "after it was to forget the job, a node is asked")
				}
				if c.freeCores() != 4 {
					t.Errorf("%d cores are free", c.freeCores())
				}
			})
		})
	}
}

// The request that ends a job follows the requests that launched it, even if these are not
// answered.
func TestForgetFollowsLaunch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		for _, n := range m.played {
			n.mute["Prepare"] = true
		}
		c.tell(&control.RunRequest{Spec: spec(4)})
		must[*control.Done](m.client(), &control.Kill{Job: 1, Force: true})
		for _, n := range m.played {
			asked := take[proto.Message](&n.recorder)
			if len(asked) != 2 {
				t.Fatalf("node %d is asked %v", n.number, asked)
			}
			_, prepare := asked[0].(*control.Prepare)
			_, forget := asked[1].(*control.Forget)
			if !prepare || !forget {
				t.Errorf("node %d is asked %v", n.number, asked)
			}
		}
	})
}

// A node with a job that serve does not have ends it before it gets others. A job that has just
// ended may be in one more heartbeat.
func TestStrayJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(1))
		n := m.played[0]
		n.silence()
		n.slow = map[string]time.Duration{"Forget": time.Second}
		other := m.played[1]
		n.tell(&control.Heartbeat{Number: 1, Jobs: []uint32{job, 77}})
		n.tell(&control.Heartbeat{Number: 2, Jobs: []uint32{job}})
		n.tell(&control.Heartbeat{Number: 3, Jobs: []uint32{job, 78}})
		none[*control.Forget](t, &n.recorder, "it is to forget what it may have ended since")
		n.tell(&control.Heartbeat{Number: 4, Jobs: []uint32{job, 78}})
		n.tell(&control.Heartbeat{Number: 5, Jobs: []uint32{job, 78}})
		if m := one[*control.Forget](t, &n.recorder); m.Job != 78 {
			t.Errorf("it is to forget job %d", m.Job)
		}
		if free := c.freeCores(); free != 2 {
			t.Errorf("%d cores are free, 2 of them on the other node", free)
		}
		none[*control.Forget](t, &other.recorder, "another node is to forget it as well")
		time.Sleep(2 * time.Second)
		if free := c.freeCores(); free != 3 {
			t.Errorf("%d cores are free when it has ended the job", free)
		}
		if s := c.summary(job); s.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("the job that serve has is now %v", s)
		}
	})
}
