package serve

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/internal/check"
)

// order is a drain of nodes by a user called op.
func order(reason string, nodes ...uint32) *control.DrainNodes {
	return &control.DrainNodes{Nodes: nodes, Reason: reason, User: "op"}
}

// on is spec for a job that may use only some nodes.
func on(s *control.JobSpec, nodes ...uint32) *control.JobSpec {
	s.Only = nodes
	return s
}

// drainOf demands a node's drain state, unknown for a node in service, and returns its drain.
func (c *playedClient) drainOf(node uint32, state control.DrainState) *control.Drain {
	c.m.t.Helper()
	d := c.node(node).Drain
	if (d == nil) != (state == control.DrainState_DRAIN_UNKNOWN) || d.GetState() != state {
		c.m.t.Fatalf("node%d is drained as %v, not %v", node, d, state)
	}
	return d
}

// refused demands that a request is refused with a text.
func (c *playedClient) refused(request proto.Message, code control.Code, text string) {
	c.m.t.Helper()
	if answer, err := c.ask(request); !errors.Is(err, &control.Failure{Code: code}) || !strings.Contains(err.Error(), text) {
		c.m.t.Errorf("%v is answered with %v, %v, not %s", request, answer, err, text)
	}
}

// The job of a node that is drained continues; the node is drained when the job has ended, and gets
// no other job until it is resumed.
func TestDrain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		c, other := m.client(), m.client()
		job := c.run(spec(1))
		began := time.Now()
		time.Sleep(time.Second)
		if busy := must[*control.NodesDrained](other, order("disk\nswap", 1, 0, 1)).Busy; !slices.Equal(busy, []uint32{0}) {
			t.Errorf("nodes with jobs are %v", busy)
		}
		d := other.drainOf(0, control.DrainState_DRAIN_DRAINING)
		if d.Reason != "disk?swap" || d.User != "op" || d.SinceNs != began.Add(time.Second).UnixNano() {
			t.Errorf("node0 is drained as %v", d)
		}
		other.drainOf(1, control.DrainState_DRAIN_DRAINED)
		status := must[*control.MachineStatus](other, &control.Status{})
		if status.Up != 2 || status.Drained != 2 || status.Cores != 4 || status.FreeCores != 0 {
			t.Errorf("the machine is %v", status)
		}
		other.refused(&control.RunRequest{Spec: spec(1)}, control.Code_CODE_NO_ROOM,
			"1 rank needs 1 application core, but 0 of 0 are free; node0-1 are drained: disk?swap (2 of 2 nodes are up; see margay nodes)")
		m.end(c, job, 1)
		other.drainOf(0, control.DrainState_DRAIN_DRAINED)
		if !m.logged("node0-1: drained by op: disk?swap") || !m.logged(fmt.Sprintf("node0 is drained: its last job, %d, has ended", job)) {
			t.Errorf("the log is %q", m.log)
		}
		must[*control.Done](other, &control.ResumeNodes{Nodes: []uint32{0}})
		other.drainOf(0, control.DrainState_DRAIN_UNKNOWN)
		if next := c.run(spec(2)); next == job || other.freeCores() != 0 {
			t.Errorf("job %d leaves %d cores", next, other.freeCores())
		}
		four := spec(4)
		four.PerNode = 2
		other.refused(&control.RunRequest{Spec: four}, control.Code_CODE_NO_ROOM, "but 0 of 1 have that; a larger --ppn needs fewer nodes; job 2 has the others, and jobs do not share cores; node1 is drained: disk?swap (2 of 2")
		other.refused(&control.RunRequest{Spec: on(four, 1)}, control.Code_CODE_NO_ROOM, "4 ranks, 2 on a node: no such node is up and in service; node1 is drained: disk?swap (2 of 2")
	})
}

