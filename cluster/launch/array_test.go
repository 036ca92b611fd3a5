package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/launch/array"
)

// arrayServe plays a serve that runs tasks. It keeps its jobs over its connections, as serve does.
type arrayServe struct {
	t     *testing.T
	r     *rand.Rand
	spoil bool // launches

	mu    sync.Mutex // guards the rest; each connection has its goroutine
	array uint32
	jobs  map[uint32]*playedTask
	ran   map[uint32]int // by task: how often it has run

	spoilt map[uint32]bool // by task
}

type playedTask struct {
	id    uint32
	phase control.JobPhase
}

// statusOf is the exit status of a task.
func statusOf(task uint32) int32 {
	if task%5 == 3 {
		return int32(task % 7)
	}
	return 0
}

func newArrayServe(t *testing.T, seed uint64) *arrayServe {
	return &arrayServe{t: t, r: rand.New(rand.NewPCG(seed, 1)), jobs: make(map[uint32]*playedTask), ran: make(map[uint32]int), spoilt: make(map[uint32]bool)}
}

// talk talks to a client for so many messages, or to the end.
func (s *arrayServe) talk(c *talk, most int) {
	for f := range c.in {
		if most--; most == 0 {
			break
		}
		s.handle(c, f)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs { // as after a restart
		if j.phase == control.JobPhase_JOB_PREPARED {
			j.phase = control.JobPhase_JOB_UNKNOWN
		}
	}
}

func (s *arrayServe) handle(c *talk, f *control.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := f.Message().(type) {
	case *control.RunRequest:
		s.request(c, f, m)
	case *control.FileChunk:
		if j := s.jobs[m.Job]; j.phase == control.JobPhase_JOB_PREPARED {
			j.phase = control.JobPhase_JOB_RUNNING
			s.ran[j.id]++
			_ = c.Send(s.state(m.Job))
			s.records(c, m.Job)
		}
	case *control.Attach:
		c.Answer(f, s.state(m.Job), nil)
		if s.jobs[m.Job].phase == control.JobPhase_JOB_RUNNING {
			s.records(c, m.Job)
		}
	case *control.Ack:
		if j := s.jobs[m.Job]; m.Seq == 2 && j.phase == control.JobPhase_JOB_RUNNING {
			j.phase = control.JobPhase_JOB_DONE
			_ = c.Send(s.state(m.Job))
		}
	}
}

// restarts is how often serve is started again in TestArray. Each may spoil the launch of the same
// task, and one more thing may, or the task would be given up.
const restarts = launchTries - 2

// spoils reports whether the launch of a task is spoilt now, which happens once at most.
func (s *arrayServe) spoils(task uint32) bool {
	if !s.spoil || s.spoilt[task] || s.r.IntN(20) != 0 {
		return false
	}
	s.spoilt[task] = true
	return true
}

func (s *arrayServe) request(c *talk, f *control.Frame, m *control.RunRequest) {
	if s.spoils(m.Spec.Task.Id) {
		c.Answer(f, nil, control.Failf(control.Code_CODE_LAUNCH_LOST, "node1 is dead"))
		return
	}
	job := uint32(len(s.jobs)) + 1
	s.jobs[job] = &playedTask{id: m.Spec.Task.Id, phase: control.JobPhase_JOB_PREPARED}
	if s.array == 0 {
		s.array = job
	}
	if m.Spec.Task.Array != 0 && m.Spec.Task.Array != s.array || m.Spec.Task.Array == 0 && job != s.array {
		s.t.Errorf("job %d is a task of array %d, which is %d", job, m.Spec.Task.Array, s.array)
	}
	if want := fmt.Sprintf("MARGAY_ARRAY_TASK_ID=%d", m.Spec.Task.Id); !slices.ContainsFunc(m.Exec.Env, func(v []byte) bool { return string(v) == want }) {
		s.t.Errorf("the environment of task %d: %s", m.Spec.Task.Id, m.Exec.Env)
	}
	if s.spoils(m.Spec.Task.Id) { // its end comes first
		s.jobs[job].phase = control.JobPhase_JOB_UNKNOWN
		_ = c.Send(s.state(job))
	}
	c.Answer(f, &control.RunReply{Job: job, Places: []*control.Place{{Node: job % 3}}, Loaded: true}, nil)
}

// state is what the client learns of a job. One whose phase is unknown was spoilt.
func (s *arrayServe) state(job uint32) *control.JobState {
	j := s.jobs[job]
	m := &control.JobState{Job: job, Phase: j.phase, FirstFailed: control.None}
	switch code := statusOf(j.id); {
	case j.phase == control.JobPhase_JOB_UNKNOWN:
		m.Phase, m.ExitCode, m.Error = control.JobPhase_JOB_DONE, 125, control.FromError(control.Failf(control.Code_CODE_RESTARTED, "serve was started again"))
	case j.phase == control.JobPhase_JOB_DONE && code != 0:
		m.ExitCode, m.FirstFailed, m.Ranks = code, 0, []*control.RankState{{Node: job % 3, Ended: true, Exit: &control.ExitStatus{Code: code}}}
	}
	return m
}

// records sends all records of a job.
func (s *arrayServe) records(c *talk, job uint32) {
	_ = c.Send(&control.Record{Job: job, Node: job % 3, Seq: 1, Stream: control.Stream_STREAM_STDOUT, Data: fmt.Appendf(nil, "task %d\n", s.jobs[job].id)})
	_ = c.Send(&control.Record{Job: job, Node: job % 3, Seq: 2, Stream: control.Stream_STREAM_EXIT, Exit: &control.ExitStatus{Code: statusOf(s.jobs[job].id)}, Last: true})
}

// arrayOf makes an array of a launcher.
func (l *launcher) arrayOf(t *testing.T, set string) ArrayOptions {
	t.Helper()
	tasks, err := array.Parse(set)
	if err != nil {
		t.Fatal(err)
	}
	return ArrayOptions{Options: l.Options, Set: tasks}
}

func runArray(t *testing.T, o ArrayOptions) (int, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return RunArray(ctx, o)
}

// Whatever becomes of serve and of launches, each task runs once, its output is there once, and its
// status counts.
func TestArray(t *testing.T) {
	seed := rand.Uint64()
	if s, err := strconv.ParseUint(os.Getenv("MARGAY_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("MARGAY_SEED=%d", seed)
	played := newArrayServe(t, seed)
	played.spoil = true
	var talks []func(*talk)
	for range restarts {
		most := 20 + played.r.IntN(150)
		talks = append(talks, func(c *talk) { played.talk(c, most) })
	}
	s := serveTo(t, append(talks, func(c *talk) { played.talk(c, 0) })...)
	l := newLauncher(t, s, 1)
	l.Spec.KeepGoing = true
	o := l.arrayOf(t, "0-199%20")
	ended := make(map[uint32]int)
	o.Ended = func(end TaskEnd) error {
		ended[end.Task]++
		if end.Status != int(statusOf(end.Task)) || (end.Error == "") != (end.Status == 0) {
			t.Errorf("the end of a task is %+v", end)
		}
		return nil
	}
	code, err := runArray(t, o)
	if code != 6 || err == nil || !strings.HasPrefix(err.Error(), "165 ok, 35 failed: ") || !strings.Contains(err.Error(), "13,48,83,118,153,188 exited with status 6") {
		t.Errorf("status %d: %v", code, err)
	}
	lines := strings.Split(strings.TrimSpace(l.stdout.String()), "\n")
	slices.Sort(lines)
	if n := len(slices.Compact(lines)); n != 200 || len(lines) != 200 {
		t.Errorf("%d lines of output, %d of them different", len(lines), n)
	}
	played.mu.Lock()
	defer played.mu.Unlock()
	for task := range uint32(200) {
		if ended[task] != 1 || played.ran[task] != 1 {
			t.Errorf("task %d has run %d times and ended %d times", task, played.ran[task], ended[task])
		}
	}
}

// The first task that fails is the last to start, if there is no --keep-going.
func TestArrayStops(t *testing.T) {
	played := newArrayServe(t, 0)
	s := serveTo(t, func(c *talk) { played.talk(c, 0) })
	l := newLauncher(t, s, 1)
	code, err := runArray(t, l.arrayOf(t, "2,3,4-9%1"))
	if want := "1 ok, 1 failed: 3 exited with status 3, 6 not started: 4-9"; code != 3 || err == nil || err.Error() != want {
		t.Errorf("status %d: %v", code, err)
	}
	if !strings.Contains(l.status.String(), "task 3 (job 2): rank 0 on node2 exited with status 3") {
		t.Errorf("the user is told %q", l.status.String())
	}
}

// A task that gets cores after another one has failed does not run, and does not count as failed.
func TestArrayStopsLate(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		_, second := expect[*control.RunRequest](c)
		c.done(&control.JobState{FirstFailed: 0, ExitCode: 1, Ranks: []*control.RankState{{Ended: true, Exit: &control.ExitStatus{Code: 1}}}})
		expect[*control.Withdraw](c)
		c.Answer(second, &control.RunReply{Job: 6, Places: []*control.Place{{}}, Loaded: true}, nil)
		if m, _ := expect[*control.Kill](c); m != nil && (m.Job != 6 || !m.Force) {
			t.Errorf("killed is %v", m)
		}
		killed := control.FromError(control.Failf(control.Code_CODE_KILLED, "it was killed"))
		_ = c.Send(&control.JobState{Job: 6, Phase: control.JobPhase_JOB_DONE, FirstFailed: control.None, ExitCode: 137, Error: killed})
	})
	l := newLauncher(t, s, 1)
	code, err := runArray(t, l.arrayOf(t, "0-1"))
	if want := "0 ok, 1 failed: 0 exited with status 1, 1 not started: 1"; code != 1 || err == nil || err.Error() != want {
		t.Errorf("status %d: %v", code, err)
	}
}

// The tasks of an array that is given up are all counted.
func TestArrayGivenUp(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		expect[*control.RunRequest](c) // waits for cores
		c.done(&control.JobState{FirstFailed: control.None})
		c.left()
	})
	o := newLauncher(t, s, 1).arrayOf(t, "0-2%2")
	o.Ended = func(TaskEnd) error { return unix.ENOSPC }
	code, err := runArray(t, o)
	if want := "no space left on device; 1 ok, 2 not started: 1-2"; code != ExitMargay || err == nil || err.Error() != want {
		t.Errorf("status %d: %v", code, err)
	}
}

