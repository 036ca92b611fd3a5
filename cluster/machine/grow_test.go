package machine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/internal/check"
	"margay/kernel/abi/id"
)

// seat is a number at the time of one of its nodes.
type seat struct {
	node id.Node
	term uint32
}

// seats is a substrate that knows which node of a number runs. Every other node takes a moment to
// stop.
type seats struct {
	t *testing.T

	mu      sync.Mutex
	running map[id.Node]chan exit
	terms   map[id.Node]uint32 // the last one that was started
	removed map[seat]bool
}

func newSeats(t *testing.T) *seats {
	return &seats{t: t, running: make(map[id.Node]chan exit), terms: make(map[id.Node]uint32), removed: make(map[seat]bool)}
}

func (s *seats) start(node id.Node, term uint32) (int, <-chan exit, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[node] != nil {
		s.t.Errorf("node%d is started while it runs", node)
	}
	if s.removed[seat{node, term}] {
		s.t.Errorf("node%d is started again in term %d, in which it has left", node, term)
	}
	s.running[node], s.terms[node] = make(chan exit, 1), term
	return 1, s.running[node], nil
}

func (s *seats) runs(node id.Node) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[node] != nil
}

func (s *seats) end(node id.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ended := s.running[node]; ended != nil {
		delete(s.running, node)
		ended <- exit{Reason: "it ended"}
	}
}

func (s *seats) stop(node id.Node) <-chan error {
	time.Sleep(time.Duration(node%2) * time.Second)
	s.end(node)
	return nil
}

func (s *seats) remove(node id.Node) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running[node] != nil {
		s.t.Errorf("node%d is removed while it runs", node)
	}
	s.removed[seat{node, s.terms[node]}] = true
}

func (s *seats) close() error { return nil }

// lifeOfHolder is a random life of a holder. The test is its serve.
type lifeOfHolder struct {
	t      *testing.T
	rng    *rand.Rand
	h      *holder
	p      *seats
	model  roster.Roster
	orders map[string][]uint32 // carried out
	steps  []string

	served context.Context
	conn   *control.Conn
	mu     sync.Mutex
	last   *control.Roster // that serve has got
}

// TestLifeOfMachine plays random lives of a machine's holder: nodes are added, taken out, rebooted
// and end, serve is started again in the middle of any of that, and the disk fills up. A roster, to
// which the same is done, is the reference.
func TestLifeOfMachine(t *testing.T) {
	seed, lives := check.Seed(t), uint64(30)
	if os.Getenv("MARGAY_SOAK") != "" {
		lives = 5000
	}
	base(t)
	for i := range lives {
		d := created(t, fmt.Sprint("m", i))
		synctest.Test(t, func(t *testing.T) {
			l := &lifeOfHolder{t: t, rng: rand.New(rand.NewPCG(seed, i)), model: roster.New(2), orders: make(map[string][]uint32)}
			l.play(d)
			if t.Failed() {
				t.Logf("life %d:\n%s", i, strings.Join(l.steps, "\n"))
			}
		})
		if t.Failed() {
			return
		}
	}
}

func (l *lifeOfHolder) play(d Dir) {
	l.p = newSeats(l.t)
	l.h = &holder{dir: d, spec: Spec{Name: "m", Nodes: 2}, roster: roster.New(2), substrate: l.p, log: func(string, ...any) {}}
	ctx, cancel := context.WithCancel(l.t.Context())
	l.served = ctx
	l.h.begin(ctx)
	l.connect()
	for range 25 {
		l.step()
		if l.t.Failed() {
			break
		}
	}
	l.settle()
	l.h.noMore()
	l.conn.Close()
	cancel()
	l.h.keeping.Wait()
	l.h.obeying.Wait()
	if len(l.p.running) > 0 {
		l.t.Errorf("%v still run", l.p.running)
	}
}

// connect is the start of a serve.
func (l *lifeOfHolder) connect() {
	ours, theirs := net.Pipe()
	conn := control.NewConn(ours)
	go l.h.attend(l.served, l.served, control.NewConn(theirs))
	if _, err := conn.Meet(); err != nil {
		l.t.Error(err)
	}
	_ = conn.Send(&control.Welcome{Version: control.Version})
	l.conn = conn
	go conn.Serve(func(f *control.Frame) {
		if m, ok := f.Message().(*control.Roster); ok {
			l.mu.Lock()
			l.last = m
			l.mu.Unlock()
			conn.Answer(f, &control.Done{}, nil)
		}
	})
	synctest.Wait()
	l.agree()
}

