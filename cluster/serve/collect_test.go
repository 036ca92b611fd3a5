package serve

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// wanting is spec for a job whose client wants files.
func wanting(ranks uint32) *control.JobSpec {
	s := spec(ranks)
	s.Out = [][]byte{[]byte("/out")}
	return s
}

// collecting takes a job on two nodes to the point where its client may read its files.
func (c *playedClient) collecting() (job uint32) {
	c.m.t.Helper()
	job = c.run(wanting(3))
	for rank := range uint32(3) {
		c.m.played[rank/2].exits(job, uint64(rank%2+1), rank, 0, 0)
	}
	c.ackAll()
	c.mayRead()
	return job
}

// mayRead expects the state in which the client can read files, and no node has lost any.
func (c *playedClient) mayRead() {
	c.m.t.Helper()
	if state := one[*control.JobState](c.m.t, &c.recorder); state.Phase != control.JobPhase_JOB_RUNNING || !state.Collect {
		c.m.t.Fatalf("the state is %v", state)
	}
	for _, n := range c.m.played {
		none[*control.Forget](c.m.t, &n.recorder, "its files are not read")
	}
}

// The client of a job reads files before the nodes forget the job. No other client can read them.
func TestCollect(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		m.played[1].answers = map[string]proto.Message{"ReadFiles": &control.FilesPiece{Data: []byte("piece"), Last: true}}
		c := m.client()
		job := c.collecting()
		read := &control.ReadFiles{Job: job, Node: 1, Offset: 7, Paths: [][]byte{[]byte("/etc")}}
		if piece := must[*control.FilesPiece](c, read); string(piece.Data) != "piece" || !piece.Last {
			t.Errorf("it was given %v", piece)
		}
		if asked := one[*control.ReadFiles](t, &m.played[1].recorder); !proto.Equal(asked, &control.ReadFiles{Job: job, Node: 1, Offset: 7, Paths: [][]byte{[]byte("/out")}}) {
			t.Errorf("the node was asked %v", asked)
		}
		for what, answer := range map[string]func() error{
			"another client":  func() error { _, err := m.client().ask(read); return err },
			"another job":     func() error { _, err := c.ask(&control.ReadFiles{Job: job + 1}); return err },
			"no such node":    func() error { _, err := c.ask(&control.ReadFiles{Job: job, Node: 9}); return err },
			"a negative node": func() error { _, err := c.ask(&control.ReadFiles{Job: job, Node: 1 << 31}); return err },
		} {
			if err := answer(); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
				t.Errorf("%s: %v", what, err)
			}
		}
		m.client().tell(&control.FilesRead{Job: job})
		none[*control.JobState](t, &c.recorder, "another client has no say")
		c.tell(&control.FilesRead{Job: job})
		if state := c.ended(); state.ExitCode != 0 {
			t.Errorf("it ended as %v", state)
		}
	})
}

// A job that failed while it ran is collected; ended again, it is not. A job without any rank that
// has run is not collected either.
func TestCollectFailed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(wanting(3))
		kill := &control.Kill{Job: job, Rank: control.None, Force: true}
		must[*control.Done](c, kill)
		c.mayRead()
		must[*control.Done](c, kill)
		synctest.Wait()
		if state := c.ended(); state.ExitCode != 137 {
			t.Errorf("it ended as %v", state)
		}
		m.played[0].refused = map[string]error{"Start": control.Failf(control.Code_CODE_NOT_FOUND, "no such program")}
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: wanting(1)})
		m.played[0].tell(&control.Loaded{Job: reply.Job})
		if state := c.ended(); state.ExitCode != 127 {
			t.Errorf("a job without ranks ended as %v", state)
		}
	})
}

// A client that disconnects while it reads ends its job, which has failed then.
func TestCollectorGone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.collecting()
		c.conn.Close()
		synctest.Wait()
		if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 125 || !strings.Contains(s.Error, "has not brought back all files") {
			t.Errorf("it is listed as %v", s)
		}
	})
}

// After a restart of serve the client continues to read. It may ask before it is the job's client
// again.
func TestCollectAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		job := m.client().collecting()
		m.restart()
		m.back(job, control.JobPhase_JOB_DONE, 0, 1)
		synctest.Wait()
		if _, err := m.client().ask(&control.ReadFiles{Job: job}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_RESTARTED}) {
			t.Errorf("before it has a client: %v", err)
		}
		c := m.attach(job)
		synctest.Wait()
		c.mayRead()
		c.tell(&control.FilesRead{Job: job})
		if state := c.ended(); state.ExitCode != 0 {
			t.Errorf("it ended as %v", state)
		}
	})
}

// The ranks of a failed job end on all nodes before its files are read. After a restart serve knows
// that the job has failed, and does not mistake killed ranks for ranks that have ended well.
func TestCollectFailedAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c := m.client()
		job := c.run(wanting(3))
		must[*control.Done](c, &control.Kill{Job: job, Rank: control.None, Force: true})
		c.mayRead()
		for _, n := range m.played {
			if got := signals(n); !slices.Equal(got, []unix.Signal{unix.SIGKILL}) {
				t.Errorf("node %d gets %v", n.number, got)
			}
		}
		for rank := range uint32(3) {
			m.played[rank/2].exits(job, uint64(rank%2+1), rank, 0, int32(unix.SIGKILL))
		}
		c.ackAll()
		time.Sleep(2 * recordPause)
		m.restart()
		m.back(job, control.JobPhase_JOB_DONE, 0, 1)
		synctest.Wait()
		if s := m.client().summary(job); s.Phase != control.JobPhase_JOB_DONE || s.ExitCode != 137 || !strings.Contains(s.Error, "killed by its user") {
			t.Errorf("it is listed as %v", s)
		}
	})
}
