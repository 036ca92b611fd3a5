package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/cluster/site"
	"margay/internal/check"
	"margay/kernel/abi/id"
)

// playedSubstrate is a substrate whose nodes do what a test wants.
type playedSubstrate struct {
	fail     error  // the error of the start of node 9
	stopping func() // called before a node is stopped; nil for nothing

	mu      sync.Mutex
	ends    map[id.Node]chan exit // of the nodes that run
	starts  []id.Node
	stopped []id.Node
}

func (p *playedSubstrate) start(node id.Node, _ uint32) (int, <-chan exit, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starts = append(p.starts, node)
	if node == 9 {
		return 0, nil, p.fail
	}
	p.ends[node] = make(chan exit, 1)
	return 1000 + int(node), p.ends[node], nil
}

func (p *playedSubstrate) stop(node id.Node) <-chan error {
	if p.stopping != nil {
		p.stopping()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = append(p.stopped, node)
	p.ends[node] <- exit{Reason: "it was stopped"}
	return nil
}

func (p *playedSubstrate) remove(id.Node) {}
func (p *playedSubstrate) close() error   { return nil }

// end ends a node.
func (p *playedSubstrate) end(node id.Node, reason string) {
	p.ended(node, exit{Reason: reason, Console: []string{"Oops"}})
}

func (p *playedSubstrate) ended(node id.Node, e exit) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends[node] <- e
}

func (p *playedSubstrate) started(node id.Node) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.starts {
		if s == node {
			n++
		}
	}
	return n
}

// playedServe records the holder's reports.
type playedServe struct {
	listener net.Listener
	mu       sync.Mutex
	got      []string
	conn     *control.Conn
}

func serveOn(t *testing.T, d Dir) *playedServe {
	t.Helper()
	l, err := listenClients(d.Socket())
	if err != nil {
		t.Fatal(err)
	}
	s := &playedServe{listener: l}
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			conn := control.NewConn(raw)
			if hello, err := conn.Meet(); err != nil || hello.Role != control.Role_ROLE_HOLDER {
				t.Errorf("the holder says %v, %v", hello, err)
			}
			_ = conn.Send(&control.Welcome{Version: control.Version})
			s.mu.Lock()
			s.conn = conn
			s.mu.Unlock()
			_ = conn.Serve(func(f *control.Frame) { s.hear(f.Message()) })
			conn.Close()
		}
	}()
	return s
}

func (s *playedServe) hear(m proto.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch m := m.(type) {
	case *control.NodeBoot:
		s.got = append(s.got, fmt.Sprintf("node%d boots %d", m.Node, m.Boots))
	case *control.NodeStage:
		s.got = append(s.got, fmt.Sprintf("node%d: %s, %d", m.Node, m.Stage, m.Percent))
	case *control.NodePanic:
		s.got = append(s.got, fmt.Sprintf("node%d panics: %s", m.Node, m.Reason))
	case *control.NodeExit:
		if m.Off {
			s.got = append(s.got, fmt.Sprintf("node%d is off: %s", m.Node, m.Reason))
			return
		}
		s.got = append(s.got, fmt.Sprintf("node%d exits: %s, %v, retry %v", m.Node, m.Reason, m.Console, m.Retry))
	}
}

// It waits until serve has received a report.
func (s *playedServe) heard(t *testing.T, what string) {
	t.Helper()
	check.AwaitFor(t, patience, fmt.Sprintf("word of %q", what), func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return slices.Contains(s.got, what)
	})
}

// end closes the socket and the connection, as a serve that is killed does.
func (s *playedServe) end() {
	s.listener.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
	}
}

// holding runs a holder of nodes until the test ends.
func holding(t *testing.T, d Dir, nodes int, p *playedSubstrate, serve ...string) *holder {
	t.Helper()
	goroutines := runtime.NumGoroutine()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.ends = make(map[id.Node]chan exit)
	h := &holder{
		dir: d, spec: Spec{Name: "m", Nodes: nodes}, roster: roster.New(nodes), substrate: p, lifeline: r, serve: append([]string{exe, "serve"}, serve...), log: t.Logf,
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("the holder does not end")
		}
		r.Close()
		w.Close()
		for deadline := time.Now().Add(patience); runtime.NumGoroutine() > goroutines && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		if n := runtime.NumGoroutine(); n > goroutines {
			t.Errorf("%d goroutines, before there were %d", n, goroutines)
		}
	})
	return h
}

