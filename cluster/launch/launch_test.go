package launch

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
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

func TestRun(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(3)
		c.says(1, "hello\nwor")
		c.says(1, "hello\nwor") // sent again
		c.says(2, "ld\n")
		for {
			ack, f := expect[*control.Ack](c)
			if f == nil || ack.Seq == 2 {
				break
			}
		}
		c.done(ok())
	})
	l := newLauncher(t, s, 3)
	l.Status.Verbose = true
	started := 0
	l.Started = func(job uint32) error { started = int(job); return nil }
	code, err := l.run(t)
	if code != 0 || err != nil || l.stdout.String() != "hello\nworld\n" || started != 5 {
		t.Errorf("status %d, %v, output %q, started %d", code, err, l.stdout.String(), started)
	}
	if l.status.String() != "margay: job 5: 3 ranks on node0-1\n" {
		t.Errorf("the user is told %q", l.status.String())
	}
}

func TestExitStatus(t *testing.T) {
	ranks := []*control.RankState{{Rank: 0}, {Rank: 1, Node: 4, Exit: &control.ExitStatus{Code: 3}},
		{Rank: 2, Node: 4, Exit: &control.ExitStatus{Signal: 9, Reason: "out of memory (limit 64 MiB)"}}}
	failure := func(code control.Code) *control.Error {
		return control.FromError(control.Failf(code, "because").At(1))
	}
	cases := []struct {
		name  string
		state *control.JobState
		want  string
	}{
		{"well", &control.JobState{FirstFailed: control.None}, ""},
		{"status", &control.JobState{FirstFailed: 1, ExitCode: 3, Ranks: ranks}, "rank 1 on node4 exited with status 3"},
		{"signal", &control.JobState{FirstFailed: 2, ExitCode: 137, Ranks: ranks}, "rank 2 on node4 was killed by SIGKILL: out of memory (limit 64 MiB)"},
		{"as a whole", &control.JobState{FirstFailed: control.None, ExitCode: 125, Error: failure(control.Code_CODE_NODE_LOST)}, "node1: because"},
		{"no such rank", &control.JobState{FirstFailed: 7, ExitCode: 125, Ranks: ranks}, ""},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			s := serveTo(t, func(c *talk) {
				c.launched(3)
				c.done(k.state)
			})
			code, err := newLauncher(t, s, 3).run(t)
			if code != int(k.state.ExitCode) || (err == nil) != (k.want == "") || err != nil && err.Error() != k.want {
				t.Errorf("status %d, %v", code, err)
			}
		})
	}
}

// When a job goes on although ranks fail, it is said how many did.
func TestKeepGoing(t *testing.T) {
	failed := func(code int32) *control.RankState {
		return &control.RankState{Node: 4, Ended: true, Exit: &control.ExitStatus{Code: code}}
	}
	killed := &control.RankState{Node: 4, Ended: true, Exit: &control.ExitStatus{Signal: 9}}
	for want, ranks := range map[string][]*control.RankState{
		"rank 0 on node4 exited with status 3":                       {failed(3), failed(0), failed(0)},
		"rank 0 on node4 exited with status 3; 3 of 3 ranks failed":  {failed(3), killed, failed(1)},
		"rank 0 on node4 was killed by SIGKILL; 2 of 3 ranks failed": {killed, failed(0), failed(1)},
	} {
		for _, keepGoing := range []bool{true, false} {
			s := serveTo(t, func(c *talk) {
				c.launched(3)
				c.done(&control.JobState{ExitCode: 3, Ranks: ranks})
			})
			l := newLauncher(t, s, 3)
			l.Spec.KeepGoing = keepGoing
			said := want
			if !keepGoing { // the others were ended
				said, _, _ = strings.Cut(want, ";")
			}
			if code, err := l.run(t); code != 3 || err == nil || err.Error() != said {
				t.Errorf("keep going %v: status %d, %v", keepGoing, code, err)
			}
		}
	}
}