// serve gets the reason why the tasks of an array are given up.
func TestArrayOutputIsGone(t *testing.T) {
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		c.says(1, "x\n")
		if m, _ := expect[*control.Leave](c); m.GetJob() != 5 || m.GetWhy() != "write output: broken pipe" {
			t.Errorf("serve gets %v", m)
		}
		c.left()
	})
	o := newLauncher(t, s, 1).arrayOf(t, "0")
	o.Stdout = brokenWriter{}
	if code, err := runArray(t, o); code != ExitMargay || err == nil {
		t.Errorf("status %d: %v", code, err)
	}
}

// Ctrl-C reaches the tasks that run, takes back the others, and ends the array.
func TestArrayInterrupted(t *testing.T) {
	signals := make(chan os.Signal, 1)
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		_, second := expect[*control.RunRequest](c)
		signals <- unix.SIGINT
		expect[*control.Withdraw](c)
		if m, _ := expect[*control.Signal](c); m != nil && (m.Job != 5 || m.Signal != int32(unix.SIGINT)) {
			t.Errorf("the ranks get %v", m)
		}
		c.Answer(second, nil, control.Failf(control.Code_CODE_KILLED, "it was withdrawn from the queue"))
		c.done(&control.JobState{FirstFailed: 0, ExitCode: 130, Ranks: []*control.RankState{{Ended: true, Exit: &control.ExitStatus{Signal: 2}}}})
	})
	l := newLauncher(t, s, 1)
	l.Signals = signals
	code, err := runArray(t, l.arrayOf(t, "0-1"))
	var interrupted *Interrupted
	if code != 130 || !errors.As(err, &interrupted) || err.Error() != "0 ok, 1 failed: 0 was killed by SIGINT, 1 not started: 1" {
		t.Errorf("status %d: %v", code, err)
	}
}