// agree compares what serve got, and what the next serve will read, with the model.
func (l *lifeOfHolder) agree() {
	l.t.Helper()
	l.mu.Lock()
	got := roster.Roster{Nodes: l.last.GetNodes(), Terms: l.last.GetTerms()}
	l.mu.Unlock()
	kept, err := l.h.dir.ReadRoster(l.h.spec)
	for who, r := range map[string]roster.Roster{"serve": got, "the file": kept} {
		if err != nil || !slices.Equal(r.Nodes, l.model.Nodes) || !slices.Equal(r.Terms, l.model.Terms) {
			l.t.Errorf("%s has %v, %v, the model %v, %v", who, r, r.Terms, l.model, l.model.Terms)
		}
	}
}

// settle waits until nothing happens any more: each node of the roster runs, and no other.
func (l *lifeOfHolder) settle() {
	time.Sleep(time.Hour)
	synctest.Wait()
	l.agree()
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	for _, node := range l.model.Nodes {
		l.h.mu.Lock()
		life := l.h.nodes[id.Node(node)].life
		l.h.mu.Unlock()
		if l.p.running[id.Node(node)] == nil && life.failures <= bootRetries && len(life.ends) <= mostEnds {
			l.t.Errorf("node%d does not run: %+v", node, life)
		}
		if l.p.terms[id.Node(node)] != l.model.Term(node) {
			l.t.Errorf("node%d was started in term %d, not %d", node, l.p.terms[id.Node(node)], l.model.Term(node))
		}
	}
	for node := range l.p.running {
		if !l.model.Has(uint32(node)) {
			l.t.Errorf("node%d runs and has left", node)
		}
	}
}

func (l *lifeOfHolder) step() {
	node := uint32(l.rng.IntN(6))
	switch l.rng.IntN(8) {
	case 0, 1:
		l.grow(1 + l.rng.IntN(3))
	case 2, 3:
		l.remove(node)
	case 4:
		l.note("node%d ends", node)
		l.p.end(id.Node(node))
		synctest.Wait()
	case 5:
		if l.p.runs(id.Node(node)) {
			l.note("node%d is up", node)
			_ = l.conn.Send(&control.NodeUp{Node: node})
			synctest.Wait()
		}
	case 6:
		l.note("node%d is rebooted", node)
		_, err := l.conn.Call(l.t.Context(), &control.RebootNode{Node: node})
		if unknown := errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}); unknown == l.model.Has(node) {
			l.t.Errorf("the reboot of node%d: %v", node, err)
		}
	case 7:
		l.note("time passes")
		time.Sleep(time.Duration(l.rng.IntN(3000)) * time.Millisecond)
	}
	if l.rng.IntN(4) == 0 {
		l.restart()
	}
}

func (l *lifeOfHolder) note(format string, args ...any) {
	l.steps = append(l.steps, fmt.Sprintf(format, args...))
}

// restart ends serve and starts the next one.
func (l *lifeOfHolder) restart() {
	l.note("serve is started again")
	l.conn.Close()
	time.Sleep(time.Minute) // orders that were on their way are carried out
	l.connect()
}

// order sends an order, and repeats it if serve is started again before the answer.
func (l *lifeOfHolder) order(m proto.Message) (answer proto.Message, err error) {
	full := l.rng.IntN(6) == 0
	l.note("%T %v, disk full: %v", m, m, full)
	next := l.h.dir.file(nextRosterName)
	if full {
		_ = os.Mkdir(next, 0o700)
	}
	if l.rng.IntN(3) == 0 {
		l.conn.Ask(m)
		if l.rng.IntN(2) == 0 {
			synctest.Wait() // it has arrived; otherwise it may have been lost
		}
		// Whether it was carried out or not, the next serve repeats it.
		l.conn.Close()
		time.Sleep(time.Minute)
		l.h.mu.Lock()
		l.model = l.h.roster
		l.h.mu.Unlock()
		l.connect()
	}
	answer, err = l.conn.Call(l.t.Context(), m)
	if full {
		_ = os.Remove(next)
	}
	return answer, err
}