// Orders with unknown nodes, with nodes that are not drained or without nodes change nothing. An
// order for a drained node changes its reason, if it gives one.
func TestDrainAnswers(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 3)
		c := m.client()
		c.refused(order("why", 1, 3), control.Code_CODE_NOT_FOUND, "the machine has no node3: its nodes are node0-2 (margay nodes)")
		c.refused(order("why"), control.Code_CODE_BAD_REQUEST, "it names no node")
		c.refused(order(strings.Repeat("x", maxReason+1), 1), control.Code_CODE_BAD_REQUEST, "the reason has 257 bytes, 256 at most")
		c.drainOf(1, control.DrainState_DRAIN_UNKNOWN)
		must[*control.NodesDrained](c, order(strings.Repeat("x", maxReason), 1))
		first := c.drainOf(1, control.DrainState_DRAIN_DRAINED)
		time.Sleep(time.Minute)
		must[*control.NodesDrained](c, order("", 1, 2))
		if d := c.drainOf(1, control.DrainState_DRAIN_DRAINED); !proto.Equal(d, first) {
			t.Errorf("without a reason it is %v", d)
		}
		if d := c.drainOf(2, control.DrainState_DRAIN_DRAINED); d.Reason != "" {
			t.Errorf("without a reason node2 is %v", d)
		}
		must[*control.NodesDrained](c, &control.DrainNodes{Nodes: []uint32{1}, Reason: "fan", User: "another"})
		if d := c.drainOf(1, control.DrainState_DRAIN_DRAINED); d.Reason != "fan" || d.User != "another" || d.SinceNs != first.SinceNs {
			t.Errorf("with another reason it is %v", d)
		}
		c.refused(&control.RunRequest{Spec: spec(3)}, control.Code_CODE_NO_ROOM, "; node1 is drained: fan; node2 is drained (3 of 3 nodes are up")
		c.refused(&control.ResumeNodes{Nodes: []uint32{1, 0, 2}}, control.Code_CODE_BAD_REQUEST, "node0 is not drained, so nothing is changed (margay nodes)")
		c.refused(&control.ResumeNodes{Nodes: []uint32{1, 9}}, control.Code_CODE_NOT_FOUND, "no node9")
		c.drainOf(1, control.DrainState_DRAIN_DRAINED)
		must[*control.Done](c, &control.ResumeNodes{Nodes: []uint32{2, 1}})
		c.refused(&control.ResumeNodes{Nodes: []uint32{1, 2}}, control.Code_CODE_BAD_REQUEST, "node1-2 are not drained")
		if c.freeCores() != 6 {
			t.Errorf("%d cores are free", c.freeCores())
		}
	})
}

// Nodes stay drained when serve is killed and restarted, whether or not they have been up, and when
// they are lost and return.
func TestDrainAfterRestart(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 3)
		m.played[0].connect()
		m.played[1].connect()
		c := m.client()
		must[*control.NodesDrained](c, order("fan", 0, 1, 2))
		must[*control.Done](c, &control.ResumeNodes{Nodes: []uint32{0}})
		before := c.drainOf(2, control.DrainState_DRAIN_DRAINED)
		m.restart()
		m.played[0].connect()
		m.played[1].connect()
		m.played[2].connect()
		c = m.client()
		c.drainOf(0, control.DrainState_DRAIN_UNKNOWN)
		c.drainOf(1, control.DrainState_DRAIN_DRAINED)
		if d := c.drainOf(2, control.DrainState_DRAIN_DRAINED); !proto.Equal(d, before) {
			t.Errorf("node2 was %v, and is %v", before, d)
		}
		if c.freeCores() != 2 {
			t.Errorf("%d cores are free", c.freeCores())
		}
		m.played[1].silence()
		time.Sleep(time.Minute)
		if n := c.node(1); n.Health != control.NodeHealth_NODE_DEAD || n.Drain == nil {
			t.Errorf("a dead node is %v", n)
		}
		m.played[1].connect()
		c.drainOf(1, control.DrainState_DRAIN_DRAINED)
	})
}

// An order that cannot be recorded has no effect.
func TestDrainThatIsNotRecorded(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 1)
		c := m.client()
		if err := m.server.store.close(); err != nil {
			t.Fatal(err)
		}
		c.refused(order("fan", 0), control.Code_CODE_FAILED, "database not open")
		c.drainOf(0, control.DrainState_DRAIN_UNKNOWN)
		if c.freeCores() != 2 {
			t.Errorf("%d cores are free", c.freeCores())
		}
	})
}

