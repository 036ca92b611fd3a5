package launch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/check"
)

// endless is the name of jobs that end only when they are given up.
const endless = "endless"

// linkServe plays a serve whose clients share a connection. It keeps its jobs over its connections,
// as serve does, and answers in any order.
type linkServe struct {
	mu   sync.Mutex // guards the rest; each connection has its goroutine
	r    *rand.Rand
	most int // requests for jobs without an answer, at a time
	jobs map[uint32]*linkedJob
	ran  map[string]int // by program

	spoilt map[string]bool // launches, by program
	last   *talk           // that was asked for the status
}

type linkedJob struct {
	name   string
	phase  control.JobPhase
	client *talk // the newest one; it may have been given up with an earlier connection
}

// talk talks to a client for so many messages, or to the end.
func (s *linkServe) talk(c *talk, most int) {
	var asked []*control.Frame
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case f, ok := <-c.in:
			if most--; !ok || most == 0 {
				s.restart()
				return
			}
			if f.GetRunRequest() != nil {
				asked = append(asked, f)
			}
			s.handle(c, f)
		case <-tick.C:
		}
		s.mu.Lock()
		s.most = max(s.most, len(asked))
		for len(asked) > 0 && s.r.IntN(3) > 0 {
			i := s.r.IntN(len(asked))
			s.answer(c, asked[i])
			asked = append(asked[:i], asked[i+1:]...)
		}
		s.mu.Unlock()
	}
}

// restart does to jobs what a restart of serve does.
func (s *linkServe) restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, j := range s.jobs {
		if j.phase == control.JobPhase_JOB_PREPARED {
			j.phase = control.JobPhase_JOB_UNKNOWN
		}
	}
}

func (s *linkServe) handle(c *talk, f *control.Frame) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := f.Message().(type) {
	case *control.FileChunk:
		if j := s.jobs[m.Job]; j.phase == control.JobPhase_JOB_PREPARED {
			j.phase = control.JobPhase_JOB_RUNNING
			s.ran[j.name]++
			_ = c.Send(s.state(m.Job))
			s.records(c, m.Job)
		}
	case *control.Attach:
		s.jobs[m.Job].client = c
		c.Answer(f, s.state(m.Job), nil)
		if s.jobs[m.Job].phase == control.JobPhase_JOB_RUNNING {
			s.records(c, m.Job)
		}
	case *control.Ack:
		if j := s.jobs[m.Job]; m.Seq == 2 && j.phase == control.JobPhase_JOB_RUNNING && j.name != endless {
			j.phase = control.JobPhase_JOB_DONE
			_ = c.Send(s.state(m.Job))
		}
	case *control.Status:
		s.last = c
		c.Answer(f, new(control.MachineStatus), nil)
	case *control.Leave:
		s.jobs[m.Job].phase = control.JobPhase_JOB_DONE
	}
}

// spoils reports whether the launch of a job is spoilt now, which happens once at most, besides the
// restarts: after more tries the job would be given up.
func (s *linkServe) spoils(name string) bool {
	if s.spoilt[name] || s.r.IntN(20) != 0 {
		return false
	}
	s.spoilt[name] = true
	return true
}

// answer answers a request for a job. The first frames of the job follow at once.
func (s *linkServe) answer(c *talk, f *control.Frame) {
	m := f.GetRunRequest()
	if s.spoils(string(m.Exec.Argv[0])) {
		c.Answer(f, nil, control.Failf(control.Code_CODE_LAUNCH_LOST, "node1 is dead"))
		return
	}
	job := uint32(len(s.jobs)) + 1
	s.jobs[job] = &linkedJob{name: string(m.Exec.Argv[0]), phase: control.JobPhase_JOB_PREPARED, client: c}
	c.Answer(f, &control.RunReply{Job: job, Places: []*control.Place{{Node: job % 3}}, Loaded: true}, nil)
	_ = c.Send(&control.LogLine{Job: job, Level: "warn", Text: "of " + s.jobs[job].name})
	if s.spoils(s.jobs[job].name) {
		s.jobs[job].phase = control.JobPhase_JOB_UNKNOWN
		_ = c.Send(s.state(job))
	}
}

// state is what the client learns of a job. One whose phase is unknown was spoilt.
func (s *linkServe) state(job uint32) *control.JobState {
	m := &control.JobState{Job: job, Phase: s.jobs[job].phase, FirstFailed: control.None}
	if m.Phase == control.JobPhase_JOB_UNKNOWN {
		m.Phase, m.ExitCode, m.Error = control.JobPhase_JOB_DONE, 125, control.FromError(control.Failf(control.Code_CODE_RESTARTED, "serve was started again"))
	}
	return m
}

func (s *linkServe) records(c *talk, job uint32) {
	_ = c.Send(&control.Record{Job: job, Node: job % 3, Seq: 1, Stream: control.Stream_STREAM_STDOUT, Data: []byte(s.jobs[job].name)})
	_ = c.Send(&control.Record{Job: job, Node: job % 3, Seq: 2, Stream: control.Stream_STREAM_EXIT, Exit: new(control.ExitStatus), Last: true})
}

