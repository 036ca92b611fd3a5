package allocation

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
)

// playedServe answers the clients of a machine. The test says what it answers.
type playedServe struct {
	t      *testing.T
	socket string
	listen net.Listener
	asked  chan question
}

// question is a message of a client.
type question struct {
	conn  *control.Conn
	frame *control.Frame
}

// play starts a serve at a socket.
func play(t *testing.T, socket string) *playedServe {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := &playedServe{t: t, socket: socket, listen: l, asked: make(chan question, 16)}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			conn := control.NewConn(raw)
			go func() {
				if _, err := conn.Meet(); err != nil {
					return
				}
				_ = conn.Send(&control.Welcome{Version: control.Version, Machine: "m"})
				_ = conn.Serve(func(f *control.Frame) { s.asked <- question{conn, f} })
			}()
		}
	}()
	return s
}

// next returns the next question, which must be an M. EndAllocation may come at any time again, and
// a client says that it has its allocation before or after the next question on another connection.
func next[M proto.Message](s *playedServe) (question, M) {
	s.t.Helper()
	for {
		select {
		case q := <-s.asked:
			m, ok := q.frame.Message().(M)
			switch q.frame.Message().(type) {
			case *control.EndAllocation, *control.FileChunk:
				if !ok {
					continue
				}
			}
			if !ok {
				s.t.Fatalf("the client has sent %v", q.frame)
			}
			return q, m
		case <-time.After(time.Minute):
			s.t.Fatalf("the client sends no %T", *new(M))
		}
	}
}

// ask begins to ask for an allocation.
func ask(socket string, notice func(string)) <-chan *Allocation {
	got := make(chan *Allocation, 1)
	go func() {
		a, _ := Ask(context.Background(), Options{Socket: socket, Spec: &control.JobSpec{Ranks: 2}, Command: []string{"bash", "-i"}, Notice: notice})
		got <- a
	}()
	return got
}

// A client asks again when serve was started again before it had an answer, finds its allocation
// again later, and reports the end of its command again over another connection.
func TestRestarts(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s := play(t, socket)
	got := ask(socket, func(string) {})
	q, m := next[*control.RunRequest](s)
	if !m.Spec.Allocation || m.Spec.Ranks != 2 || string(m.Exec.Argv[1]) != "-i" {
		t.Errorf("the client asks for %v", m)
	}
	q.conn.Answer(q.frame, nil, control.Failf(control.Code_CODE_RESTARTED, "serve was started again"))
	q, _ = next[*control.RunRequest](s)
	q.conn.Close()
	q, _ = next[*control.RunRequest](s)
	q.conn.Answer(q.frame, &control.RunReply{Job: 7, Places: []*control.Place{{Node: 1, Core: 2}}}, nil)
	a := <-got
	defer a.Close()
	if a.Job != 7 || len(a.Places) != 1 {
		t.Fatalf("the allocation is %v", a)
	}
	_ = q.conn.Send(&control.Signal{Job: 7, Signal: 15})
	if sig := <-a.Signals(); sig != 15 {
		t.Errorf("signal %v", sig)
	}
	s.listen.Close()
	q.conn.Close()
	s = play(t, socket)
	q, attach := next[*control.Attach](s)
	if attach.Job != 7 {
		t.Errorf("the client attaches to %v", attach)
	}
	q.conn.Answer(q.frame, &control.JobState{Job: 7, Phase: control.JobPhase_JOB_RUNNING}, nil)

	ended := make(chan *control.JobState, 1)
	go func() {
		state, _ := a.Release(context.Background(), &control.ExitStatus{Code: 3})
		ended <- state
	}()
	q, end := next[*control.EndAllocation](s)
	if end.Job != 7 || end.Exit.Code != 3 {
		t.Errorf("the client ends it with %v", end)
	}
	q.conn.Close() // lost
	q, _ = next[*control.Attach](s)
	q.conn.Answer(q.frame, &control.JobState{Job: 7, Phase: control.JobPhase_JOB_RUNNING}, nil)
	for {
		select {
		case q := <-s.asked: // over this connection; an earlier one may have had one more
			if end, ok := q.frame.Message().(*control.EndAllocation); ok {
				_ = q.conn.Send(&control.JobState{Job: 7, Phase: control.JobPhase_JOB_DONE, ExitCode: end.Exit.Code})
			}
		case state := <-ended:
			if state.GetExitCode() != 3 {
				t.Errorf("it has ended as %v", state)
			}
			return
		case <-time.After(time.Minute):
			t.Fatal("it does not end")
		}
	}
}

// An allocation that serve ends, or does not know any more, has ended for its client, too.
func TestEnds(t *testing.T) {
	for name, end := range map[string]func(s *playedServe, q question){
		"time limit": func(_ *playedServe, q question) {
			_ = q.conn.Send(&control.JobState{Job: 7, Phase: control.JobPhase_JOB_DONE, Error: control.FromError(control.Failf(control.Code_CODE_TIME_LIMIT, "time limit"))})
		},
		"there is no job 7": func(s *playedServe, q question) {
			q.conn.Close()
			q, _ = next[*control.Attach](s)
			q.conn.Answer(q.frame, nil, control.Failf(control.Code_CODE_NOT_FOUND, "there is no job 7"))
		},
		"machine is gone": func(s *playedServe, q question) {
			s.listen.Close()
			os.RemoveAll(filepath.Dir(s.socket))
			q.conn.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "m", "s")
			if err := os.Mkdir(filepath.Dir(socket), 0o700); err != nil {
				t.Fatal(err)
			}
			s := play(t, socket)
			got := ask(socket, func(string) {})
			q, _ := next[*control.RunRequest](s)
			q.conn.Answer(q.frame, &control.RunReply{Job: 7}, nil)
			a := <-got
			defer a.Close()
			end(s, q)
			<-a.Ended()
			state, err := a.End()
			if err == nil {
				err = state.GetError().Err()
			}
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("it has ended with %v", err)
			}
		})
	}
}

// A refusal is an error, and a client that is interrupted while it waits says why.
func TestRefused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	s := play(t, socket)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	cause := errors.New("Ctrl-C")
	for _, want := range []error{&control.Failure{Code: control.Code_CODE_NO_ROOM}, cause} {
		failed := make(chan error, 1)
		go func() {
			_, err := Ask(ctx, Options{Socket: socket, Spec: new(control.JobSpec), Notice: func(string) {}})
			failed <- err
		}()
		q, _ := next[*control.RunRequest](s)
		if want == cause {
			cancel(cause)
		} else {
			q.conn.Answer(q.frame, nil, control.Failf(control.Code_CODE_NO_ROOM, "no room"))
		}
		if err := <-failed; !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}
