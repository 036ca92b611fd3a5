package serve

import (
	"errors"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// present makes nodes have all files of a job when they prepare it, and take this long for
// requests.
func present(m *machine, took time.Duration, nodes ...int) {
	for _, i := range nodes {
		n := m.played[i]
		n.answers = map[string]proto.Message{
			"Prepare": &control.Prepared{Loaded: true, PrepareNs: int64(i+1) * 1000, LoadNs: int64(i+1) * 100},
			"Start":   &control.Started{StartNs: 500 - int64(i)},
			"Forget":  &control.Forgotten{},
		}
		n.slow = map[string]time.Duration{"Prepare": took, "Start": 2 * took, "Forget": 3 * took}
	}
}

// A job whose nodes have all its files needs no load, and starts when its client knows its number.
// It is measured.
func TestPresentFiles(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		const took = 10 * time.Millisecond
		present(m, took, 0, 1)
		c := m.client()
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(4), Files: []byte("files")})
		if !reply.Loaded || len(reply.Lacking) > 0 {
			t.Errorf("the client is answered %v", reply)
		}
		for _, n := range m.played {
			if p := one[*control.Prepare](t, &n.recorder); string(p.Files) != "files" {
				t.Errorf("node %d is to prepare %v", n.number, p)
			}
			none[*control.Start](t, &n.recorder, "it was started before the client knows of it")
		}
		time.Sleep(5 * took)
		c.tell(&control.FileChunk{Job: reply.Job, Last: true})
		c.tell(&control.FileChunk{Job: reply.Job, Last: true}) // a repetition
		time.Sleep(3 * took)
		for _, n := range m.played {
			one[*control.Start](t, &n.recorder)
			none[*control.FileChunk](t, &n.recorder, "no node needs files")
		}
		running := one[*control.JobState](t, &c.recorder)
		if running.Phase != control.JobPhase_JOB_RUNNING || len(running.Times) != 6 {
			t.Errorf("state %v", running)
		}
		m.played[1].tell(&control.Loaded{Job: reply.Job, Error: control.FromError(errors.New("it could not pass them on to a node that has them"))})
		time.Sleep(time.Second)
		for i, n := range m.played {
			n.exits(reply.Job, 1, uint32(2*i), 0, 0)
			n.exits(reply.Job, 2, uint32(2*i+1), 0, 0)
		}
		c.ackAll()
		time.Sleep(3 * took)
		state := c.ended()
		if state.ExitCode != 0 {
			t.Errorf("it ended as %v", state)
		}
		want := []*control.PhaseTime{
			{Phase: control.Phase_PHASE_QUEUE},
			{Phase: control.Phase_PHASE_ALLOCATE},
			{Phase: control.Phase_PHASE_RECORD},
			{Phase: control.Phase_PHASE_PREPARE, TimeNs: int64(took), NodeNs: 2000, Node: 1},
			{Phase: control.Phase_PHASE_LOAD, TimeNs: int64(5 * took), NodeNs: 200, Node: 1},
			{Phase: control.Phase_PHASE_START, TimeNs: int64(2 * took), NodeNs: 500, Node: 0},
			{Phase: control.Phase_PHASE_RUN, TimeNs: int64(took + time.Second)},
			{Phase: control.Phase_PHASE_END, TimeNs: int64(3 * took)},
		}
		if len(state.Times) != len(want) {
			t.Fatalf("phases %v", state.Times)
		}
		for i, got := range state.Times {
			if !proto.Equal(got, want[i]) {
				t.Errorf("phase %v, not %v", got, want[i])
			}
		}
	})
}

// A job that ends before its nodes have answered has the same phases.
func TestShortJobIsMeasured(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		n := m.played[0]
		n.mute["Start"] = true
		c := m.client()
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(1)})
		n.tell(&control.Loaded{Job: reply.Job})
		time.Sleep(time.Second)
		n.exits(reply.Job, 1, 0, 0, 0)
		c.ackAll()
		times := c.ended().Times
		if len(times) != 8 || times[5].TimeNs != int64(time.Second) || times[6].Phase != control.Phase_PHASE_RUN || times[6].TimeNs != 0 {
			t.Errorf("times %v", times)
		}
	})
}