// isUp reports whether a node has registered since its last start.
func (h *holder) isUp(node id.Node) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.nodes[node].life.up
}

// The lock of a machine is free when its holder's process has ended, and not before. The lock file
// then does not suggest that the holder was killed.
func TestLockOutlivesHold(t *testing.T) {
	base(t)
	d := created(t, "m")
	if err := Hold(t.Context(), d, nil, HolderInherited{}, t.Logf); !errors.Is(err, ErrNoMachine) {
		t.Fatalf("without a spec: %v", err)
	}
	defer held.Close()
	if pid, alive := d.Holder(); !alive || pid != 0 {
		t.Errorf("it is held: %v, by process %d, which seems to be killed when it has ended", alive, pid)
	}
}

// A node that fails is started again, and one that turns itself off is not. An order starts a node,
// and reboots one that runs.
func TestHolderKeepsNodes(t *testing.T) {
	base(t)
	d := created(t, "m")
	s := serveOn(t, d)
	t.Cleanup(s.end)
	p := new(playedSubstrate)
	t.Cleanup(func() {
		slices.Sort(p.stopped[1:])
		if !slices.Equal(p.stopped, []id.Node{1, 0, 1, 1, 2, 2}) { // node1 by two orders, node2 by one, and all at the end
			t.Errorf("stopped: %v", p.stopped)
		}
	})
	h := holding(t, d, 3, p, "well")
	s.heard(t, "node0 boots 1")
	s.heard(t, "node1 boots 1")
	s.heard(t, "node2 boots 1")
	p.ended(2, exit{Reason: "it was refused", Off: true})
	s.heard(t, "node2 exits: it was refused, [], retry false")
	p.end(0, "it fell over")
	s.heard(t, "node0 exits: it fell over, [Oops], retry true")
	s.heard(t, "node0 boots 2")
	h.nodeStage(1, boot.Status{Stage: boot.Kernel, Percent: 30})
	s.heard(t, "node1: it fetches the kernel, 30")
	h.nodeStage(77, boot.Status{Stage: boot.Kernel})

	// The next serve receives it, too.
	s.end()
	s = serveOn(t, d)
	t.Cleanup(s.end)
	s.heard(t, "node1: it fetches the kernel, 30")
	s.heard(t, "node0 boots 2")
	s.mu.Lock()
	for _, node := range []uint32{0, 1, 1, 77} {
		_ = s.conn.Send(&control.NodeUp{Node: node})
	}
	s.mu.Unlock()
	check.AwaitFor(t, patience, "nodes that are up", func() bool { return h.isUp(0) && h.isUp(1) })
	p.end(0, "it fell over again")
	s.heard(t, "node0 exits: it fell over again, [Oops], retry true")
	s.heard(t, "node0 boots 3")

	// The next serve receives the current state.
	s.end()
	s = serveOn(t, d)
	t.Cleanup(s.end)
	s.heard(t, "node0 boots 3")
	s.heard(t, "node1 boots 1")
	s.heard(t, "node2 exits: it was refused, [], retry false")
	h.nodeStage(1, boot.Status{Stage: boot.Leased})
	s.mu.Lock()
	for _, text := range s.got {
		if strings.HasPrefix(text, "node1: ") {
			t.Errorf("of a node that is up, serve hears %q", text)
		}
	}
	s.mu.Unlock()

	for _, node := range []uint32{1, 2} {
		if _, err := s.conn.Call(t.Context(), &control.RebootNode{Node: node, Why: "somebody wants it"}); err != nil {
			t.Error(err)
		}
		s.heard(t, fmt.Sprintf("node%d exits: somebody wants it, [], retry true", node))
		s.heard(t, fmt.Sprintf("node%d boots 2", node))
	}
	for range 2 { // a named order is carried out once
		if _, err := s.conn.Call(t.Context(), &control.RebootNode{Node: 2, Why: "named", Once: 7}); err != nil {
			t.Error(err)
		}
	}
	s.heard(t, "node2 boots 3")
	switched := func(on bool, nodes ...uint32) {
		t.Helper()
		for _, node := range nodes {
			if _, err := s.conn.Call(t.Context(), &control.SwitchNode{Node: node, On: on, Why: "switched by somebody"}); err != nil {
				t.Error(err)
			}
		}
	}
	// A node that is switched off is not started, not by a reboot either, until it is switched on.
	switched(true, 1) // it is
	switched(false, 1, 1)
	s.heard(t, "node1 is off: switched by somebody")
	if _, err := s.conn.Call(t.Context(), &control.RebootNode{Node: 1}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_REFUSED}) {
		t.Errorf("the reboot of a node that is off: %v", err)
	}
	s.end()
	s = serveOn(t, d)
	t.Cleanup(s.end)
	s.heard(t, "node1 is off: switched by somebody")
	switched(true, 1)
	s.heard(t, "node1 boots 3")
	if _, err := s.conn.Call(t.Context(), &control.RebootNode{Node: 77}); !errors.Is(err, &control.Failure{Code: control.Code_CODE_NOT_FOUND}) {
		t.Errorf("the order for a node that there is not: %v", err)
	}
	if p.started(0) != 3 || p.started(1) != 3 || p.started(2) != 3 {
		t.Errorf("started: %v", p.starts)
	}
}

