package serve

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// asked is the answer to a request. The test continues before the answer arrives.
type asked struct {
	message proto.Message
	err     error
}

// begin sends a request without waiting for the answer.
func (c *playedClient) begin(request proto.Message) <-chan asked {
	answer := make(chan asked, 1)
	go func() {
		m, err := c.ask(request)
		answer <- asked{m, err}
	}()
	synctest.Wait()
	return answer
}

// A job that lacks a late node waits for it and reports that; it is refused if the node does not
// come back, and at once if it would not fit even with the node.
func TestRoomOfLateNodes(t *testing.T) {
	noRoom := &control.Failure{Code: control.Code_CODE_NO_ROOM}
	cases := []struct {
		name  string
		ranks uint32
		back  bool
		waits bool
	}{
		{"back", 4, true, true},
		{"dead", 4, false, true},
		{"too many", 5, true, false},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				m.played[1].silence()
				m.played[1].conn.Close()
				synctest.Wait()
				answer := c.begin(&control.RunRequest{Spec: spec(k.ranks)})
				if !k.waits {
					if a := <-answer; !errors.Is(a.err, noRoom) {
						t.Errorf("answered with %v", a)
					}
					none[*control.LogLine](t, &c.recorder, "it says that it waits")
					return
				}
				time.Sleep(3 * time.Second)
				if line := one[*control.LogLine](t, &c.recorder); line.Text != "waiting for node1, which is late" {
					t.Errorf("the client is told %q", line.Text)
				}
				if k.back {
					m.played[1].connect()
					if a := <-answer; a.err != nil {
						t.Errorf("refused with %v", a.err)
					}
				} else if a := <-answer; !errors.Is(a.err, noRoom) {
					t.Errorf("answered with %v", a)
				}
			})
		})
	}
}

// The same goes for a job that lacks the cores of a job whose ranks were just asked to end, but not
// forever.
func TestRoomOfSignalledJob(t *testing.T) {
	noRoom := &control.Failure{Code: control.Code_CODE_NO_ROOM}
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		job := c.run(spec(2))
		refused := func(when string) {
			t.Helper()
			if _, err := other.ask(&control.RunRequest{Spec: spec(1)}); !errors.Is(err, noRoom) {
				t.Errorf("%s: %v", when, err)
			}
		}
		ask := func(rank int32, sig unix.Signal) {
			must[*control.Done](c, &control.Kill{Job: job, Rank: rank, Signal: int32(sig)})
		}
		ask(control.None, unix.SIGUSR1)
		ask(1, unix.SIGTERM)
		refused("for another signal, or another rank's")
		ask(control.None, unix.SIGTERM)
		time.Sleep(askedLately)
		refused("for a job that goes on")
		ask(control.None, unix.SIGTERM)
		answer := other.begin(&control.RunRequest{Spec: spec(1)})
		m.played[0].exits(job, 1, 0, 0, 15)
		m.played[0].exits(job, 2, 1, 0, 15)
		c.ackAll()
		if a := <-answer; a.err != nil {
			t.Errorf("refused with %v", a.err)
		}
	})
}

// A job that waits for room gets cores that a node has freed for jobs in the meantime.
func TestRoomOfMoreCores(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		m.played[1].silence()
		m.played[1].conn.Close()
		synctest.Wait()
		answer := m.client().begin(&control.RunRequest{Spec: spec(3)})
		info := m.played[0].register().Info
		info.Cores = append(info.Cores, 7)
		m.played[0].answers = map[string]proto.Message{"SetDuties": &control.DutiesSet{Info: info}}
		must[*control.Done](m.client(), &control.SetDuties{Node: 0, AllCores: control.Switch_SWITCH_ON})
		if a := <-answer; a.err != nil {
			t.Errorf("refused with %v", a.err)
		}
	})
}

// The same goes for a job that lacks the cores of an ending job.
func TestRoomOfEndingJob(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c, other := m.client(), m.client()
		job := c.run(spec(2))
		m.played[0].mute["Forget"] = true
		must[*control.Done](c, &control.Kill{Job: job, Force: true})
		answer := other.begin(&control.RunRequest{Spec: spec(1)})
		time.Sleep(3 * time.Second)
		if line := one[*control.LogLine](t, &other.recorder); line.Text != "waiting for the end of job 1" {
			t.Errorf("the client is told %q", line.Text)
		}
		m.played[0].answersAgain("Forget") // it did not answer, and is asked again
		if a := <-answer; a.err != nil {
			t.Errorf("refused with %v", a.err)
		}
	})
}

// A client that loses its connection during the launch learns that it can ask for the job again,
// whether or not serve has noticed the end of the old connection.
func TestClientLostDuringLaunch(t *testing.T) {
	for _, noticed := range []bool{true, false} {
		bubble(t, func(t *testing.T) {
			m := up(t, 1)
			c := m.client()
			reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(1)})
			if noticed {
				c.conn.Close()
				synctest.Wait()
			}
			again := m.client()
			state := must[*control.JobState](again, &control.Attach{Job: reply.Job})
			if state.Phase != control.JobPhase_JOB_DONE {
				state = again.ended()
			}
			if !errors.Is(state.Error.Err(), &control.Failure{Code: control.Code_CODE_RESTARTED}) {
				t.Errorf("noticed %v: it ended as %v", noticed, state)
			}
		})
	}
}

// Many late nodes and ending jobs are named in short.
func TestRoomOfMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 5)
		c := m.client()
		var jobs []uint32
		for range 3 {
			jobs = append(jobs, c.run(spec(1)))
		}
		for _, job := range jobs {
			must[*control.Done](c, &control.Kill{Job: job, Rank: control.None, Signal: int32(unix.SIGKILL)})
		}
		for _, node := range []int{2, 3, 4} {
			m.played[node].silence()
			m.played[node].conn.Close()
		}
		synctest.Wait()
		s := m.server
		s.mu.Lock()
		defer s.mu.Unlock()
		if got := s.expected(spec(10)); got != "node2-4, which are late, and the end of jobs 1-3" {
			t.Errorf("it waits for %q", got)
		}
	})
}
