package serve

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

// back connects nodes to a restarted serve. They still have a job.
func (m *machine) back(job uint32, phase control.JobPhase, nodes ...int) {
	m.t.Helper()
	for _, i := range nodes {
		m.played[i].hosts(job, phase)
		m.played[i].connect()
	}
}

// attach makes a new client the client of a job, as margay run does after a restart of serve.
func (m *machine) attach(job uint32) *playedClient {
	m.t.Helper()
	c := m.client()
	if state := must[*control.JobState](c, &control.Attach{Job: job}); state.Phase != control.JobPhase_JOB_RUNNING {
		m.t.Fatalf("after the restart the job is %v", state)
	}
	return c
}

func TestRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(3))
		m.played[0].says(job, 1, 0, "printed\n")
		m.played[0].says(job, 2, 0, "on its way\n")
		records := take[*control.Record](&c.recorder)
		c.tell(&control.Ack{Job: job, Node: 0, Seq: records[0].Seq})
		m.restart()
		other := m.client()
		if status := must[*control.MachineStatus](other, &control.Status{}); status.ServeStarts != 2 || status.Up != 0 || status.Jobs != 1 {
			t.Errorf("after the restart: %v", status)
		}
		c = m.attach(job)
		m.back(job, control.JobPhase_JOB_RUNNING, 0, 1)
		for _, n := range m.played {
			if r := one[*control.Rewind](t, &n.recorder); r.Job != job {
				t.Errorf("node %d is to rewind %v", n.number, r)
			}
		}
		take[*control.Ack](&m.played[0].recorder)
		if other.freeCores() != 1 || len(take[*control.JobState](&c.recorder)) != 0 {
			t.Errorf("%d cores are free", other.freeCores())
		}
		m.played[0].says(job, 2, 0, "on its way\n")
		if r := c.ackAll(); len(r) != 1 || r[0].Seq != 2 {
			t.Errorf("the client gets %v", r)
		}
		if acks := take[*control.Ack](&m.played[0].recorder); len(acks) != 1 || acks[0].Seq != 2 {
			t.Errorf("node 0 gets %v", acks)
		}
		m.played[0].exits(job, 3, 0, 0, 0)
		m.played[0].exits(job, 4, 1, 0, 0)
		m.played[1].exits(job, 1, 2, 6, 0)
		c.ackAll()
		if state := c.ended(); state.ExitCode != 6 || state.FirstFailed != 2 {
			t.Errorf("it ended as %v", state)
		}
		if next := other.run(spec(1)); next != job+1 {
			t.Errorf("the next job is %d", next)
		}
	})
}

// After a restart, a client sends standard input again before a node has started its ranks.
// Starting them discards the input, so the client sends it again afterwards.
func TestRestartBeforeRanksRead(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		s := spec(1)
		s.Stdin = control.StdinMode_STDIN_FIRST
		job := c.run(s)
		m.restart()
		c = m.attach(job)
		n := m.played[0]
		take[*control.Start](&n.recorder)
		n.slow = map[string]time.Duration{"Start": time.Second}
		m.back(job, control.JobPhase_JOB_PREPARED, 0)
		one[*control.Start](t, &n.recorder)
		none[*control.Rewind](t, &c.recorder, "its ranks do not run yet")
		time.Sleep(2 * time.Second)
		if r := one[*control.Rewind](t, &c.recorder); r.Job != job || r.Node != 0 {
			t.Errorf("the client is to send again %v", r)
		}
	})
}

// The cause of a job's end before the restart determines its status after the restart.
func TestRestartKeepsFirstFailure(t *testing.T) {
	failedBeforeRestart(t, func(t *testing.T, m *machine, _ *playedClient, job uint32) {
		m.back(job, control.JobPhase_JOB_RUNNING, 0, 1)
		// A rank that ignores the polite signal gets the hard one, although another serve sent the
		// first.
		time.Sleep(4 * time.Second)
		signals := take[*control.Signal](&m.played[0].recorder)
		if len(signals) != 2 || signals[0].Signal != int32(unix.SIGTERM) || signals[1].Signal != int32(unix.SIGKILL) {
			t.Errorf("node 0 gets the signals %v", signals)
		}
	})
}

// Ranks that must end are asked to when their node is back, and get their time for it then.
func TestRanksEndWhenNodeIsBack(t *testing.T) {
	failedBeforeRestart(t, func(t *testing.T, m *machine, c *playedClient, job uint32) {
		m.back(job, control.JobPhase_JOB_RUNNING, 1)
		time.Sleep(8 * time.Second)
		none[*control.JobState](t, &c.recorder, "a node may come back")
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		if s := one[*control.Signal](t, &m.played[0].recorder); s.Job != job || s.Rank != control.None || s.Signal != int32(unix.SIGKILL) {
			t.Errorf("node 0 gets the signal %v", s)
		}
		time.Sleep(1900 * time.Millisecond)
	})
}