func TestExitStatusOfErrors(t *testing.T) {
	for _, k := range []struct {
		err  error
		code int
	}{
		{ErrNotFound, 127}, {control.Failf(control.Code_CODE_NOT_FOUND, "x"), 127}, {ErrNotExecutable, 126},
		{control.Failf(control.Code_CODE_NOT_EXECUTABLE, "x"), 126}, {control.Failf(control.Code_CODE_NO_ROOM, "x"), ExitMargay}, {io.EOF, ExitMargay},
	} {
		if code := ExitStatus(k.err); code != k.code {
			t.Errorf("%v is status %d", k.err, code)
		}
	}
}

func TestRefusedJob(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, nil, control.Failf(control.Code_CODE_NOT_EXECUTABLE, "it is for pdp11"))
	})
	if code, err := newLauncher(t, s, 1).run(t); code != 126 || err == nil || err.Error() != "it is for pdp11" {
		t.Errorf("status %d, %v", code, err)
	}
}

// When serve is started again the job goes on: nothing is printed twice, and what was not
// acknowledged is waited for.
func TestReconnect(t *testing.T) {
	s := serveTo(t,
		func(c *talk) {
			c.launched(1)
			c.says(1, "a")
			expect[*control.Ack](c)
		},
		func(c *talk) { expect[*control.Attach](c) }, // it is killed again before it can answer
		func(c *talk) {
			c.attached()
			c.says(3, "c") // the one before it was lost with the connection
			c.says(1, "a")
			c.says(2, "b")
			for {
				if ack, f := expect[*control.Ack](c); f == nil || ack.Seq == 2 {
					break
				}
			}
			c.done(ok())
		})
	l := newLauncher(t, s, 1)
	if code, err := l.run(t); code != 0 || err != nil || l.stdout.String() != "ab" {
		t.Errorf("status %d, %v, output %q", code, err, l.stdout.String())
	}
	if !strings.Contains(l.status.String(), "the connection to serve is lost") || !strings.Contains(l.status.String(), "job 5 goes on") {
		t.Errorf("the user is told %q", l.status.String())
	}
}

func TestEndedMeanwhile(t *testing.T) {
	s := serveTo(t, func(c *talk) { c.launched(1) }, func(c *talk) {
		_, f := expect[*control.Attach](c)
		c.Answer(f, &control.JobState{Job: 5, Phase: control.JobPhase_JOB_DONE, FirstFailed: control.None, ExitCode: 125, Error: &control.Error{Text: "x", Node: -1, Rank: -1}}, nil)
		expect[*control.Ack](c)
	})
	if code, err := newLauncher(t, s, 1).run(t); code != 125 || err == nil || err.Error() != "x" {
		t.Errorf("status %d, %v", code, err)
	}
}

// What ends the job and the end of the connection can come together. It is the job's end that
// counts.
func TestEndAndHangUp(t *testing.T) {
	near, far := net.Pipe()
	far.Close()
	conn := control.NewConn(near)
	conn.Close()
	for range 50 {
		s := &session{Options: Options{Socket: "/no/such/socket", Status: &Status{W: io.Discard}, Spec: new(control.JobSpec)}, conn: conn,
			running: make(chan struct{}), ended: make(chan *control.JobState, 1), failed: make(chan error, 1)}
		s.ended <- &control.JobState{FirstFailed: control.None, ExitCode: 125, Error: &control.Error{Text: "the machine goes down", Node: -1, Rank: -1}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		code, err := s.wait(ctx)
		cancel()
		if code != 125 || err == nil || err.Error() != "the machine goes down" {
			t.Fatalf("status %d, %v", code, err)
		}
	}
}

// A launch that a restart of serve has spoilt is repeated, but not for ever.
func TestSpoiltLaunch(t *testing.T) {
	cut := func(c *talk) { expect[*control.RunRequest](c) }
	spoilt := func(c *talk) {
		c.launched(1)
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 125, Error: control.FromError(control.Failf(control.Code_CODE_RESTARTED, "serve was started again"))})
		expect[*control.Ack](c)
	}
	s := serveTo(t, cut, spoilt, func(c *talk) {
		c.launched(1)
		c.done(ok())
	})
	if code, err := newLauncher(t, s, 1).run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
	s = serveTo(t, slices.Repeat([]func(*talk){cut}, launchTries)...)
	if code, err := newLauncher(t, s, 1).run(t); code != ExitMargay || !errors.Is(err, errSpoilt) {
		t.Errorf("status %d, %v", code, err)
	}
}

