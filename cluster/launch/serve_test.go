package launch

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// patience bounds every wait of these tests.
const patience = 20 * time.Second

// playedServe accepts clients as serve does, and does what a test wants. Its connections come one
// after the other.
type playedServe struct {
	t      *testing.T
	socket string
	talks  []func(c *talk) // what it does with its connections
	ended  chan struct{}

	mu  sync.Mutex
	got []proto.Message
}

// talk is one connection of a client.
type talk struct {
	*control.Conn
	serve *playedServe
	in    chan *control.Frame
}

// serveTo plays a serve to clients, with one function for each connection that they open. A
// connection ends with its function.
func serveTo(t *testing.T, talks ...func(c *talk)) *playedServe {
	t.Helper()
	dir, err := os.MkdirTemp("", "margay")
	if err != nil {
		t.Fatal(err)
	}
	s := &playedServe{t: t, socket: filepath.Join(dir, "s"), talks: talks, ended: make(chan struct{})}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.ended)
		for _, f := range talks {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			s.talk(control.NewConn(raw), f)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		select {
		case <-s.ended:
		case <-time.After(patience):
			t.Error("serve still talks to somebody")
		}
		os.RemoveAll(dir)
	})
	return s
}

func (s *playedServe) talk(conn *control.Conn, f func(c *talk)) {
	defer conn.Close()
	if _, err := conn.Meet(); err != nil {
		s.t.Error(err)
		return
	}
	_ = conn.Send(&control.Welcome{Version: control.Version, Machine: "m"})
	c := &talk{Conn: conn, serve: s, in: make(chan *control.Frame, 1000)}
	go func() {
		_ = conn.Serve(func(f *control.Frame) {
			s.mu.Lock()
			s.got = append(s.got, f.Message())
			s.mu.Unlock()
			c.in <- f
		})
		close(c.in)
	}()
	f(c)
	conn.Flush(patience)
}

// expect waits for the next message of a type; others are passed over. It returns nil when there is
// none.
func expect[M proto.Message](c *talk) (m M, frame *control.Frame) {
	deadline := time.After(patience)
	for {
		select {
		case f, ok := <-c.in:
			if !ok {
				return m, nil
			}
			if m, ok := f.Message().(M); ok {
				return m, f
			}
		case <-deadline:
			c.serve.t.Errorf("no %T came within %v", m, patience)
			return m, nil
		}
	}
}

// launched takes a job that a client asks for, as job 5, and brings it to running.
func (c *talk) launched(ranks int) {
	m, f := expect[*control.RunRequest](c)
	if f == nil {
		return
	}
	if int(m.Spec.Ranks) != ranks {
		c.serve.t.Errorf("a job of %d ranks is asked for", m.Spec.Ranks)
	}
	var places []*control.Place
	for i := range ranks {
		places = append(places, &control.Place{Rank: uint32(i), Node: uint32(i / 2)})
	}
	c.Answer(f, &control.RunReply{Job: 5, Places: places}, nil)
	for taken := uint64(0); ; {
		chunk, f := expect[*control.FileChunk](c)
		if f == nil {
			return
		}
		taken += uint64(len(chunk.Data))
		_ = c.Send(&control.FileTaken{Job: 5, Offset: taken})
		if chunk.Last {
			break
		}
	}
	_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None})
}

// attached answers a client that looks for its job.
func (c *talk) attached() {
	m, f := expect[*control.Attach](c)
	if f == nil {
		return
	}
	if m.Job != 5 {
		c.serve.t.Errorf("the client looks for job %d", m.Job)
	}
	c.Answer(f, &control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None}, nil)
}

func (c *talk) says(seq uint64, text string) {
	_ = c.Send(&control.Record{Job: 5, Node: 0, Seq: seq, Stream: control.Stream_STREAM_STDOUT, Data: []byte(text)})
}

// done sends the client the result of the job.
func (c *talk) done(m *control.JobState) {
	m.Job, m.Phase = 5, control.JobPhase_JOB_DONE
	_ = c.Send(m)
}

// left waits until the client has left. A connection that is closed while the client still sends
// can lose messages to it.
func (c *talk) left() {
	for {
		if _, f := expect[*control.Ack](c); f == nil {
			return
		}
	}
}

func ok() *control.JobState { return &control.JobState{FirstFailed: control.None} }

// launcher is a margay run of a test.
type launcher struct {
	Options
	stdout, stderr, status bytes.Buffer
}

func newLauncher(t *testing.T, s *playedServe, ranks uint32) *launcher {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l := new(launcher)
	l.Options = Options{
		Socket: s.socket, Spec: &control.JobSpec{Ranks: ranks},
		Files: &Files{Program: program, List: []File{{Path: program, Mode: 0o700, Size: 100}}}, Stdout: &l.stdout, Stderr: &l.stderr,
		Status: &Status{W: &l.status},
	}
	return l
}

// run runs the job. Nothing of it may be left afterwards.
func (l *launcher) run(t *testing.T) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return Run(ctx, l.Options)
}

// messages are all that clients have sent.
func (s *playedServe) messages() []proto.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}