func (l *lifeOfHolder) grow(n int) {
	before := l.model
	order := fmt.Sprint("order ", len(l.steps))
	answer, err := l.order(&control.GrowMachine{Count: uint32(n), Order: order})
	if err != nil {
		if !strings.Contains(err.Error(), "record the machine's nodes") {
			l.t.Error(err)
		}
		l.agree()
		return
	}
	grown, added, err := before.Grow(n)
	if got := answer.(*control.NodesAdded).Nodes; err != nil || !slices.Equal(got, added) {
		l.t.Errorf("nodes %v are added, not %v, %v", got, added, err)
	}
	l.model = grown
	l.agree()
	again, err := l.conn.Call(l.t.Context(), &control.GrowMachine{Count: uint32(n), Order: order})
	if err != nil || !slices.Equal(again.(*control.NodesAdded).Nodes, added) {
		l.t.Errorf("the order once more: %v, %v", again, err)
	}
	l.agree()
}

func (l *lifeOfHolder) remove(node uint32) {
	before := l.model
	term := before.Term(node)
	if l.rng.IntN(4) == 0 {
		term-- // an order that is long done
	}
	if _, err := l.order(&control.RemoveNode{Node: node, Term: term}); err != nil {
		if !strings.Contains(err.Error(), "record the machine's nodes") {
			l.t.Error(err)
		}
	} else if l.model = before; term == before.Term(node) {
		l.model = before.Without(node)
	}
	l.agree()
}

// A number that is given again at once is started when its last node has ended.
func TestNumberIsGivenAtOnce(t *testing.T) {
	base(t)
	d := created(t, "m")
	synctest.Test(t, func(t *testing.T) {
		p := newSeats(t)
		h := &holder{dir: d, spec: Spec{Name: "m"}, roster: roster.New(2), substrate: p, log: t.Logf}
		ctx, cancel := context.WithCancel(t.Context())
		h.begin(ctx)
		synctest.Wait()
		removed := make(chan error, 1)
		go func() { removed <- h.remove(ctx, &control.RemoveNode{Node: 1, Term: 1}) }()
		synctest.Wait() // node1 is ending
		if added, err := h.grow(ctx, ctx, &control.GrowMachine{Count: 1}); err != nil || !slices.Equal(added.Nodes, []uint32{1}) {
			t.Errorf("added: %v, %v", added, err)
		}
		if err := <-removed; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		p.mu.Lock()
		if p.running[1] == nil || p.terms[1] != 2 || !p.removed[seat{1, 1}] {
			t.Errorf("running %v, terms %v, removed %v", p.running, p.terms, p.removed)
		}
		p.mu.Unlock()
		cancel()
		h.keeping.Wait()
	})
}

// A serve that could not take the roster gets it with the answer to the order's repetition. The
// end of an earlier node is not reported: another node may have its number.
func TestRosterIsNotTaken(t *testing.T) {
	base(t)
	d := created(t, "m")
	synctest.Test(t, func(t *testing.T) {
		h := &holder{dir: d, spec: Spec{Name: "m"}, roster: roster.New(2), substrate: newSeats(t), log: t.Logf}
		ctx, cancel := context.WithCancel(t.Context())
		h.begin(ctx)
		synctest.Wait()
		past := h.nodes[1]
		ours, theirs := net.Pipe()
		serve := control.NewConn(theirs)
		h.conn = control.NewConn(ours)
		go h.conn.Serve(func(*control.Frame) {})
		got := make(map[string]int)
		go serve.Serve(func(f *control.Frame) {
			got[fmt.Sprintf("%T", f.Message())]++
			serve.Answer(f, nil, errors.New("the disk is full"))
		})
		for range 2 {
			if err := h.remove(ctx, &control.RemoveNode{Node: 1, Term: 1}); err != nil {
				t.Error(err)
			}
		}
		h.nodeExited(past, exit{Reason: "it ended"})
		synctest.Wait()
		if len(got) != 1 || got["*control.Roster"] != 2 {
			t.Errorf("serve has got %v", got)
		}
		h.conn.Close()
		serve.Close()
		cancel()
		h.keeping.Wait()
	})
}