// A launch that the end of the machine has cut short is not repeated.
func TestMachineGoesDownDuringLaunch(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		expect[*control.RunRequest](c)
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 125, Error: control.FromError(control.Failf(control.Code_CODE_NODE_LOST, "the machine goes down"))})
	})
	if code, err := newLauncher(t, s, 1).run(t); code != ExitMargay || err == nil || err.Error() != "the machine goes down" {
		t.Errorf("status %d, %v", code, err)
	}
}

// What serve says of its end is the end of the job, whether it was launched or runs: no other serve
// is looked for.
func TestMachineGoesDown(t *testing.T) {
	for name, before := range map[string]func(c *talk){
		"while it is launched": func(c *talk) { expect[*control.RunRequest](c) },
		"while it runs":        func(c *talk) { c.launched(1) },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLauncher(t, serveTo(t, func(c *talk) {
				before(c)
				c.Dismiss(control.Failf(control.Code_CODE_DOWN, "the machine goes down"))
			}), 1)
			if code, err := l.run(t); code != ExitMargay || err == nil || err.Error() != "the machine goes down" || strings.Contains(l.status.String(), "looking") {
				t.Errorf("status %d, %v, the user is told %q", code, err, l.status.String())
			}
		})
	}
}

// A machine that has gone without a word is looked for until its folder is gone.
func TestMachineIsGone(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		if err := os.RemoveAll(filepath.Dir(c.serve.socket)); err != nil {
			t.Error(err)
		}
	})
	if code, err := newLauncher(t, s, 1).run(t); code != ExitMargay || err == nil || err.Error() != "job 5 is lost: the machine is gone" {
		t.Errorf("status %d, %v", code, err)
	}
}

func TestDetach(t *testing.T) {
	s := serveTo(t, func(c *talk) { c.launched(1) })
	l := newLauncher(t, s, 1)
	l.Spec.Detach = true
	if code, err := l.run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// A job that has ended by the time that its beginning is looked at has begun: its number is
// reported, whatever its status.
func TestDetachedJobEndsAtOnce(t *testing.T) {
	for range 50 {
		var started []uint32
		s := &session{
			Options: Options{Spec: &control.JobSpec{Detach: true}, Started: func(job uint32) error { started = append(started, job); return nil }},
			job:     5, running: make(chan struct{}), ended: make(chan *control.JobState, 1), failed: make(chan error, 1), conn: new(control.Conn),
		}
		s.state(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING})
		s.state(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_DONE, ExitCode: 3})
		if code, err := s.wait(t.Context()); code != 0 || err != nil || len(started) != 1 || started[0] != 5 {
			t.Fatalf("status %d, %v, numbers %v", code, err, started)
		}
	}
	// A job number that cannot be printed is an error.
	full := errors.New("no space left on device")
	for _, phase := range []control.JobPhase{control.JobPhase_JOB_RUNNING, control.JobPhase_JOB_DONE} {
		s := &session{
			Options: Options{Spec: &control.JobSpec{Detach: true}, Started: func(uint32) error { return full }},
			running: make(chan struct{}), ended: make(chan *control.JobState, 1), failed: make(chan error, 1), conn: new(control.Conn),
		}
		s.state(&control.JobState{Job: 5, Phase: phase})
		if code, err := s.wait(t.Context()); code != ExitMargay || !errors.Is(err, full) {
			t.Errorf("status %d, %v", code, err)
		}
	}
	// One that never ran has no number worth reporting.
	s := serveTo(t, func(c *talk) {
		if _, f := expect[*control.RunRequest](c); f != nil {
			c.Answer(f, &control.RunReply{Job: 5}, nil)
			c.done(&control.JobState{FirstFailed: control.None, ExitCode: ExitMargay, Error: &control.Error{Text: "node1 is full"}})
		}
	})
	l := newLauncher(t, s, 1)
	l.Spec.Detach = true
	l.Started = func(job uint32) error { t.Errorf("job %d has begun", job); return nil }
	if code, err := l.run(t); code != ExitMargay || err == nil {
		t.Errorf("status %d, %v", code, err)
	}
}