// A job that would fit if no node were drained waits in the queue and names the nodes. It does not
// hold up the jobs behind it, and starts before them when the nodes are in service again.
func TestDrainAndQueue(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		operator, large, small, there := m.client(), m.client(), m.client(), m.client()
		must[*control.NodesDrained](operator, order("fan", 1))
		four := large.begin(&control.RunRequest{Spec: patient(4)})
		const lacks = "waiting for cores: 4 ranks need 4 application cores, but 2 of 2 are free"
		if line := one[*control.LogLine](t, &large.recorder); !strings.HasPrefix(line.Text, lacks) || !strings.HasSuffix(line.Text, "; node1 is drained: fan") {
			t.Errorf("it is told %q", line.Text)
		}
		onOne := there.begin(&control.RunRequest{Spec: on(patient(1), 1)})
		if line := one[*control.LogLine](t, &there.recorder); line.Text != "waiting for cores: 1 rank needs 1 application core, but 0 of 0 are free; node1 is drained: fan" {
			t.Errorf("it is told %q", line.Text)
		}
		must[*control.NodesDrained](operator, order("new fan", 1))
		if line := one[*control.LogLine](t, &there.recorder); !strings.HasSuffix(line.Text, "; node1 is drained: new fan") {
			t.Errorf("it is told %q", line.Text)
		}
		job := small.run(patient(2)) // both others are ahead of it
		waits(t, four)
		must[*control.Done](operator, &control.ResumeNodes{Nodes: []uint32{1}})
		waits(t, four)
		waits(t, onOne) // now behind the large one
		late := m.client()
		late.refused(&control.RunRequest{Spec: spec(1)}, control.Code_CODE_NO_ROOM, "2 jobs came first")
		m.end(small, job, 2)
		started(t, four)
		waits(t, onOne)
	})
}

// Whether a job would fit without the drained nodes is unknown until all other nodes have
// registered: until then it holds up the jobs behind it.
func TestDrainBeforeAllRegister(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 3)
		m.played[0].connect()
		m.played[1].connect()
		operator, large, small := m.client(), m.client(), m.client()
		must[*control.NodesDrained](operator, order("", 1))
		four := large.begin(&control.RunRequest{Spec: patient(4)})
		one := small.begin(&control.RunRequest{Spec: patient(1)})
		waits(t, one)
		must[*control.NodesDrained](operator, order("", 2))
		started(t, one)
		waits(t, four)
	})
}

// After a node registers or changes its cores, it may turn out that a job does not fit without the
// drained nodes: it no longer holds up others then.
func TestDrainAndNewsOfNodes(t *testing.T) {
	bubble(t, func(t *testing.T) {
		m := newMachine(t, 3)
		m.played[0].connect()
		m.played[1].connect()
		operator, large, small := m.client(), m.client(), m.client()
		must[*control.NodesDrained](operator, order("", 1))
		five := large.begin(&control.RunRequest{Spec: patient(5)})
		one := small.begin(&control.RunRequest{Spec: patient(1)})
		waits(t, one)
		m.played[2].connect()
		started(t, one)
		waits(t, five)
	})
	bubble(t, func(t *testing.T) {
		m := up(t, 2)
		operator, large, small := m.client(), m.client(), m.client()
		must[*control.NodesDrained](operator, order("", 1))
		has := func(cores ...uint32) {
			m.played[0].answers = map[string]proto.Message{"SetDuties": &control.DutiesSet{Info: &control.NodeInfo{Arch: runtime.GOARCH, Cores: cores}}}
			must[*control.Done](operator, &control.SetDuties{Node: 0})
		}
		has(1, 2, 3)
		m.client().run(spec(1))
		three := large.begin(&control.RunRequest{Spec: patient(3)})
		one := small.begin(&control.RunRequest{Spec: patient(1)})
		waits(t, one)
		has(1, 2)
		started(t, one)
		waits(t, three)
	})
}

// drainModel is the expected result of a random history of orders and jobs on nodes with two cores
// each.
type drainModel struct {
	t       *testing.T
	m       *machine
	rng     *rand.Rand
	c       *playedClient
	drained map[uint32]string   // reason by node
	since   map[uint32]int64    // by node
	jobs    map[uint32][]uint32 // nodes of the ranks, by job
	queue   []*queued
	events  []string
}

// queued is a waiting job.
type queued struct {
	spec   *control.JobSpec
	answer <-chan asked
}

const drainNodes = 3