// The wait for all nodes ends also if one that was up has left.
func TestAwaitUpOfFewer(t *testing.T) {
	const up, booting = control.NodeHealth_NODE_UP, control.NodeHealth_NODE_BOOTING
	w := &rising{told: t.Logf, up: make(map[uint32]bool), again: make(map[uint32]string), stages: make(map[uint32]string)}
	for _, c := range []struct {
		list []*control.NodeState
		done bool
	}{
		{[]*control.NodeState{{Node: 0, Health: up}, {Node: 1, Health: up}, {Node: 2, Health: booting}}, false},
		{[]*control.NodeState{{Node: 0, Health: up}, {Node: 2, Health: booting}}, false},
		{[]*control.NodeState{{Node: 0, Health: up}, {Node: 2, Health: up}}, true},
	} {
		if done, err := w.look(c.list); done != c.done || err != nil {
			t.Errorf("%v: %v, %v", c.list, done, err)
		}
	}
}

// A thousand nodes that come up have a line a second, not one each. Only one that has booted again
// is named.
func TestManyComeUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 1000
		var lines []string
		w := &rising{
			told:  func(format string, args ...any) { lines = append(lines, fmt.Sprintf(format, args...)) },
			began: time.Now(), up: make(map[uint32]bool), again: make(map[uint32]string), stages: make(map[uint32]string),
		}
		list := make([]*control.NodeState, nodes)
		for i := range list {
			list[i] = &control.NodeState{Node: uint32(i), Health: control.NodeHealth_NODE_BOOTING, Boots: 1}
		}
		list[7].Boots = 2
		for i, n := range list {
			time.Sleep(3 * time.Millisecond)
			n.Health = control.NodeHealth_NODE_UP
			if done, err := w.look(list); done != (i == nodes-1) || err != nil {
				t.Fatalf("with %d nodes: %v, %v", i+1, done, err)
			}
		}
		want := []string{
			"1 of 1000 nodes are up after 0.0 s", "node7 is up on boot 2 after 0.0 s (8 of 1000)", "335 of 1000 nodes are up after 1.0 s",
			"669 of 1000 nodes are up after 2.0 s", "1000 of 1000 nodes are up after 3.0 s",
		}
		if !slices.Equal(lines, want) {
			t.Errorf("%q", lines)
		}
	})
}

// The machine does not grow beyond its address range, and says what helps.
func TestGrowTooFar(t *testing.T) {
	h := &holder{spec: Spec{Name: "m"}, roster: roster.New(roster.Most - 1), log: t.Logf}
	for _, n := range []uint32{0, 2, roster.Most, 1<<32 - 1} {
		_, err := h.grow(t.Context(), t.Context(), &control.GrowMachine{Count: n})
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_NO_ROOM}) ||
			!strings.Contains(err.Error(), "a machine has 1000 nodes at most, and this one has 999 already: grow by less, take nodes out (margay machine shrink -m m)") {
			t.Errorf("by %d: %v", n, err)
		}
	}
	h.noMore()
	if _, err := h.grow(t.Context(), t.Context(), &control.GrowMachine{Count: 1}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_DOWN}) {
		t.Errorf("of a machine that goes down: %v", err)
	}
}

func TestChooseLeavers(t *testing.T) {
	const up, dead = control.NodeHealth_NODE_UP, control.NodeHealth_NODE_DEAD
	list := func() []*control.NodeState {
		return []*control.NodeState{
			{Node: 0, Health: dead},
			{Node: 1, Health: up, Drain: &control.Drain{Leave: true}},
			{Node: 2, Health: up, Drain: new(control.Drain), Cores: []*control.CoreUse{{Core: 1, Job: 1}}},
			{Node: 3, Health: up, Cores: []*control.CoreUse{{Core: 1, Job: 1}}},
			{Node: 4, Health: up},
			{Node: 5, Health: up, Cores: []*control.CoreUse{{Core: 1}}},
		}
	}
	for count, want := range map[int][]uint32{1: {0}, 2: {0, 2}, 3: {0, 2, 5}, 4: {0, 2, 4, 5}} {
		if nodes, err := leavers(list(), count); err != nil || !slices.Equal(nodes, want) {
			t.Errorf("%d: %v, %v", count, nodes, err)
		}
	}
	if _, err := leavers(list(), 5); err == nil || !strings.Contains(err.Error(), "5 nodes cannot leave: the machine has 5, and at least one stays") {
		t.Errorf("all: %v", err)
	}
}