func TestOutputIsGone(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		c.says(1, "x")
		if _, f := expect[*control.Ack](c); f != nil {
			t.Error("what could not be printed was acknowledged")
		}
	})
	l := newLauncher(t, s, 1)
	l.Stdout = brokenWriter{}
	if code, err := l.run(t); code != ExitMargay || !errors.Is(err, errBroken) {
		t.Errorf("status %d, %v", code, err)
	}
}

func TestFileIsGone(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5}, nil)
		expect[*control.Ack](c)
	})
	l := newLauncher(t, s, 1)
	l.Files.List[0].Path = "/no/such/program"
	if code, err := l.run(t); code != ExitMargay || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("status %d, %v", code, err)
	}
}

func TestStdinToJob(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		var text string
		for {
			m, f := expect[*control.Stdin](c)
			if f == nil {
				return
			}
			text += string(m.Data)
			_ = c.Send(&control.StdinTaken{Job: 5, Offset: uint64(len(text))})
			if m.Eof {
				break
			}
		}
		if text != "typed" {
			t.Errorf("the ranks read %q", text)
		}
		c.done(ok())
	})
	l := newLauncher(t, s, 1)
	l.Spec.Stdin = control.StdinMode_STDIN_FIRST
	l.Stdin = strings.NewReader("typed")
	if code, err := l.run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// Input read before an error reaches the ranks, and the command does not succeed.
func TestStdinBreaks(t *testing.T) {
	for code, want := range map[int32]int{0: ExitMargay, 3: 3} {
		s := serveTo(t, func(c *talk) {
			c.launched(1)
			for {
				if m, f := expect[*control.Stdin](c); f == nil || m.Eof {
					break
				}
			}
			state := ok()
			if state.ExitCode = code; code != 0 {
				state.FirstFailed = 0
				state.Ranks = []*control.RankState{{Ended: true, Exit: &control.ExitStatus{Code: code}}}
			}
			c.done(state)
		})
		l := newLauncher(t, s, 1)
		l.Spec.Stdin = control.StdinMode_STDIN_FIRST
		l.Stdin = io.MultiReader(strings.NewReader("typed"), iotest.ErrReader(unix.EISDIR))
		got, err := l.run(t)
		if got != want || err == nil || (code == 0) != (err.Error() == "read standard input: is a directory; the ranks were given 5 bytes") {
			t.Errorf("ranks end with %d: status %d, %v", code, got, err)
		}
	}
}