// failedBeforeRestart fails a rank of a job, restarts serve, calls between, and then ends the other
// ranks.
func failedBeforeRestart(t *testing.T, between func(t *testing.T, m *machine, c *playedClient, job uint32)) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4))
		m.played[1].exits(job, 1, 3, 7, 0)
		one[*control.Signal](t, &m.played[0].recorder)
		m.restart()
		c = m.attach(job)
		between(t, m, c, job)
		m.played[0].exits(job, 1, 0, 0, 9)
		m.played[0].exits(job, 2, 1, 0, 9)
		m.played[1].exits(job, 1, 3, 7, 0)
		m.played[1].exits(job, 2, 2, 0, 9)
		c.ackAll()
		if state := c.ended(); state.ExitCode != 7 || state.FirstFailed != 3 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
	})
}

// The last rank may end before its client has found the new serve. Its output waits for the client.
func TestRestartBeforeClient(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(1))
		m.restart()
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		m.played[0].says(job, 1, 0, "last words\n")
		m.played[0].exits(job, 2, 0, 0, 0)
		none[*control.Forget](t, &m.played[0].recorder, "the output is lost")
		c = m.attach(job)
		one[*control.Rewind](t, &m.played[0].recorder)
		m.played[0].says(job, 1, 0, "last words\n")
		m.played[0].exits(job, 2, 0, 0, 0)
		if r := c.ackAll(); len(r) != 2 || string(r[0].Data) != "last words\n" {
			t.Errorf("the client gets %v", r)
		}
		if state := c.ended(); state.ExitCode != 0 {
			t.Errorf("it ended as %v", state)
		}
	})
}

// A client outlives its serve, and has printed more than the next serve has seen. A node may forget
// a record only after this serve has seen it: the record may be the end of a rank.
func TestClientIsAheadOfServe(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(2))
		m.restart()
		c = m.attach(job)
		n := m.played[0]
		n.hosts(job, control.JobPhase_JOB_RUNNING)
		n.connect()
		c.tell(&control.Ack{Job: job, Node: 0, Seq: 3}) // acknowledges a record from the lost connection
		n.says(job, 3, 1, "told before the rewind\n")
		c.tell(&control.Ack{Job: job, Node: 0, Seq: 3})
		if acks := take[*control.Ack](&n.recorder); slices.ContainsFunc(acks, func(a *control.Ack) bool { return a.Seq != 0 }) {
			t.Fatalf("node 0 is to forget what serve has not seen: %v", acks)
		}
		n.says(job, 1, 0, "words\n")
		c.tell(&control.Ack{Job: job, Node: 0, Seq: 3})
		if acks := take[*control.Ack](&n.recorder); len(acks) != 1 || acks[0].Seq != 1 {
			t.Fatalf("node 0 gets %v", acks)
		}
		n.exits(job, 2, 0, 7, 0)
		c.tell(&control.Ack{Job: job, Node: 0, Seq: 3})
		n.says(job, 3, 1, "told before the rewind\n")
		n.exits(job, 4, 1, 0, 0)
		c.ackAll()
		if state := c.ended(); state.ExitCode != 7 || state.Error != nil || !state.Ranks[0].Ended {
			t.Errorf("it ended as %v", state)
		}
	})
}

// Records that an earlier serve has released are not needed again.
func TestRestartAfterAcknowledgement(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(2))
		m.played[0].exits(job, 1, 0, 4, 0)
		c.ackAll()
		m.restart()
		c = m.attach(job)
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		m.played[0].exits(job, 2, 1, 0, 0)
		c.ackAll()
		if state := c.ended(); state.ExitCode != 4 || state.Error != nil {
			t.Errorf("it ended as %v", state)
		}
	})
}

// A job whose ranks have ended does not wait forever for their records. Its cores become free.
func TestRecordsDoNotCome(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4))
		m.played[0].exits(job, 1, 0, 0, 0)
		m.played[0].exits(job, 2, 1, 0, 0)
		m.restart()
		c = m.attach(job)
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		m.back(job, control.JobPhase_JOB_DONE, 1)
		m.played[0].exits(job, 1, 0, 0, 0)
		m.played[0].exits(job, 2, 1, 0, 0)
		time.Sleep(time.Hour)
		none[*control.JobState](t, &c.recorder, "a reader may take its time")
		c.ackAll()
		time.Sleep(time.Minute)
		if state := c.ended(); state.ExitCode != 125 || state.Error.Err().Error() != "node1: its ranks have ended, but the rest of what they wrote has not come for 30s" {
			t.Errorf("it ended as %v", state)
		}
		if c.freeCores() != 4 {
			t.Errorf("%d cores are free", c.freeCores())
		}
	})
}

