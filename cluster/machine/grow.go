package machine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// The holder alone changes the machine's roster, by order of serve. It records a change before it
// applies it. A new node is started when serve expects it; a node that leaves has ended when serve
// forgets it. Each serve gets the roster when the holder connects to it, so a restart of serve
// during a change loses nothing.

// announceWait bounds how long a change waits until serve has taken the roster.
const announceWait = 5 * time.Second

// grow adds nodes to the machine, and returns their numbers when they are being started. They run
// until served ends.
func (h *holder) grow(ctx, served context.Context, m *control.GrowMachine) (*control.NodesAdded, error) {
	h.changing.Lock()
	defer h.changing.Unlock()
	if added, err := h.repeated(m.Order); added != nil || err != nil {
		return added, err
	}
	if h.spec.Substrate == node.Metal {
		return nil, control.Failf(control.Code_CODE_REFUSED, "machines become nodes of it when they boot: margay node approve -m %s MAC", h.spec.Name)
	}
	grown, added, err := h.roster.Grow(int(min(m.Count, roster.Most+1)))
	if err != nil {
		return nil, control.Failf(control.Code_CODE_NO_ROOM, "%v: grow by less, take nodes out (margay machine shrink -m %[2]s), or make another machine (margay machine up -m NAME)", err, h.spec.Name)
	}
	if n := len(h.spec.Hosts); n > 0 && slices.ContainsFunc(added, func(number uint32) bool { return int(number) >= n }) {
		return nil, control.Failf(control.Code_CODE_NO_ROOM, "the machine was made of %d hosts, and %d of them have a node: make another machine of more hosts (margay machine up -m NAME)",
			n, len(h.roster.Nodes))
	}
	if err := h.record(grown); err != nil {
		return nil, err
	}
	h.log("%d nodes are added: %v", len(added), added)
	return h.startAdded(ctx, served, m.Order, added), nil
}

// repeated returns the answer to an order that was carried out before, nil if it was not, and an
// error if no nodes can be added any more. The caller holds h.changing.
func (h *holder) repeated(order string) (*control.NodesAdded, error) {
	if h.ending {
		return nil, control.Failf(control.Code_CODE_DOWN, "%v", ErrDown)
	}
	if added := h.growths.find(order); added != nil {
		return &control.NodesAdded{Nodes: added}, nil
	}
	return nil, nil
}

// startAdded starts the nodes that an order has added to the roster, and returns the answer to it.
// The caller holds h.changing.
func (h *holder) startAdded(ctx, served context.Context, order string, added []uint32) *control.NodesAdded {
	h.growths.add(order, added)
	h.announce(ctx)
	for _, number := range added {
		h.keep(served, id.Node(number), h.roster.Term(number))
	}
	return &control.NodesAdded{Nodes: added}
}

// noMore stops the holder from adding nodes.
func (h *holder) noMore() {
	h.changing.Lock()
	defer h.changing.Unlock()
	h.ending = true
}

// remove ends a node for good. It returns when the node has ended and serve has forgotten it. Serve
// repeats an order if it still has the node: the last answer was late, or it could not record the
// roster. ctx ends with the holder.
func (h *holder) remove(ctx context.Context, m *control.RemoveNode) error {
	gone, err := h.strike(m)
	if err != nil {
		return err
	}
	if gone != nil {
		select {
		case <-gone:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	h.announce(ctx)
	return nil
}

// strike removes a node from the roster, unless that was done before, and begins to end it. The
// channel is closed when it has ended; nil if there is nothing to wait for.
func (h *holder) strike(m *control.RemoveNode) (gone <-chan struct{}, err error) {
	h.changing.Lock()
	defer h.changing.Unlock()
	number := id.Node(m.Node)
	h.mu.Lock()
	n, last := h.nodes[number], h.leaving[number]
	h.mu.Unlock()
	if n == nil || n.term != m.Term {
		return last, nil
	}
	if err := h.record(h.roster.Without(m.Node)); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.nodes, number)
	h.leaving[number] = n.gone
	n.leave()
	h.vacateIfGone()
	return n.gone, nil
}

// record records a changed roster and makes it the machine's. The caller holds h.changing.
func (h *holder) record(r roster.Roster) error {
	if err := h.dir.writeRoster(r); err != nil {
		return fmt.Errorf("record the machine's nodes: %w", err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.roster = r
	return nil
}

// announce sends the roster to serve, and waits until serve has taken it. A serve that is connected
// later has taken it before anything else.
func (h *holder) announce(ctx context.Context) {
	h.mu.Lock()
	conn := h.conn
	var taken *control.Question
	if conn != nil {
		taken = conn.Ask(rosterMessage(h.roster))
	}
	h.mu.Unlock()
	if taken == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, announceWait)
	defer cancel()
	if _, err := taken.Answer(ctx); err != nil && !errors.Is(err, control.ErrClosed) {
		h.log("serve has not taken the machine's nodes: %v", err)
	}
}

func rosterMessage(r roster.Roster) *control.Roster {
	return &control.Roster{Nodes: r.Nodes, Terms: r.Terms}
}

// mostGrowths is how many orders to grow are remembered.
const mostGrowths = 64

// growths are the last orders to grow and the nodes that they have added, so that an order that is
// repeated after a restart of serve adds no others.
type growths []growth

type growth struct {
	order string
	added []uint32
}

// find returns the nodes that an order has added, nil if it is new. An empty order is always new.
func (g growths) find(order string) []uint32 {
	if i := slices.IndexFunc(g, func(x growth) bool { return x.order == order }); i >= 0 && order != "" {
		return g[i].added
	}
	return nil
}

func (g *growths) add(order string, added []uint32) {
	*g = append(*g, growth{order, added})
	if len(*g) > mostGrowths {
		*g = slices.Delete(*g, 0, 1)
	}
}