// A signal is passed on; a second interrupt soon after the first ends the job.
func TestSignals(t *testing.T) {
	signals, started := make(chan os.Signal), make(chan struct{})
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		<-started
		for _, sig := range []os.Signal{unix.SIGUSR1, unix.SIGINT, unix.SIGINT} {
			signals <- sig
			if m, f := expect[*control.Signal](c); f != nil && (m.Job != 5 || m.Rank != control.None || m.Signal != int32(sig.(unix.Signal))) {
				t.Errorf("%v is passed on as %v", sig, m)
			}
		}
		if m, f := expect[*control.Kill](c); f == nil || !m.Force || m.Job != 5 {
			t.Errorf("the job is ended with %v", m)
		}
		c.done(&control.JobState{FirstFailed: control.None, ExitCode: 137, Error: control.FromError(control.Failf(control.Code_CODE_KILLED, "killed"))})
	})
	l := newLauncher(t, s, 1)
	l.Signals = signals
	l.Started = func(uint32) error { close(started); return nil }
	code, err := l.run(t)
	if code != 130 || err == nil || err.Error() != "job 5 was ended by Ctrl-C" {
		t.Errorf("status %d, %v", code, err)
	}
	told := "margay: SIGINT is sent to the ranks of job 5; Ctrl-C again within 3 s ends the job\nmargay: ending job 5\n"
	if l.status.String() != told {
		t.Errorf("the user is told %q", l.status.String())
	}
}

// Whatever the time between interrupts, each does something: announce, end or leave.
func TestInterrupts(t *testing.T) {
	for _, test := range []struct {
		name  string
		after []time.Duration
		want  []insistence
	}{
		{"twice", []time.Duration{0, 2 * time.Second}, []insistence{announce, end}},
		{"slowly", []time.Duration{0, 4 * time.Second, 4 * time.Second, time.Second}, []insistence{announce, announce, announce, end}},
		{"the limit", []time.Duration{0, insist, insist - 1}, []insistence{announce, announce, end}},
		{"thrice", []time.Duration{0, time.Second, time.Hour}, []insistence{announce, end, leave}},
	} {
		var i interrupts
		now := time.Now()
		for n, after := range test.after {
			now = now.Add(after)
			if got := i.next(now); got != test.want[n] {
				t.Errorf("%s: interrupt %d means %v", test.name, n, got)
			}
		}
	}
}

func isUSR1(m proto.Message) bool {
	s, is := m.(*control.Signal)
	return is && s.Signal == int32(unix.SIGUSR1)
}

// messages are all that clients have sent.
func (s *playedServe) messages() []proto.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// While there is no job yet, because serve does not answer, a signal ends the client, and one for
// ranks waits for them.
func TestEarlySignals(t *testing.T) {
	signals := make(chan os.Signal, 2)
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		if f != nil {
			signals <- unix.SIGINT
		}
		expect[*control.Ack](c) // until the client has gone
	}, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 1}, nil)
		signals <- unix.SIGINT  // while its files are copied
		expect[*control.Ack](c) // until the client has gone
	}, func(c *talk) {
		c.launched(1)
		for c.Err() == nil && !slices.ContainsFunc(c.serve.messages(), isUSR1) {
			time.Sleep(time.Millisecond)
		}
		c.done(ok())
	})
	l := newLauncher(t, s, 1)
	l.Signals = signals
	for range 2 {
		if code, err := l.run(t); code != 130 || err == nil || err.Error() != "ended by SIGINT" {
			t.Errorf("status %d, %v", code, err)
		}
	}
	signals <- unix.SIGUSR1
	if code, err := l.run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// A signal that comes while the client looks for a serve that is away ends the client during a
// launch, as at any other time of it.
func TestSignalWhileServeIsAway(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGINT, unix.SIGTERM} {
		l := newLauncher(t, serveTo(t, func(c *talk) {
			_, f := expect[*control.RunRequest](c)
			c.Answer(f, &control.RunReply{Job: 5}, nil)
		}), 1)
		signals := make(chan os.Signal, 1)
		l.Signals = signals
		l.Status = &Status{W: writes(func(text []byte) {
			if strings.Contains(string(text), "looking for it") {
				signals <- sig
			}
		})}
		code, err := l.run(t)
		var interrupted *Interrupted
		if code != 128+int(sig) || !errors.As(err, &interrupted) || interrupted.Signal != sig {
			t.Errorf("%v: status %d, %v", sig, code, err)
		}
	}
}

// writes is a terminal that reports each write.
type writes func(text []byte)

func (w writes) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