// If all ranks have ended and serve is killed before their output is acknowledged, the next serve
// waits for each node's output.
func TestRestartAfterExits(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(spec(4))
		tell := func(n *playedNode) {
			first := 2 * n.number
			n.says(job, 1, first, fmt.Sprint("words of ", n.number, "\n"))
			n.exits(job, 2, first, 0, 0)
			n.exits(job, 3, first+1, 0, 0)
		}
		tell(m.played[0])
		tell(m.played[1])
		m.restart()
		c = m.attach(job)
		m.back(job, control.JobPhase_JOB_DONE, 0, 1)
		tell(m.played[0])
		c.ackAll()
		none[*control.Forget](t, &m.played[1].recorder, "the output of node 1 is lost")
		tell(m.played[1])
		if r := c.ackAll(); len(r) != 3 || string(r[0].Data) != "words of 1\n" {
			t.Errorf("the client gets %v", r)
		}
		if state := c.ended(); state.ExitCode != 0 {
			t.Errorf("it ended as %v", state)
		}
	})
}

// serve can be killed when everything is acknowledged and it is just asking the nodes to forget the
// job. The job ends then, whether or not they still have it.
func TestRestartAtTheEnd(t *testing.T) {
	for _, has := range []bool{true, false} {
		for _, detach := range []bool{false, true} {
			t.Run(fmt.Sprintf("node has it %v, detached %v", has, detach), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					m := up(t, 1)
					c := m.client()
					s := spec(1)
					s.Detach = detach
					job := c.run(s)
					n := m.played[0]
					n.mute["Forget"] = true
					n.exits(job, 1, 0, 5, 0)
					c.ackAll()
					one[*control.Forget](t, &n.recorder)
					m.restart()
					n.mute["Forget"] = false
					if has {
						n.hosts(job, control.JobPhase_JOB_DONE)
					}
					n.connect()
					c = m.client()
					if !detach {
						state := must[*control.JobState](c, &control.Attach{Job: job})
						if state.Phase != control.JobPhase_JOB_DONE {
							state = c.ended()
						}
						if state.ExitCode != 5 {
							t.Errorf("it ended as %v", state)
						}
					}
					time.Sleep(time.Minute)
					if s := c.summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 5 || s.Error != "" || c.freeCores() != 2 {
						t.Errorf("it is recorded as %v, and %d cores are free", s, c.freeCores())
					}
				})
			})
		}
	}
}

// A job whose client does not return, and cannot be seen, is ended.
func TestRestartWithoutClient(t *testing.T) {
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended %v", ended), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1)
				c := m.client()
				job := c.run(spec(1))
				if ended {
					m.played[0].exits(job, 1, 0, 0, 0)
				}
				m.restart()
				m.back(job, control.JobPhase_JOB_RUNNING, 0)
				time.Sleep(3 * time.Second)
				none[*control.Forget](t, &m.played[0].recorder, "the client was not waited for")
				time.Sleep(3 * time.Second)
				one[*control.Forget](t, &m.played[0].recorder)
				if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 125 || s.Error != "its margay run has not come back after a restart of serve" {
					t.Errorf("it is recorded as %v", s)
				}
			})
		})
	}
}

// The reason why a job ends is recorded before its nodes forget it: if serve is killed in between,
// the next one reports the same reason.
func TestRestartWhileEnding(t *testing.T) {
	for _, detach := range []bool{false, true} {
		t.Run(fmt.Sprintf("detached %v", detach), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 1)
				c := m.client()
				s := spec(1)
				s.Detach = detach
				job := c.run(s)
				n := m.played[0]
				n.says(job, 1, 0, "a\n")
				n.mute["Forget"] = true
				must[*control.Done](c, &control.Kill{Job: job, Force: true})
				one[*control.Forget](t, &n.recorder)
				m.restart()
				n.mute["Forget"] = false
				n.connect() // it has forgotten the job
				time.Sleep(time.Minute)
				want := fmt.Sprintf("job %d was killed by its user", job)
				recorded := m.client().summary(job)
				if recorded.Phase != control.JobPhase_JOB_DONE || recorded.ExitCode != 137 || recorded.Error != want || recorded.Missing != want {
					t.Errorf("it is recorded as %v", recorded)
				}
			})
		})
	}
}

