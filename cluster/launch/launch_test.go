package launch

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

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

func TestDetach(t *testing.T) {
	s := serveTo(t, func(c *talk) { c.launched(1) })
	l := newLauncher(t, s, 1)
	l.Spec.Detach = true
	if code, err := l.run(t); code != 0 || err != nil {
		t.Errorf("status %d, %v", code, err)
	}
}

// A job whose beginning came before the connection ended has begun: it is not looked for again.
func TestDetachAndEndOfConnection(t *testing.T) {
	for range 50 {
		raw, _ := net.Pipe()
		conn := control.NewConn(raw)
		conn.Close()
		s := &session{
			Options: Options{Spec: &control.JobSpec{Detach: true}},
			job:     5, running: make(chan struct{}), ended: make(chan *control.JobState, 1), failed: make(chan error, 1), conn: conn,
		}
		s.state(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING})
		if code, err := s.wait(t.Context()); code != 0 || err != nil {
			t.Fatalf("status %d, %v", code, err)
		}
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
		if m, _ := expect[*control.Leave](c); m.GetJob() != 5 || m.GetWhy() != "write output: broken pipe" {
			t.Errorf("serve gets %v", m)
		}
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

// serve gets the reason why a job is given up for its output files before its ranks run.
func TestNoOutputFile(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: twoRanks}, nil)
		if m, _ := expect[*control.Leave](c); m.GetJob() != 5 || !strings.HasSuffix(m.GetWhy(), "none?/out: no such file or directory") {
			t.Errorf("serve gets %v", m)
		}
	})
	l := newLauncher(t, s, 2)
	l.OutputFile = filepath.Join(t.TempDir(), "none\xff", "out")
	if code, err := l.run(t); code != ExitMargay || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("status %d, %v", code, err)
	}
}

// serve gets the reason why a job is given up because its number cannot be written.
func TestNoNumberWritten(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		if m, _ := expect[*control.Leave](c); m.GetJob() != 5 || m.GetWhy() != errBroken.Error() {
			t.Errorf("serve gets %v", m)
		}
	})
	l := newLauncher(t, s, 1)
	l.Started = func(uint32) error { return errBroken }
	if code, err := l.run(t); code != ExitMargay || !errors.Is(err, errBroken) {
		t.Errorf("status %d, %v", code, err)
	}
}

// No job is asked for with a small file that cannot be read. A large one is read later.
func TestFileIsGone(t *testing.T) {
	for size, asked := range map[int64]bool{100: false, control.FilesAhead + 1: true} {
		s := serveTo(t, func(c *talk) {
			_, f := expect[*control.RunRequest](c)
			if (f != nil) != asked {
				t.Errorf("a job with a file of %d bytes is asked for: %v", size, f != nil)
			}
			if f != nil {
				c.Answer(f, &control.RunReply{Job: 5}, nil)
				expect[*control.Ack](c)
			}
		})
		l := newLauncher(t, s, 1)
		l.Files.List[0].Path, l.Files.List[0].Size = "/no/such/program", size
		if code, err := l.run(t); code != ExitMargay || !errors.Is(err, os.ErrNotExist) {
			t.Errorf("status %d, %v", code, err)
		}
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

// A node that has connected again gets what its ranks have not taken, and the end, once more.
func TestStdinAgain(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		for ended := false; !ended; {
			m, f := expect[*control.Stdin](c)
			if f == nil {
				return
			}
			ended = m.Eof
		}
		_ = c.Send(&control.StdinTaken{Job: 5, Offset: 2})
		_ = c.Send(&control.Rewind{Job: 5, Node: 4})
		if m, _ := expect[*control.Stdin](c); m.GetOffset() != 2 || string(m.GetData()) != "ped" || !m.GetEof() || !slices.Equal(m.GetOnly(), []uint32{4}) {
			t.Errorf("sent again: %v", m)
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

// Standard input that is open for writing alone ends at once, and does no harm.
func TestStdinForWriting(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	s := serveTo(t, func(c *talk) {
		c.launched(1)
		if m, _ := expect[*control.Stdin](c); !m.GetEof() || len(m.GetData()) > 0 {
			t.Errorf("standard input is %v", m)
		}
		c.done(ok())
		c.left()
	})
	l := newLauncher(t, s, 1)
	l.Spec.Stdin = control.StdinMode_STDIN_FIRST
	l.Stdin = null
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

func TestNodeList(t *testing.T) {
	for want, nodes := range map[string][]uint32{"": nil, "node7": {7, 7}, "node0-2": {0, 1, 1, 2}, "node0,2-3,9": {0, 2, 3, 9}} {
		var places []*control.Place
		for _, n := range nodes {
			places = append(places, &control.Place{Node: n})
		}
		if list := nodeList(places); list != want {
			t.Errorf("%v is %q", nodes, list)
		}
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