// An ended client takes no further signal: it may be meant for the repeated launch.
func TestSignalsOfTheNext(t *testing.T) {
	const tries = 20
	signals := make(chan os.Signal, 1)
	plays := make([]func(*talk), tries)
	for i := range plays {
		plays[i] = func(c *talk) {
			c.launched(1)
			expect[*control.Signal](c)
			c.done(ok())
		}
	}
	l := newLauncher(t, serveTo(t, plays...), 1)
	l.Signals, l.Status = signals, &Status{W: slow{}}
	l.Started = func(uint32) error { signals <- unix.SIGINT; return nil }
	for range tries {
		if code, err := l.run(t); code != 0 {
			t.Fatalf("status %d, %v", code, err)
		}
		signals <- unix.SIGUSR1
		time.Sleep(2 * slowness)
		select {
		case <-signals:
		default:
			t.Fatal("the next signal was taken")
		}
	}
}

// slow is a terminal that takes its time.
type slow struct{}

const slowness = 10 * time.Millisecond

func (slow) Write(text []byte) (int, error) {
	time.Sleep(slowness)
	return len(text), nil
}

// When the terminal closes, the ranks get the signal, and then the job is given up.
func TestHangUp(t *testing.T) {
	signals, started := make(chan os.Signal), make(chan struct{})
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		<-started
		signals <- unix.SIGHUP
		if m, f := expect[*control.Signal](c); f == nil || m.Signal != int32(unix.SIGHUP) {
			t.Errorf("the ranks are told %v", m)
		}
		expect[*control.Ack](c)
	})
	l := newLauncher(t, s, 1)
	l.Signals, l.Started = signals, func(uint32) error { close(started); return nil }
	if code, err := l.run(t); code != ExitMargay || !errors.Is(err, errHangUp) {
		t.Errorf("status %d, %v", code, err)
	}
}

func TestNodeList(t *testing.T) {
	for want, nodes := range map[string][]uint32{"": nil, "node7": {7, 7}, "node0-2": {0, 1, 1, 2}, "node0,node2-3,node9": {0, 2, 3, 9}} {
		var places []*control.Place
		for _, n := range nodes {
			places = append(places, &control.Place{Node: n})
		}
		if list := nodeList(places); list != want {
			t.Errorf("%v is %q", nodes, list)
		}
	}
}

// A detached job's output is printed like another's, from its beginning to its end.
func TestReplay(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.ListJobs](c)
		c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, Ranks: 2}}}, nil)
		m, f := expect[*control.Attach](c)
		if f == nil || !m.Output {
			t.Errorf("the output is asked for with %v", m)
			return
		}
		c.says(1, "a")
		_ = c.Send(&control.Record{Job: 5, Rank: 1, Seq: 2, Stream: control.Stream_STREAM_STDERR, Data: []byte("e\n")})
		c.says(3, "b\nend")
		c.Answer(f, nil, control.Failf(control.Code_CODE_FAILED, "some is missing"))
		_, f = expect[*control.ListJobs](c)
		c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: 5, Unkept: []*control.Unkept{{Files: 1, Names: []string{"x"}}}}}}, nil)
	})
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := Replay(ctx, s.socket, 5, true, &out, &errs)
	if err == nil || err.Error() != "some is missing" || out.String() != "[0] ab\n[0] end\n" ||
		errs.String() != "[1] e\nmargay: 1 file written by ranks was not kept: x\n" {
		t.Errorf("%v; printed %q and %q", err, out.String(), errs.String())
	}
}

// A run leaves no goroutine behind.
func TestRunLeavesNothing(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("run", func(t *testing.T) {
		s := serveTo(t, func(c *talk) { c.launched(1) }, func(c *talk) {
			c.attached()
			c.done(&control.JobState{FirstFailed: control.None})
			expect[*control.Ack](c)
		})
		if code, err := newLauncher(t, s, 1).run(t); code != 0 || err != nil {
			t.Errorf("status %d, %v", code, err)
		}
	})
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, before there were %d:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}
