package machine

import (
	"context"
	"fmt"
	"slices"
	"time"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/metal"
	"margay/cluster/roster"
	"margay/cluster/trust"
	"margay/kernel/abi/id"
)

// approve makes machines on the boot network nodes, and returns their numbers when they are being
// started. They run until served ends.
func (h *holder) approve(ctx, served context.Context, m *control.ApproveGuests) (*control.NodesAdded, error) {
	nodes, ok := h.substrate.(*metalNodes)
	if !ok {
		return nil, control.Failf(control.Code_CODE_REFUSED, "machine %s has no boot network: margay machine grow -m %[1]s adds nodes", h.spec.Name)
	}
	h.changing.Lock()
	defer h.changing.Unlock()
	if added, err := h.repeated(m.Order); added != nil || err != nil {
		return added, err
	}
	var macs []boot.MAC
	for _, text := range m.Macs {
		mac, err := metal.ParseMAC(text)
		if err != nil {
			return nil, control.Failf(control.Code_CODE_REFUSED, "%v", err)
		}
		macs = append(macs, mac)
	}
	grown, added, err := h.number(nodes, macs)
	if err != nil {
		return nil, control.Failf(control.Code_CODE_NO_ROOM, "%v: take nodes out (margay machine shrink -m %s)", err, h.spec.Name)
	}
	return h.makeNodes(ctx, served, nodes, m.Order, macs, grown, added)
}

// number returns the roster with nodes more, and their numbers. A machine that the machine file
// names has the number of the file, and no other machine gets such a number: it would be switched
// by the driver of the named one. The caller holds h.changing.
func (h *holder) number(nodes *metalNodes, macs []boot.MAC) (grown roster.Roster, added []uint32, err error) {
	taken := append(nodes.busy(), h.dir.promised(time.Now())...)
	grown = h.roster
	for _, mac := range macs {
		named, own, known := nodes.named(mac)
		var numbers []uint32
		if known && !grown.Has(own) && !slices.Contains(taken, own) {
			numbers = []uint32{own}
			grown, err = grown.With(own)
		} else {
			grown, numbers, err = grown.Grow(1, append(named, taken...)...)
		}
		if err != nil {
			return grown, nil, err
		}
		added = append(added, numbers...)
	}
	return grown, added, nil
}

// makeNodes makes machines on the boot network nodes, with the numbers that a roster has more than
// the last one. The caller holds h.changing.
func (h *holder) makeNodes(ctx, served context.Context, nodes *metalNodes, order string, macs []boot.MAC, grown roster.Roster, added []uint32) (*control.NodesAdded, error) {
	for i, mac := range macs {
		if err := nodes.join(id.Node(added[i]), mac); err != nil {
			for _, number := range added[:i] {
				nodes.remove(id.Node(number))
			}
			return nil, control.Failf(control.Code_CODE_REFUSED, "%v", err)
		}
	}
	if err := h.record(grown); err != nil {
		for _, number := range added {
			nodes.remove(id.Node(number))
		}
		return nil, err
	}
	h.log("machines become nodes: %v become %v", macs, added)
	answer := h.startAdded(ctx, served, order, added)
	h.sendGuests()
	return answer, nil
}

// sendGuests sends to serve which machines wait to be made nodes.
func (h *holder) sendGuests() {
	if h.keeps() == nil {
		return // the substrate is being made; serve is not connected yet
	}
	nodes, ok := h.substrate.(*metalNodes)
	if !ok {
		return
	}
	guests := nodes.guests()
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil {
		_ = h.conn.Send(guests)
	}
}

// metalEvents are what the holder does about news of the boot network, until served ends.
func (h *holder) metalEvents() metalEvents {
	met := func(mac boot.MAC) {
		served := h.keeps()
		if served == nil || !h.spec.Metal.ApproveAll {
			return
		}
		if _, err := h.approve(served, served, &control.ApproveGuests{Macs: []string{mac.String()}, Order: trust.NewToken()}); err != nil {
			h.log("%v is not made a node: %v", mac, err)
		}
	}
	return metalEvents{
		stage: h.nodeStage, panicked: h.nodePanic, log: h.log, changed: h.sendGuests,
		woke: func(number id.Node) {
			if served := h.keeps(); served != nil {
				// An error is the holder's end, or the node's, whose next question is refused.
				_ = h.order(served, uint32(number), order{kind: switchOn, why: "it has begun to boot", woke: true})
			}
		},
		met: met, shown: h.tokenShown,
		admitted: func(number id.Node, mac boot.MAC) {
			served := h.keeps()
			if served == nil {
				return
			}
			err := h.admit(served, number, mac)
			h.tokenShown(number, mac, err)
			if err != nil {
				h.log("%v is not made node%d, and its token is used up: %v", mac, number, err)
				h.sendGuests() // it waits for approval
				met(mac)
			}
		},
	}
}

// tokenShown reports to serve that a machine has shown the token of a node. The log of the holder
// has that as well.
func (h *holder) tokenShown(number id.Node, mac boot.MAC, err error) {
	m := &control.TokenShown{Node: uint32(number), Mac: mac.String()}
	if err != nil {
		m.Refused = err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conn != nil {
		_ = h.conn.Send(m)
	}
}

// Approve makes machines on the boot network nodes, and returns their numbers when they are being
// started.
func (d Dir) Approve(ctx context.Context, macs []string, user string) ([]uint32, error) {
	serve := &asker{dir: d}
	defer serve.close()
	added, err := change[*control.NodesAdded](ctx, serve, &control.ApproveGuests{Macs: macs, Order: trust.NewToken(), User: user})
	if err != nil {
		return nil, err
	}
	return added.Nodes, nil
}

// awaitServing waits until serve answers.
func (d Dir) awaitServing(ctx context.Context, told func(format string, args ...any)) error {
	serve := &asker{dir: d}
	defer serve.close()
	list, err := ask[*control.Nodes](ctx, serve, &control.ListNodes{})
	if err == nil {
		told("machines can boot now: %d nodes are known, others wait for margay node approve; margay nodes shows all of them", len(list.Nodes))
	}
	if err != nil {
		return fmt.Errorf("machine %s: %w", d.Name(), err)
	}
	return nil
}