// Jobs that share a connection each run once, and have their own output and notes, whatever becomes
// of serve, of launches and of other jobs. Those that are given up leave nothing behind.
func TestLink(t *testing.T) {
	seed := check.Seed(t)
	played := &linkServe{r: rand.New(rand.NewPCG(seed, 1)), jobs: make(map[uint32]*linkedJob), ran: make(map[string]int), spoilt: make(map[string]bool)}
	r := rand.New(rand.NewPCG(seed, 2))
	var talks []func(*talk)
	for range restarts {
		most := 10 + r.IntN(40) // in all, less than the jobs send
		talks = append(talks, func(c *talk) { played.talk(c, most) })
	}
	s := serveTo(t, append(talks, func(c *talk) { played.talk(c, 0) })...)
	link := NewLink(s.socket)
	model := newLauncher(t, s, 1)
	var running, others sync.WaitGroup
	var giveUp []func()
	for i := range 60 {
		name := fmt.Sprint("job ", i)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		group := &running
		switch i % 10 {
		case 3: // given up early
			name, group = endless, &others
			time.AfterFunc(time.Duration(r.IntN(50))*time.Millisecond, cancel)
		case 6: // given up when it runs, after all restarts
			name, group = endless, &others
			giveUp = append(giveUp, cancel)
		}
		group.Go(func() {
			defer cancel()
			var out, status bytes.Buffer
			o := model.Options
			o.Link, o.Spec, o.Exec = link, proto.CloneOf(o.Spec), &control.Exec{Argv: [][]byte{[]byte(name)}}
			o.Stdout, o.Stderr, o.Status = &out, io.Discard, &Status{W: &status}
			ends := 0
			o.Ended = func(*control.JobState) { ends++ }
			code, err := Run(ctx, o)
			switch {
			case name == endless:
				if !errors.Is(err, context.Canceled) {
					t.Errorf("a job that is given up: status %d, %v", code, err)
				}
			case code != 0 || err != nil:
				t.Errorf("%s: status %d, %v", name, code, err)
			case out.String() != name || ends != 1 || !bytes.Contains(status.Bytes(), []byte("of "+name+"\n")):
				t.Errorf("%s: it has written %q, has ended %d times, and notes are %q", name, out.String(), ends, status.String())
			}
		})
	}
	running.Wait()
	for _, cancel := range giveUp {
		cancel()
	}
	others.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := link.Call(ctx, &control.Status{}); err != nil { // after all that the jobs have sent
		t.Error(err)
	}
	link.Close()
	<-s.ended
	played.mu.Lock()
	defer played.mu.Unlock()
	if placed := len(played.jobs); played.most > mostAsked+placed/4 {
		t.Errorf("%d requests were with serve at a time", played.most)
	}
	for name, n := range played.ran {
		if n != 1 && name != endless {
			t.Errorf("%s has run %d times", name, n)
		}
	}
	for job, j := range played.jobs {
		if j.phase == control.JobPhase_JOB_RUNNING && j.client == played.last {
			t.Errorf("job %d, %s, is left", job, j.name)
		}
	}
}

// Few requests are with serve at a time, the others wait in order. One that is given up frees its
// place when serve has answered it, and a job that serve has made for it nevertheless is left.
func TestLinkTurns(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first := make(chan *strand, 1) // that is given up
	s := serveTo(t, func(c *talk) {
		var asked []*control.Frame
		for range mostAsked {
			_, f := expect[*control.RunRequest](c)
			asked = append(asked, f)
		}
		slices.SortFunc(asked, func(a, b *control.Frame) int { // those whose turn has come, come in any order
			return strings.Compare(a.GetRunRequest().GetSpec().GetCommand(), b.GetRunRequest().GetSpec().GetCommand())
		})
		if m, _ := expect[*control.Withdraw](c); m == nil || m.Call != asked[0].Call {
			t.Errorf("%v is withdrawn, and not request %d", m, asked[0].Call)
		}
		(<-first).Close()
		c.Answer(asked[0], &control.RunReply{Job: 7}, nil)
		if m, _ := expect[*control.Leave](c); m == nil || m.Job != 7 {
			t.Errorf("%v instead of Leave", m)
		}
		asked = asked[1:]
		for i := mostAsked; i < 3*mostAsked; i++ {
			if i > mostAsked {
				c.Answer(asked[0], nil, control.Failf(control.Code_CODE_NO_ROOM, "none"))
				asked = asked[1:]
			}
			next, f := expect[*control.RunRequest](c)
			if next == nil || next.Spec.Command != fmt.Sprint(i) {
				t.Errorf("request %d is %v", i, next)
				return
			}
			asked = append(asked, f)
		}
		for _, f := range asked {
			c.Answer(f, nil, control.Failf(control.Code_CODE_NO_ROOM, "none"))
		}
		for range c.in { // until the end
		}
	})
	link := NewLink(s.socket)
	asking, giveUp := context.WithCancel(ctx)
	defer giveUp()
	contexts := []context.Context{asking, ctx} // of the first request, and of the others
	var running sync.WaitGroup
	for i := range 3 * mostAsked {
		s, err := link.open(ctx)
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			_, err := s.Call(contexts[min(i, 1)], &control.RunRequest{Spec: &control.JobSpec{Command: fmt.Sprint(i)}})
			if want := error(&control.Failure{Code: control.Code_CODE_NO_ROOM}); i == 0 && !errors.Is(err, context.Canceled) || i > 0 && !errors.Is(err, want) {
				t.Errorf("request %d: %v", i, err)
			}
			if i == 0 {
				first <- s
			}
		})
		placed := func() bool { // it has its place in the order
			s.trunk.mu.Lock()
			defer s.trunk.mu.Unlock()
			return s.trunk.asking+len(s.trunk.waiting) > i
		}
		for !placed() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
	}
	giveUp()
	running.Wait()
	link.Close()
	<-s.ended
}