// If the output of an ending job cannot be opened after a restart, this error does not replace the
// reason why the job ends.
func TestRestartWhileEndingWithoutOutput(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(detachedSpec(1))
		n := m.played[0]
		n.mute["Forget"] = true
		must[*control.Done](c, &control.Kill{Job: job, Force: true})
		one[*control.Forget](t, &n.recorder)
		path := spoolPath(m.config.Dir, job)
		if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
			t.Fatal(err)
		}
		m.restart()
		n.mute["Forget"] = false
		n.connect()
		time.Sleep(time.Minute)
		want := fmt.Sprintf("job %d was killed by its user", job)
		if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 137 || s.Error != want {
			t.Errorf("it is recorded as %v", s)
		}
	})
}

// The last record of a node can be in the spool of a serve that could not record that. The next
// serve records it before the node may forget the record.
func TestRestartBeforeLastIsRecorded(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(detachedSpec(1))
		n := m.played[0]
		n.tell(&control.Record{
			Job: job, Seq: 1, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{}, Open: true,
		})
		last := &control.Record{Job: job, Seq: 2, Stream: control.Stream_STREAM_END, Last: true, Acked: 1}
		room := fullDisk(t, 8192)
		n.tell(last)
		room()
		m.restart()
		m.back(job, control.JobPhase_JOB_DONE, 0)
		n.mute["Forget"] = true
		n.tell(last)
		m.restart()
		n.mute["Forget"] = false
		m.back(job, control.JobPhase_JOB_DONE, 0)
		time.Sleep(time.Minute)
		if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 0 || s.Error != "" {
			t.Errorf("it is recorded as %v", s)
		}
	})
}

// The end of a rank can also be in the spool alone. The next serve finds it there.
func TestRestartBeforeExitIsRecorded(t *testing.T) {
	onFullDisk(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(detachedSpec(2))
		n := m.played[0]
		room := fullDisk(t, 8192)
		n.exits(job, 1, 0, 5, 0)
		room()
		m.restart()
		m.back(job, control.JobPhase_JOB_RUNNING, 0)
		n.exits(job, 2, 1, 0, 0)
		time.Sleep(time.Minute)
		if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 5 || s.Error != "" {
			t.Errorf("it is recorded as %v", s)
		}
	})
}

// A job that was still being launched is ended, because its files are lost. Its client learns that
// the job can be launched again.
func TestRestartDuringLaunch(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(3)})
		m.restart()
		c = m.client()
		state := must[*control.JobState](c, &control.Attach{Job: reply.Job})
		if state.Phase == control.JobPhase_JOB_RUNNING {
			t.Errorf("it is %v", state)
		}
		m.back(reply.Job, control.JobPhase_JOB_PREPARED, 0, 1)
		time.Sleep(time.Minute)
		states := take[*control.JobState](&c.recorder)
		if len(states) == 0 || !errors.Is(states[len(states)-1].Error.Err(), &control.Failure{Code: control.Code_CODE_RESTARTED}) {
			t.Fatalf("the client is told %v", states)
		}
		for _, n := range m.played {
			if len(take[*control.Forget](&n.recorder)) == 0 {
				t.Errorf("node %d still has the job", n.number)
			}
			n.jobs = nil
		}
		// The same connection can ask for the job again.
		c.run(spec(4))
	})
}

// A node that loses its connection while a restarted serve asks it to start a job is asked again.
func TestNodeReconnectsAtStartAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		job := m.client().run(spec(1))
		m.restart()
		c := m.attach(job)
		n := m.played[0]
		n.mute["Start"] = true
		m.back(job, control.JobPhase_JOB_PREPARED, 0)
		n.conn.Close()
		time.Sleep(time.Second)
		none[*control.JobState](t, &c.recorder, "the node may come back")
		n.mute["Start"] = false
		take[*control.Start](&n.recorder)
		n.connect()
		one[*control.Start](t, &n.recorder)
		if s := c.summary(job); s.Phase != control.JobPhase_JOB_RUNNING {
			t.Errorf("it is %v", s)
		}
	})
}

// A node that does not return after a restart of serve ends its jobs, even if all ranks on it have
// ended: their output is lost with it.
func TestRestartWithoutNode(t *testing.T) {
	for _, ended := range []bool{false, true} {
		t.Run(fmt.Sprintf("ended %v", ended), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				c := m.client()
				job := c.run(spec(4))
				if ended {
					m.played[1].exits(job, 1, 2, 0, 0)
					m.played[1].exits(job, 2, 3, 0, 0)
				}
				m.restart()
				c = m.attach(job)
				m.back(job, control.JobPhase_JOB_RUNNING, 0)
				time.Sleep(time.Minute)
				if state := c.ended(); !strings.HasPrefix(state.Error.Err().Error(), "node1: it has been silent for 10s; ") {
					t.Errorf("it ended as %v", state)
				}
				one[*control.Forget](t, &m.played[0].recorder)
			})
		})
	}
}