// Random histories of orders, jobs, waiting jobs and restarts of serve match a simple model.
func TestDrainModel(t *testing.T) {
	seed := check.Seed(t)
	for i := range uint64(check.Rounds(25, 1000)) {
		bubble(t, func(t *testing.T) {
			d := &drainModel{
				t: t, m: up(t, drainNodes), rng: rand.New(rand.NewPCG(seed+i, 0)),
				drained: make(map[uint32]string), since: make(map[uint32]int64), jobs: make(map[uint32][]uint32),
			}
			defer func() {
				if t.Failed() {
					t.Logf("history %d:\n%s", i, strings.Join(d.events, "\n"))
				}
			}()
			d.c = d.m.client()
			for range 60 {
				d.event()
				d.check()
			}
		})
		if t.Failed() {
			return
		}
	}
}

func (d *drainModel) note(format string, args ...any) {
	d.events = append(d.events, fmt.Sprintf(format, args...))
}

// some returns one or more nodes.
func (d *drainModel) some() (nodes []uint32) {
	for _, node := range d.rng.Perm(drainNodes)[:1+d.rng.IntN(drainNodes)] {
		nodes = append(nodes, uint32(node))
	}
	return nodes
}

func (d *drainModel) event() {
	time.Sleep(500 * time.Millisecond)
	switch p := d.rng.IntN(20); {
	case p < 4:
		d.drain(d.some(), []string{"", "fan", "disk"}[d.rng.IntN(3)])
	case p < 8:
		d.resume(d.some())
	case p < 16:
		s := detachedSpec(1 + uint32(d.rng.IntN(5)))
		if d.rng.IntN(3) == 0 {
			s.Only = d.some()
		}
		if s.WaitMs = -1; d.rng.IntN(3) == 0 {
			s.WaitMs = 0
		}
		d.run(s)
	case p < 19:
		for job := range d.jobs {
			d.note("job %d ends", job)
			must[*control.Done](d.c, &control.Kill{Job: job, Force: true})
			delete(d.jobs, job)
			break
		}
	default:
		d.restart()
	}
	time.Sleep(500 * time.Millisecond) // a killed job ends
	d.admit()
}

func (d *drainModel) drain(nodes []uint32, reason string) {
	d.note("drain %v: %q", nodes, reason)
	var busy []uint32
	used := d.used()
	for _, node := range nodes {
		if used[node] > 0 {
			busy = append(busy, node)
		}
		old, was := d.drained[node]
		if !was {
			d.since[node] = time.Now().UnixNano()
		}
		d.drained[node] = reason
		if reason == "" {
			d.drained[node] = old
		}
	}
	slices.Sort(busy)
	if got := must[*control.NodesDrained](d.c, order(reason, nodes...)).Busy; !slices.Equal(got, busy) {
		d.t.Fatalf("nodes with jobs are %v, not %v", got, busy)
	}
}

func (d *drainModel) resume(nodes []uint32) {
	d.note("resume %v", nodes)
	all := !slices.ContainsFunc(nodes, func(node uint32) bool { _, is := d.drained[node]; return !is })
	if _, err := d.c.ask(&control.ResumeNodes{Nodes: nodes}); (err == nil) != all {
		d.t.Fatalf("resume: %v", err)
	}
	for _, node := range nodes {
		if all {
			delete(d.drained, node)
		}
	}
}

// run asks for a job that waits, or for one that does not wait and gets cores at once or never.
func (d *drainModel) run(s *control.JobSpec) {
	d.note("run %d ranks, wait %d, on %v", s.Ranks, s.WaitMs, s.Only)
	answer := d.m.client().begin(&control.RunRequest{Spec: s})
	if s.WaitMs != 0 {
		if d.cores(s, nil) >= int(s.Ranks) {
			d.queue = append(d.queue, &queued{spec: s, answer: answer})
			return
		}
		if a := <-answer; a.err == nil || !strings.Contains(a.err.Error(), "it would wait for ever") {
			d.t.Fatalf("answered with %v", a)
		}
		return
	}
	fits := d.mayRun(s, len(d.queue))
	synctest.Wait()
	a := <-answer
	if (a.err == nil) != fits {
		d.t.Fatalf("it fits: %v, and is answered with %v", fits, a)
	}
	if fits {
		d.begins(s, a)
	}
}

