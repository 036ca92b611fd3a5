package jobs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"margay/cluster/control"
)

// patience bounds every wait of these tests.
const patience = time.Minute

// played is a serve whose jobs are those that it is asked for, with the numbers 1, 2 and so on.
// Each writes the words after its name and, unless that is "wait", exits with the status that the
// word "status" precedes.
type played struct {
	t *testing.T

	mu   sync.Mutex
	jobs []*control.RunRequest
	got  []*control.Kill
}

// serve plays a serve of the machine default.
func serve(t *testing.T) *played {
	t.Helper()
	dir, err := os.MkdirTemp("", "margay") // short enough for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("MARGAY_DIR", dir)
	t.Setenv("MARGAY_MACHINE", "")
	t.Setenv("MARGAY_RANK", "")
	if err := os.Mkdir(filepath.Join(dir, "default"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "default", "serve.sock"))
	if err != nil {
		t.Fatal(err)
	}
	p := &played{t: t}
	var talking sync.WaitGroup
	talking.Go(func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			talking.Go(func() { p.talk(control.NewConn(raw)) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		talking.Wait()
		os.RemoveAll(dir)
	})
	return p
}

func (p *played) talk(c *control.Conn) {
	defer c.Close()
	if _, err := c.Meet(); err != nil {
		p.t.Error(err)
		return
	}
	_ = c.Send(&control.Welcome{Version: control.Version})
	_ = c.Serve(func(f *control.Frame) { p.handle(c, f) })
}

func (p *played) handle(c *control.Conn, f *control.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch m := f.Message().(type) {
	case *control.Status:
		c.Answer(f, &control.MachineStatus{}, nil)
	case *control.ListJobs:
		c.Answer(f, &control.Jobs{Jobs: []*control.JobSummary{{Job: m.Job, Nodes: []uint32{1, 3}, Phase: control.JobPhase_JOB_RUNNING + control.JobPhase(m.Job%2)*2}}}, nil)
	case *control.ListNodes:
		c.Answer(f, &control.Nodes{Nodes: []*control.NodeState{{
			Node: 2, Health: control.NodeHealth_NODE_UP, Cores: []*control.CoreUse{{Core: 1, Job: 4}, {Core: 2, Job: 4}, {Core: 3}},
		}}}, nil)
	case *control.RunRequest:
		if m.Spec.Ranks > 8 {
			c.Answer(f, nil, control.Failf(control.Code_CODE_NO_ROOM, "there are 8 cores"))
			return
		}
		p.jobs = append(p.jobs, m)
		c.Answer(f, &control.RunReply{Job: uint32(len(p.jobs)), Places: make([]*control.Place, m.Spec.Ranks), Loaded: true}, nil)
	case *control.FileChunk:
		p.run(c, m.Job)
	case *control.Kill:
		p.got = append(p.got, m)
		c.Answer(f, &control.Done{}, nil)
		p.end(c, m.Job, &control.ExitStatus{Signal: m.Signal})
	}
}

// run runs a job.
func (p *played) run(c *control.Conn, job uint32) {
	words := p.jobs[job-1].Exec.Argv
	_ = c.Send(&control.JobState{Job: job, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None})
	_ = c.Send(&control.Record{Job: job, Seq: 1, Stream: control.Stream_STREAM_STDOUT, Data: bytes.Join(words[1:], []byte(" "))})
	status := new(control.ExitStatus)
	switch len(words) {
	case 2:
		if string(words[1]) == "wait" {
			return
		}
	case 3:
		fmt.Sscan(string(words[2]), &status.Code)
	}
	p.end(c, job, status)
}

// end ends a job of one rank.
func (p *played) end(c *control.Conn, job uint32, status *control.ExitStatus) {
	state := &control.JobState{
		Job: job, Phase: control.JobPhase_JOB_DONE, FirstFailed: control.None, ExitCode: status.Code + min(status.Signal, 1)*128 + status.Signal,
		Ranks: []*control.RankState{{Node: 2, Core: 1, Ended: true, Exit: status}},
	}
	if state.ExitCode != 0 {
		state.FirstFailed = 0
	}
	_ = c.Send(state)
}

// load returns a program, which never runs.
func load(t *testing.T) *Program {
	t.Helper()
	program, err := Load("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	return program
}

// connect connects to the played serve.
func connect(t *testing.T) (context.Context, *Machine) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	m, err := Connect(ctx, "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	return ctx, m
}

// Many goroutines run jobs over one Machine. Each gets the output and the end of its own job.
func TestJobs(t *testing.T) {
	p := serve(t)
	ctx, m := connect(t)
	program := load(t)
	var running sync.WaitGroup
	for i := range 50 {
		running.Go(func() {
			var out bytes.Buffer
			r, err := m.Run(ctx, Spec{Program: program, Args: []string{"status", fmt.Sprint(i % 3)}, Wait: Forever, Stdout: &out})
			if out.String() != fmt.Sprint("status ", i%3) || r.Status != i%3 || (err != nil) != (i%3 > 0) || len(r.Ranks) != 1 || r.Ranks[0].Status != i%3 || r.Ranks[0].Node != 2 {
				t.Errorf("%v, %v, output %q", r, err, out.String())
			}
		})
	}
	running.Wait()
	var outputs [2]bytes.Buffer
	j, err := m.Start(ctx, Spec{Program: program, Args: []string{"wait"}, Output: func(rank int, stderr bool) io.Writer {
		if rank != 0 || stderr {
			t.Errorf("rank %d, standard error: %v", rank, stderr)
		}
		return &outputs[rank]
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(j.Signal(ctx, All, syscall.SIGUSR1), m.Signal(ctx, 7, 3, syscall.SIGHUP)); err != nil {
		t.Error(err)
	}
	if r, err := j.Wait(); r.Status != 128+int(syscall.SIGUSR1) || err == nil || r.Ranks[0].Signal != syscall.SIGUSR1 || j.Number() != 51 || outputs[0].String() != "wait" {
		t.Errorf("job %d: %v, %v, output %q", j.Number(), r, err, outputs[0].String())
	}
	p.mu.Lock()
	if len(p.got) != 2 || p.got[0].Rank != All || p.got[1].Rank != 3 || p.got[1].Job != 7 {
		t.Errorf("signals: %v", p.got)
	}
	p.mu.Unlock()
	ending, cancel := context.WithCancelCause(ctx)
	if j, err = m.Start(ending, Spec{Program: program, Args: []string{"wait"}}); err != nil {
		t.Fatal(err)
	}
	enough := errors.New("enough")
	cancel(enough)
	if _, err := j.Wait(); !errors.Is(err, enough) {
		t.Errorf("a job that is given up: %v", err)
	}
	nodes, err := m.Nodes(ctx)
	if err != nil || len(nodes) != 1 || nodes[0].Free != 1 || nodes[0].Cores != 3 || !nodes[0].Up || !slices.Equal(nodes[0].Jobs, []int{4}) {
		t.Errorf("nodes: %v, %v", nodes, err)
	}
}

// A job beside another one has a rank on each of its nodes, and is refused when that has ended.
func TestBeside(t *testing.T) {
	p := serve(t)
	ctx, m := connect(t)
	program := load(t)
	if _, err := m.Run(ctx, Spec{Program: program, Beside: 2}); err != nil {
		t.Error(err)
	}
	p.mu.Lock()
	if spec := p.jobs[0].Spec; spec.Ranks != 2 || spec.Nodes != 2 || !slices.Equal(spec.Only, []uint32{1, 3}) {
		t.Errorf("it asks for %v", spec)
	}
	p.mu.Unlock()
	if _, err := m.Start(ctx, Spec{Program: program, Beside: 1}); !errors.Is(err, ErrNoJob) || err.Error() != "no job can run beside job 1: it has ended" {
		t.Errorf("beside a job that has ended: %v", err)
	}
}

// Impossible requests are refused, with errors that a program can act upon.
func TestJobsRefused(t *testing.T) {
	serve(t)
	ctx, m := connect(t)
	program := load(t)
	for _, c := range []struct {
		spec Spec
		want string
	}{
		{Spec{}, "needs a Program"},
		{Spec{Program: program, Ranks: -1}, "negative"},
		{Spec{Program: program, Wait: -2}, "negative"},
		{Spec{Program: program, Beside: 1, Ranks: 2}, "excludes Ranks"},
		{Spec{Program: program, Only: []int{-1}}, "no node -1"},
		{Spec{Program: program, Detach: true, Stdout: io.Discard}, "margay logs"},
		{Spec{Program: program, Args: []string{strings.Repeat("x", 1<<20)}}, "argument list too long"},
	} {
		if _, err := m.Start(ctx, c.spec); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v instead of %s", err, c.want)
		}
	}
	if _, err := m.Start(ctx, Spec{Program: program, Ranks: 9}); !errors.Is(err, ErrNoCores) {
		t.Errorf("a job that does not fit: %v", err)
	}
	if err := m.Signal(ctx, 0, All, syscall.SIGTERM); !errors.Is(err, ErrNoJob) {
		t.Errorf("a signal to job 0: %v", err)
	}
	if err := m.Signal(ctx, 1, -2, syscall.SIGTERM); err == nil {
		t.Error("a signal to rank -2 is sent")
	}
	m.Close()
	if _, err := m.Start(ctx, Spec{Program: program}); !errors.Is(err, ErrClosed) {
		t.Errorf("a job of a Machine that is closed: %v", err)
	}
	if _, err := Connect(ctx, "other"); !errors.Is(err, ErrDown) {
		t.Errorf("a machine that is not up: %v", err)
	}
	if _, err := Connect(ctx, "a/b"); err == nil {
		t.Error("a machine is called a/b")
	}
	t.Setenv("MARGAY_RANK", "0")
	if _, err := Connect(ctx, ""); err == nil || !strings.Contains(err.Error(), "a rank cannot start jobs") {
		t.Errorf("a rank: %v", err)
	}
}