// The output of a detached job goes to a file, and a restart neither loses nor duplicates any of
// it.
func TestDetached(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(detachedSpec(3))
		c.conn.Close()
		m.played[0].says(job, 1, 0, "a")
		m.played[1].says(job, 1, 2, "x")
		m.played[0].says(job, 2, 1, "b")
		if acks := take[*control.Ack](&m.played[0].recorder); len(acks) != 2 || acks[1].Seq != 2 {
			t.Errorf("node 0 gets %v", acks)
		}
		m.restart()
		m.back(job, control.JobPhase_JOB_RUNNING, 0, 1)
		one[*control.Rewind](t, &m.played[0].recorder)
		m.played[0].says(job, 2, 1, "b") // the acknowledgement was lost
		if acks := take[*control.Ack](&m.played[0].recorder); len(acks) != 1 || acks[0].Seq != 2 {
			t.Errorf("node 0 gets %v", acks)
		}
		m.played[0].says(job, 3, 1, "c")

		reader := m.client()
		done := make(chan error, 1)
		go func() {
			_, err := reader.ask(&control.Attach{Job: job, Output: true})
			done <- err
		}()
		time.Sleep(time.Second)
		var text bytes.Buffer
		for _, r := range take[*control.Record](&reader.recorder) {
			fmt.Fprintf(&text, "%d%s ", r.Rank, r.Data)
		}
		if text.String() != "0a 2x 1b 1c " {
			t.Errorf("the output so far is %q", text.String())
		}
		m.played[1].exits(job, 2, 2, 0, 0)
		m.played[0].exits(job, 4, 0, 0, 0)
		m.played[0].exits(job, 5, 1, 2, 0)
		if err := <-done; err != nil {
			t.Errorf("the output ends with %v", err)
		}
		if exits := take[*control.Record](&reader.recorder); len(exits) != 3 || exits[2].Exit.Code != 2 {
			t.Errorf("the rest of the output is %v", exits)
		}
		if s := reader.summary(job); s.ExitCode != 2 || !s.Detached {
			t.Errorf("it is recorded as %v", s)
		}
		must[*control.Done](reader, &control.Attach{Job: job, Output: true})
		if all := take[*control.Record](&reader.recorder); len(all) != 7 {
			t.Errorf("afterwards %d records are read", len(all))
		}
	})
}

func TestOutputOfOtherJobs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		job := c.run(spec(1))
		for number, want := range map[uint32]string{
			job: "job 1 was not detached: its output went to its margay run", job + 1: "there is no job 2",
		} {
			if _, err := m.client().ask(&control.Attach{Job: number, Output: true}); err == nil || err.Error() != want {
				t.Errorf("output of job %d: %v", number, err)
			}
		}
	})
}

// Jobs that are recorded during their restoration find the store unused: it may be out of room, and
// must grow.
func TestRestoredJobsAreRecorded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		var jobs []uint32
		for range 2 {
			s := limited(false)
			s.Dir = bytes.Repeat([]byte("/"), 205<<10) // each record of one job writes both, and at the third one the store grows beyond a MiB
			jobs = append(jobs, c.run(s))
		}
		time.Sleep(time.Duration(limited(false).LimitMs)*time.Millisecond + time.Second) // their ranks must end
		for _, job := range jobs {
			c.halt(job, unix.SIGSTOP)
		}
		m.restart()
		for _, job := range jobs {
			if m.attach(job).isStopped(job) {
				t.Errorf("job %d is to end, and stopped", job)
			}
		}
	})
}

// On a machine of many nodes the rest of a job's records has at least as long as a silent node has.
func TestRecordsOfMany(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2, func(c *Config) { c.Timing.Space = 2 * time.Second }) // 8 times as long
		c := m.client()
		job := c.run(spec(4))
		m.restart()
		c = m.attach(job)
		m.back(job, control.JobPhase_JOB_DONE, 0, 1)
		time.Sleep(time.Minute)
		none[*control.JobState](t, &c.recorder, "a node may be silent for longer")
		time.Sleep(time.Minute)
		if state := c.ended(); state.Error == nil || !strings.HasSuffix(state.Error.Err().Error(), "has not come for 1m20s") {
			t.Errorf("it ended as %v", state)
		}
	})
}