// restart kills serve. The clients of waiting jobs do not return.
func (d *drainModel) restart() {
	d.note("serve is killed")
	d.m.restart()
	for _, n := range d.m.played {
		n.jobs = nil
		for job, nodes := range d.jobs {
			if slices.Contains(nodes, n.number) {
				n.jobs = append(n.jobs, &control.HostedJob{Job: job, Phase: control.JobPhase_JOB_RUNNING})
			}
		}
		n.connect()
	}
	d.c, d.queue = d.m.client(), nil
}

// used returns how many cores of nodes are used by jobs.
func (d *drainModel) used() (used [drainNodes]int) {
	for _, nodes := range d.jobs {
		for _, node := range nodes {
			used[node]++
		}
	}
	return used
}

// cores returns how many cores a job may get on nodes that are not out, not counting used ones.
func (d *drainModel) cores(s *control.JobSpec, out map[uint32]string, used ...int) (n int) {
	for node := range uint32(drainNodes) {
		if _, is := out[node]; is || len(s.Only) > 0 && !slices.Contains(s.Only, node) {
			continue
		}
		n += 2
		if len(used) > 0 {
			n -= used[node]
		}
	}
	return n
}

// mayRun reports whether a job with before other jobs ahead of it in the queue can start: it is its
// turn, and there are enough cores.
func (d *drainModel) mayRun(s *control.JobSpec, before int) bool {
	for _, q := range d.queue[:before] {
		shared := len(q.spec.Only) == 0 || len(s.Only) == 0 || slices.ContainsFunc(s.Only, func(node uint32) bool { return slices.Contains(q.spec.Only, node) })
		if shared && d.cores(q.spec, d.drained) >= int(q.spec.Ranks) {
			return false
		}
	}
	used := d.used()
	return d.cores(s, d.drained, used[:]...) >= int(s.Ranks)
}

// admit starts the queued jobs that may run, and demands that the others wait.
func (d *drainModel) admit() {
	synctest.Wait()
	for i := 0; i < len(d.queue); i++ {
		q := d.queue[i]
		if !d.mayRun(q.spec, i) {
			continue
		}
		select {
		case a := <-q.answer:
			if a.err != nil {
				d.t.Fatal(a.err)
			}
			d.queue = slices.Delete(d.queue, i, i+1)
			d.begins(q.spec, a)
			i = -1
		default:
			d.t.Fatalf("a job of %d ranks on %v waits, and may run", q.spec.Ranks, q.spec.Only)
		}
	}
	for _, q := range d.queue {
		waits(d.t, q.answer)
	}
}

// begins takes the answer to a job that has got its cores, and loads its nodes.
func (d *drainModel) begins(s *control.JobSpec, a asked) {
	reply := a.message.(*control.RunReply)
	d.note("job %d begins", reply.Job)
	for _, p := range reply.Places {
		if _, is := d.drained[p.Node]; is || len(s.Only) > 0 && !slices.Contains(s.Only, p.Node) {
			d.t.Fatalf("job %d on %v has rank %d on node%d", reply.Job, s.Only, p.Rank, p.Node)
		}
		if !slices.Contains(d.jobs[reply.Job], p.Node) {
			d.m.played[p.Node].tell(&control.Loaded{Job: reply.Job})
		}
		d.jobs[reply.Job] = append(d.jobs[reply.Job], p.Node)
	}
}

// check compares the nodes with the model.
func (d *drainModel) check() {
	used, free := d.used(), 0
	for _, n := range must[*control.Nodes](d.c, &control.ListNodes{}).Nodes {
		reason, is := d.drained[n.Node]
		var want *control.Drain
		if is {
			want = &control.Drain{State: control.DrainState_DRAIN_DRAINED, Reason: reason, User: "op", SinceNs: d.since[n.Node]}
			if used[n.Node] > 0 {
				want.State = control.DrainState_DRAIN_DRAINING
			}
		} else {
			free += 2 - used[n.Node]
		}
		if !proto.Equal(n.Drain, want) {
			d.t.Fatalf("node%d is drained as %v, not %v", n.Node, n.Drain, want)
		}
	}
	if got := d.c.freeCores(); int(got) != free {
		d.t.Fatalf("%d cores are free, not %d", got, free)
	}
}