// The time in the queue is a phase.
func TestQueueIsMeasured(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		first := m.client()
		job := first.run(spec(2))
		c := m.client()
		s := spec(1)
		s.WaitMs = -1
		if err := c.conn.Send(&control.RunRequest{Spec: s}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(7 * time.Second)
		m.played[0].exits(job, 1, 0, 0, 0)
		m.played[0].exits(job, 2, 1, 0, 0)
		first.ackAll()
		m.played[0].tell(&control.Loaded{Job: job + 1, LoadNs: 5})
		state := one[*control.JobState](t, &c.recorder)
		if queue := state.Times[0]; queue.Phase != control.Phase_PHASE_QUEUE || queue.TimeNs != int64(7*time.Second) {
			t.Errorf("times %v", state.Times)
		}
		for _, p := range state.Times {
			if p.Phase == control.Phase_PHASE_LOAD && p.NodeNs != 5 {
				t.Errorf("times %v", state.Times)
			}
		}
	})
}

// If one node lacks a file, all files go through the tree, and the job waits for the nodes that
// have not reported their presence.
func TestPresentOnSomeNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		present(m, 0, 0)
		m.played[1].answers = map[string]proto.Message{"Prepare": &control.Prepared{Lacking: []uint32{1}}}
		c := m.client()
		exec := &control.Exec{Contents: [][]byte{[]byte("a"), []byte("b")}}
		reply := must[*control.RunReply](c, &control.RunRequest{Spec: spec(4), Exec: exec, Files: []byte("files")})
		if reply.Loaded || len(reply.Lacking) != 1 {
			t.Errorf("the client is answered %v", reply)
		}
		c.tell(&control.FileChunk{Job: reply.Job, Data: []byte("all files"), Last: true})
		one[*control.FileChunk](t, &m.played[0].recorder)
		none[*control.Start](t, &m.played[0].recorder, "a node does not have the files")
		m.played[1].tell(&control.Loaded{Job: reply.Job})
		for _, n := range m.played {
			one[*control.Start](t, &n.recorder)
		}
	})
}

// No rank runs if the client does not learn of a job whose nodes have all its files: the client
// asks for the job again, also when it was only stopped for a while.
func TestPresentWithoutClient(t *testing.T) {
	for name, happens := range map[string]func(m *machine, c *playedClient){
		"its connection is lost": func(_ *machine, c *playedClient) { c.conn.Close() },
		"it stands still":        func(*machine, *playedClient) { time.Sleep(clientTimeout) },
		"serve is started again": func(m *machine, _ *playedClient) {
			m.restart()
			for _, n := range m.played {
				n.hosts(1, control.JobPhase_JOB_PREPARED)
				n.connect()
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				m := up(t, 2)
				present(m, 0, 0, 1)
				client := m.client()
				must[*control.RunReply](client, &control.RunRequest{Spec: spec(4), Files: []byte("files")})
				happens(m, client)
				other := m.client()
				for _, n := range m.played {
					none[*control.Start](t, &n.recorder, "it was started")
				}
				state := must[*control.JobState](other, &control.Attach{Job: 1})
				if !errors.Is(state.Error.Err(), &control.Failure{Code: control.Code_CODE_RESTARTED}) || other.freeCores() != 4 {
					t.Errorf("it ended as %v, and %d cores are free", state, other.freeCores())
				}
			})
		})
	}
}

// A request with too many files is refused.
func TestFilesAheadAreBounded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		_, err := c.ask(&control.RunRequest{Spec: spec(1), Files: make([]byte, control.FilesAhead+1)})
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_BAD_REQUEST}) || c.freeCores() != 2 {
			t.Errorf("%v, and %d cores are free", err, c.freeCores())
		}
	})
}