// Each task has files of its own by the pattern of their names, or shares one with the others.
func TestArrayFiles(t *testing.T) {
	dir := t.TempDir()
	for _, pattern := range []string{"out-%A-%a", "all"} {
		played := newArrayServe(t, 0)
		s := serveTo(t, func(c *talk) { played.talk(c, 0) })
		l := newLauncher(t, s, 1)
		l.OutputFile, l.Label = filepath.Join(dir, pattern), ByRank
		if code, err := runArray(t, l.arrayOf(t, "0-2")); code != 0 || err != nil {
			t.Errorf("status %d: %v", code, err)
		}
	}
	for name, want := range map[string][]string{
		"out-1-0": {"[0] task 0"}, "out-1-1": {"[1] task 1"}, "out-1-2": {"[2] task 2"}, "all": {"[0] task 0", "[1] task 1", "[2] task 2"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
		slices.Sort(lines)
		if err != nil || !slices.Equal(lines, want) {
			t.Errorf("%s has %q, %v", name, text, err)
		}
	}
}

// A stop takes back the tasks that wait, so that serve does not place them without an answer, and
// stops those that run. They go on when this process does, and the others are asked for again.
func TestArraySuspended(t *testing.T) {
	signals := make(chan os.Signal, 1)
	stopped := false
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		_, second := expect[*control.RunRequest](c)
		signals <- unix.SIGTSTP
		expect[*control.Withdraw](c)
		c.Answer(second, nil, control.Failf(control.Code_CODE_KILLED, "it was withdrawn from the queue"))
		passes(c, unix.SIGSTOP, true)
		passes(c, unix.SIGCONT, true)
		m, again := expect[*control.RunRequest](c)
		if m.GetSpec().GetTask().GetId() != 1 {
			t.Errorf("asked for again is %v", m)
		}
		c.Answer(again, &control.RunReply{Job: 6, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		for _, job := range []uint32{5, 6} {
			_ = c.Send(&control.JobState{Job: job, Phase: control.JobPhase_JOB_DONE, FirstFailed: control.None})
		}
	})
	l := newLauncher(t, s, 1)
	l.Signals, l.Suspend = signals, func() { stopped = true }
	if code, err := runArray(t, l.arrayOf(t, "0-1")); code != 0 || err != nil || !stopped {
		t.Errorf("status %d: %v, stopped: %v", code, err, stopped)
	}
}

// The tasks of an array whose output is not read, and whose messages are not, go on when serve is
// started again.
func TestArrayWithBlockedReader(t *testing.T) {
	record := &control.Record{Job: 5, Seq: 1, Stream: control.Stream_STREAM_STDOUT, Data: []byte("a\n")}
	released := make(chan struct{})
	s := serveTo(t, func(c *talk) {
		_, f := expect[*control.RunRequest](c)
		c.Answer(f, &control.RunReply{Job: 5, Places: []*control.Place{{}}, Loaded: true}, nil)
		expect[*control.FileChunk](c)
		_ = c.Send(&control.JobState{Job: 5, Phase: control.JobPhase_JOB_RUNNING, FirstFailed: control.None})
		_ = c.Send(&control.LogLine{Level: "warn", Text: "a warning"})
		_ = c.Send(record)
		c.Flush(patience)
	}, func(c *talk) {
		c.attached()
		close(released)
		_ = c.Send(record)
		if ack, _ := expect[*control.Ack](c); ack.GetSeq() != 1 {
			t.Errorf("acknowledged is %v", ack)
		}
		c.done(ok())
		c.left()
	})
	l := newLauncher(t, s, 1)
	l.Stdout, l.Status.W = &blockedWriter{released, &l.stdout}, &blockedWriter{released, &l.status}
	code, err := runArray(t, l.arrayOf(t, "0"))
	if code != 0 || err != nil || l.stdout.String() != "a\n" || !strings.Contains(l.status.String(), "a warning") || !strings.HasSuffix(l.status.String(), "1 ok\n") {
		t.Errorf("status %d, %v, output %q, the user is told %q", code, err, l.stdout.String(), l.status.String())
	}
}