// A panic on the console of a node is in the reason of its end, and the next serve receives it. It
// is of one start, and was not one if the node registers.
func TestHolderReportsPanic(t *testing.T) {
	base(t)
	d := created(t, "m")
	s := serveOn(t, d)
	t.Cleanup(s.end)
	p := new(playedSubstrate)
	h := holding(t, d, 1, p, "well")
	s.heard(t, "node0 boots 1")
	h.nodePanic(77, "of no node")
	h.nodePanic(0, "no init")
	s.heard(t, "node0 panics: no init")
	s.end()
	s = serveOn(t, d)
	t.Cleanup(s.end)
	s.heard(t, "node0 panics: no init")
	p.end(0, "it fell over")
	s.heard(t, "node0 exits: it fell over; its console says that its Linux has panicked: no init, [Oops], retry true")
	s.heard(t, "node0 boots 2")
	h.nodePanic(0, "forged")
	s.heard(t, "node0 panics: forged")
	h.nodeUp(&control.NodeUp{Node: 0})
	p.end(0, "it fell over")
	s.heard(t, "node0 exits: it fell over, [Oops], retry true")
}

// The holder gives up a node that never comes up after its third start.
func TestHolderGivesUp(t *testing.T) {
	base(t)
	d := created(t, "m")
	s := serveOn(t, d)
	t.Cleanup(s.end)
	p := &playedSubstrate{fail: errors.New("no emulator")}
	holding(t, d, 10, p, "well")
	s.heard(t, "node9 exits: no emulator, [], retry false")
	s.heard(t, "node3 boots 1")
	p.end(3, "bad kernel")
	s.heard(t, "node3 boots 2")
	p.end(3, "bad kernel")
	s.heard(t, "node3 boots 3")
	p.end(3, "bad kernel")
	s.heard(t, "node3 exits: bad kernel, [Oops], retry false")
}

// Nodes run until serve has ended, which notifies its clients of the end of the machine.
func TestHolderEndsServeFirst(t *testing.T) {
	base(t)
	d := created(t, "m")
	said := func(text string) bool {
		log, _ := os.ReadFile(d.Log("serve"))
		return strings.Contains(string(log), text)
	}
	p := &playedSubstrate{stopping: func() {
		if !said("a serve has ended") {
			t.Error("a node is stopped while serve runs")
		}
	}}
	t.Cleanup(func() {
		if len(p.stopped) != 2 {
			t.Errorf("stopped: %v", p.stopped)
		}
	})
	holding(t, d, 2, p, "well")
	check.AwaitFor(t, patience, "serve and the nodes", func() bool { return said("a serve begins") && p.started(0) > 0 && p.started(1) > 0 })
}

// serve is started again whenever it ends.
func TestHolderKeepsServe(t *testing.T) {
	base(t)
	d := created(t, "m")
	holding(t, d, 0, new(playedSubstrate), "badly")
	check.AwaitFor(t, patience, "third serve", func() bool {
		text, _ := os.ReadFile(d.Log("serve"))
		return strings.Count(string(text), "a serve begins") >= 3
	})
}

// While the holder stops nodes, clients can see that the machine goes down.
func TestHolderSaysThatItEnds(t *testing.T) {
	base(t)
	d := created(t, "m")
	said := make(chan error, 1)
	p := &playedSubstrate{stopping: func() {
		_, err := os.Stat(d.file(site.EndingName))
		said <- err
	}}
	t.Run("holder", func(t *testing.T) {
		holding(t, d, 1, p)
		check.AwaitFor(t, time.Minute, "node", func() bool { return p.started(0) == 1 })
	})
	if err := <-said; err != nil {
		t.Error(err)
	}
}
