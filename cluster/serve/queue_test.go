package serve

import (
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/internal/check"
)

// patient is a job that waits for cores.
func patient(ranks uint32) *control.JobSpec {
	s := spec(ranks)
	s.WaitMs = -1
	return s
}

// end ends a job on one node that has only these ranks.
func (m *machine) end(c *playedClient, job, ranks uint32) {
	m.t.Helper()
	for rank := range ranks {
		m.played[0].exits(job, uint64(rank)+1, rank, 0, 0)
	}
	c.ackAll()
	c.ended()
}

// started returns the number of a job whose turn has come, and takes the job to running.
func started(t *testing.T, answer <-chan asked) uint32 {
	t.Helper()
	synctest.Wait()
	select {
	case a := <-answer:
		if a.err != nil {
			t.Fatal(a.err)
		}
		return a.message.(*control.RunReply).Job
	default:
		t.Fatal("it waits still")
		return 0
	}
}

// waits demands that a job is still waiting.
func waits(t *testing.T, answer <-chan asked) {
	t.Helper()
	synctest.Wait()
	select {
	case a := <-answer:
		t.Fatalf("it does not wait: %v", a)
	default:
	}
}

// Waiting jobs get cores in order of arrival: a small job does not overtake a large one, whether or
// not it waits.
func TestQueueIsFair(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		holder, large, small, hasty := m.client(), m.client(), m.client(), m.client()
		first := holder.run(spec(1))
		one2 := large.begin(&control.RunRequest{Spec: patient(2)})
		if line := one[*control.LogLine](t, &large.recorder); !strings.Contains(line.Text, "waiting for cores: 2 ranks need 2 application cores, but 1 of 2 is free") || !strings.Contains(line.Text, "job 1 has the others") {
			t.Errorf("it is told %q", line.Text)
		}
		one1 := small.begin(&control.RunRequest{Spec: patient(1)})
		if line := one[*control.LogLine](t, &small.recorder); line.Text != "waiting for cores, behind 1 job that came first" {
			t.Errorf("it is told %q", line.Text)
		}
		waits(t, one1)
		list := must[*control.Jobs](hasty, &control.ListJobs{})
		if w := list.Waiting; len(list.Jobs) != 1 || len(w) != 2 || w[0].Ranks != 2 || !strings.HasPrefix(w[0].Why, "waiting for cores: 2 ranks need 2") ||
			w[1].Ranks != 1 || w[1].Why != "waiting for cores, behind 1 job that came first" || w[1].SinceNs < w[0].SinceNs || w[0].SinceNs == 0 {
			t.Errorf("the list of jobs: %v", list)
		}
		if list := must[*control.Jobs](hasty, &control.ListJobs{Job: first}); len(list.Waiting) != 0 {
			t.Errorf("one job: %v", list)
		}
		if _, err := hasty.ask(&control.RunRequest{Spec: spec(1)}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) || !strings.Contains(err.Error(), "1 job came first") && !strings.Contains(err.Error(), "2 jobs came first") {
			t.Errorf("one that does not wait: %v", err)
		}
		m.end(holder, first, 1)
		job := started(t, one2)
		waits(t, one1)
		must[*control.Done](large, &control.Kill{Job: job, Force: true})
		time.Sleep(time.Second)
		started(t, one1)
	})
}

// A client that disconnects leaves the queue, and so does a job whose waiting time is over.
func TestQueueIsLeft(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		holder, gone, small := m.client(), m.client(), m.client()
		holder.run(spec(1))
		gone.begin(&control.RunRequest{Spec: patient(2)})
		one1 := small.begin(&control.RunRequest{Spec: patient(1)})
		waits(t, one1)
		gone.conn.Close()
		started(t, one1)

		late := m.client()
		s := patient(1)
		s.WaitMs = 5000
		answer := late.begin(&control.RunRequest{Spec: s})
		time.Sleep(4 * time.Second)
		waits(t, answer)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if a := <-answer; !errors.Is(a.err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) || !strings.HasPrefix(a.err.Error(), "it has waited for 5s: ") {
			t.Errorf("answered with %v", a)
		}
	})
}

