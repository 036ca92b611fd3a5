package machine

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/kernel/abi/id"
)

// turnsOf starts to keep nodes. Two may be started at a time, and odd ones take a second to stop.
func turnsOf(t *testing.T, nodes int) (h *holder, p *seats, ctx context.Context, end func()) {
	p = newSeats(t)
	h = &holder{spec: Spec{Name: "m"}, roster: roster.New(nodes), substrate: p, turns: make(chan struct{}, 2), log: t.Logf}
	ctx, cancel := context.WithCancel(t.Context())
	h.begin(ctx)
	synctest.Wait()
	return h, p, ctx, func() {
		cancel()
		h.keeping.Wait()
		time.Sleep(turnWait)
		if len(p.running) > 0 || len(h.turns) > 0 {
			t.Errorf("after the end %v run, and %d have a turn", p.running, len(h.turns))
		}
	}
}

// count returns how many nodes run.
func (s *seats) count() int {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running)
}

// some returns a node that runs, or that does not.
func (s *seats) some(nodes int, runs bool) id.Node {
	for i := range nodes {
		if s.runs(id.Node(i)) == runs {
			return id.Node(i)
		}
	}
	s.t.Fatalf("no node is found for which it holds that it runs: %v", runs)
	return 0
}

// A node is started when another one has registered, has ended, or has not registered for a while.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 6
		h, p, _, end := turnsOf(t, nodes)
		defer end()
		if n := p.count(); n != 2 {
			t.Fatalf("%d nodes are started at a time", n)
		}
		h.nodeUp(&control.NodeUp{Node: uint32(p.some(nodes, true))})
		if n := p.count(); n != 3 {
			t.Errorf("%d nodes run when one has registered", n)
		}
		time.Sleep(turnWait)
		if n := p.count(); n != 5 {
			t.Errorf("%d nodes run after %v", n, turnWait)
		}
		time.Sleep(turnWait)
		if n := p.count(); n != nodes {
			t.Errorf("%d nodes run after twice that time", n)
		}
	})
}

// A node that waits for its turn takes orders at once: it is switched off, and not started when
// others have registered; it is switched on again, and waits; it leaves.
func TestOrdersInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 3
		h, p, ctx, end := turnsOf(t, nodes)
		defer end()
		waits := p.some(nodes, false)
		began := time.Now()
		for i, kind := range []orderKind{reboot, switchOff, switchOn, switchOn, reboot, switchOff} {
			if err := h.order(ctx, uint32(waits), order{kind: kind, why: fmt.Sprint("order ", i)}); err != nil {
				t.Errorf("order %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != 0 || p.count() != 2 {
			t.Errorf("orders took %v, and %d nodes run", took, p.count())
		}
		time.Sleep(2 * turnWait)
		if p.count() != 2 || p.runs(waits) {
			t.Error("a node that was switched off while it waited has been started")
		}
		if err := h.order(ctx, uint32(waits), order{kind: switchOn, why: "at last"}); err != nil || p.count() != nodes {
			t.Errorf("it is switched on: %v, and %d nodes run", err, p.count())
		}
	})
}

// A node that is stopped or rebooted in its turn does not keep it.
func TestStoppedInTurn(t *testing.T) {
	for kind, want := range map[orderKind]int{switchOff: 2, reboot: 2} {
		synctest.Test(t, func(t *testing.T) {
			const nodes = 4
			h, p, ctx, end := turnsOf(t, nodes)
			defer end()
			for range 3 {
				if err := h.order(ctx, uint32(p.some(nodes, true)), order{kind: kind, why: "by order"}); err != nil {
					t.Error(err)
				}
				synctest.Wait()
				if n := len(h.turns); n > 2 || kind == reboot && n != 2 {
					t.Errorf("%d turns are taken", n)
				}
			}
			if n := p.count(); kind == reboot && n != want || n == 0 {
				t.Errorf("%d nodes run", n)
			}
		})
	}
}

// A node that has left while it waited is not started, even if it is its turn at the same time.
func TestLeavesInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const nodes = 3
		h, p, _, end := turnsOf(t, nodes)
		defer end()
		waits := p.some(nodes, false)
		h.nodes[waits].leave()
		<-h.turns // as another node does that has registered
		h.turns <- struct{}{}
		synctest.Wait()
		if p.runs(waits) {
			t.Error("it is started")
		}
	})
}