// A job does not wait for jobs that want other nodes, and a job that would not fit on the whole
// machine does not wait at all.
func TestQueueOfOtherNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		holder, there := m.client(), m.client()
		s := spec(2)
		s.Only = []uint32{1}
		holder.run(s)
		waiting := patient(1)
		waiting.Only = []uint32{1}
		waits(t, there.begin(&control.RunRequest{Spec: waiting}))
		free := spec(1)
		free.Without = []uint32{1}
		m.client().run(free)
		for want, spec := range map[string]*control.JobSpec{
			"it would wait for ever: ":                   patient(5),
			"the machine has no node7":                   {Ranks: 1, WaitMs: -1, Only: []uint32{7}},
			"-x leaves no node: the machine has node0-1": {Ranks: 1, Without: []uint32{0, 1}},
			"-w and -x leave no node":                    {Ranks: 1, WaitMs: -1, Only: []uint32{1}, Without: []uint32{1}},
		} {
			var answer proto.Message
			var err error
			if answer, err = m.client().ask(&control.RunRequest{Spec: spec}); err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("%s: %v, %v", want, answer, err)
			}
		}
	})
}

// A job waits for those before it with which it has a node in common, and for none that waits for
// something else. The jobs of a queue are counted together.
func TestQueueIsCounted(t *testing.T) {
	seed := check.Seed(t)
	for i := range uint64(200) {
		r := rand.New(rand.NewPCG(seed+i, 0))
		some := func() (nodes []uint32) {
			for range max(0, r.IntN(6)-2) {
				nodes = append(nodes, uint32(r.IntN(5))*(roster.Most-1)/4)
			}
			return distinct(nodes)
		}
		s := new(Server)
		for range r.IntN(20) {
			spec := &control.JobSpec{Arch: []string{"amd64", "arm64"}[r.IntN(8)/7], Step: uint32(r.IntN(8) / 7), Only: some(), Without: some()}
			s.queue = append(s.queue, &waiting{spec: spec, reach: reachOf(spec), hindered: r.IntN(5) == 0, limited: r.IntN(5) == 0})
		}
		for at, w := range s.queue {
			want := 0
			for _, first := range s.queue[:at] {
				a, b := shapeOf(first.spec), shapeOf(w.spec)
				common := len(a.only)+len(b.only) == 0
				for node := range uint32(roster.Most) {
					common = common || a.mayUse(node) && b.mayUse(node)
				}
				if common && first.spec.Arch == w.spec.Arch && first.spec.Step == w.spec.Step && !first.hindered && !first.limited {
					want++
				}
			}
			if got := s.ahead(w); got != want || s.queue[:at].before(w.spec) != want {
				t.Fatalf("MARGAY_SEED=%d: job %d waits for %d jobs, %d as a new one, and not for %d", seed+i, at, got, s.queue[:at].before(w.spec), want)
			}
		}
	}
}

// What the count depends on changes while jobs wait.
func TestQueueIsCountedAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		m.client().run(spec(4))
		large, small := m.client(), m.client()
		large.begin(&control.RunRequest{Spec: patient(4)})
		small.begin(&control.RunRequest{Spec: patient(1)})
		ahead := func() int {
			m.server.mu.Lock()
			defer m.server.mu.Unlock()
			return m.server.ahead(m.server.queue[len(m.server.queue)-1])
		}
		for _, change := range []struct {
			do   func()
			want int
		}{
			{func() {}, 1},
			{func() { must[*control.NodesDrained](m.client(), &control.DrainNodes{Nodes: []uint32{1}}) }, 0},
			{func() { must[*control.Done](m.client(), &control.ResumeNodes{Nodes: []uint32{1}}) }, 1},
			{func() { m.client().begin(&control.RunRequest{Spec: patient(1)}) }, 2},
			{func() { large.conn.Close() }, 1},
		} {
			change.do()
			synctest.Wait()
			if got := ahead(); got != change.want {
				t.Errorf("the last one waits for %d, not %d", got, change.want)
			}
		}
	})
}
