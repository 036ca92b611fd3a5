package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/trust"
	"margay/internal/nodeset"
)

// mostServes bounds how many serves an asker asks, one after the other.
const mostServes = 6

// asker asks serve, and the next serve when that one ends without a reason. A request may reach two
// of them.
type asker struct {
	dir  Dir
	conn *control.Conn
	used int // serves
}

// ask makes a request that is answered with an Answer.
func ask[Answer proto.Message](ctx context.Context, a *asker, request proto.Message) (none Answer, err error) {
	for {
		if a.conn == nil {
			if err := a.dial(ctx); err != nil {
				return none, firstCause(ctx, err)
			}
		}
		answer, err := a.conn.Call(ctx, request)
		if said := (*control.Failure)(nil); err != nil && (errors.As(err, &said) || ctx.Err() != nil || a.used == mostServes) {
			return none, firstCause(ctx, err)
		}
		if err != nil {
			a.close()
			continue
		}
		m, ok := answer.(Answer)
		if !ok {
			return none, fmt.Errorf("serve answered %T with %T", request, answer)
		}
		return m, nil
	}
}

func (a *asker) dial(ctx context.Context) (err error) {
	ctx, done := context.WithTimeout(ctx, serveWait)
	defer done()
	if a.conn, err = client.Dial(ctx, a.dir.Socket()); err != nil {
		return fmt.Errorf("%w%s", err, a.dir.hints("serve"))
	}
	a.used++
	go a.conn.Serve(func(*control.Frame) {})
	return nil
}

func (a *asker) close() {
	if a.conn != nil {
		a.conn.Close()
	}
	a.conn = nil
}

// AwaitUp waits until nodes are up; nil stands for all nodes that the machine has. It returns an
// error when one of them can no longer come up. The callback gets lines about the progress.
func (d Dir) AwaitUp(ctx context.Context, nodes []uint32, told func(format string, args ...any)) error {
	return d.await(ctx, &rising{nodes: nodes, told: told})
}

// await waits until the nodes of w are up.
func (d Dir) await(ctx context.Context, w *rising) error {
	serve := &asker{dir: d}
	defer serve.close()
	w.began, w.up, w.again, w.stages, w.missing = time.Now(), make(map[uint32]bool), make(map[uint32]string), make(map[uint32]string), make(map[uint32]bool)
	return poll(ctx, serve, w.look)
}

// The nodes that a poll waits for need the processors. So the answers of serve, which are long on a
// machine of many nodes, take no more than 1/pollShare of the time, unless the pause would be
// longer than mostPoll.
const (
	pollShare = 10
	mostPoll  = 500 * time.Millisecond
)

// pollPause returns the pause after an answer that has taken some time.
func pollPause(took time.Duration) time.Duration {
	return min(max(upPoll, (pollShare-1)*took), mostPoll)
}

// poll asks serve for the nodes again and again until look is done with them.
func poll(ctx context.Context, serve *asker, look func([]*control.NodeState) (done bool, err error)) error {
	for {
		asked, connected := time.Now(), serve.conn != nil
		list, err := ask[*control.Nodes](ctx, serve, &control.ListNodes{})
		if err != nil {
			return err
		}
		if done, err := look(list.Nodes); done || err != nil {
			return err
		}
		pause := upPoll
		if connected { // otherwise it has waited for serve
			pause = pollPause(time.Since(asked))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// rising follows nodes that come up.
type rising struct {
	nodes []uint32 // nil: all
	told  func(format string, args ...any)
	lost  func(format string, args ...any) // gets nodes that do not come up; nil: each of them is an error
	began time.Time

	up      map[uint32]bool
	counted int               // how many of them the last line about all had
	lined   time.Time         // when that was
	again   map[uint32]string // why a node boots again
	stages  map[uint32]string
	missing map[uint32]bool // they have not come up
}

// A machine of more than mostNamed nodes has a line about all that come up, once in linePause, and
// not one about each.
const (
	mostNamed = 32
	linePause = time.Second
)

func (w *rising) look(list []*control.NodeState) (done bool, err error) {
	wanted, waits := len(list), 0
	if w.nodes != nil {
		list = slices.DeleteFunc(list, func(n *control.NodeState) bool { return !slices.Contains(w.nodes, n.Node) })
		wanted = len(w.nodes)
	}
	if len(list) < wanted {
		return false, fmt.Errorf("only %d of the nodes are still in the machine: others were taken out of it (margay nodes)", len(list))
	}
	for _, n := range list {
		if n.Retry && n.Reason != w.again[n.Node] {
			w.again[n.Node] = n.Reason
			w.told("node%d: %s", n.Node, n.Reason)
		}
		if n.Stage != w.stages[n.Node] && n.Stage != "" {
			w.told("node%d: %s", n.Node, n.Stage)
		}
		w.stages[n.Node] = n.Stage
		switch n.Health {
		case control.NodeHealth_NODE_UP:
			if !w.up[n.Node] {
				w.up[n.Node] = true
				w.cameUp(n, wanted)
			}
		case control.NodeHealth_NODE_REFUSED:
			if err := w.miss(n.Node, fmt.Errorf("node%d was refused: %s", n.Node, n.Reason)); err != nil {
				return false, err
			}
		case control.NodeHealth_NODE_OFF:
			if n.Waits {
				break // for the hand that switches it on
			}
			if err := w.miss(n.Node, fmt.Errorf("node%d is off: %s", n.Node, n.Reason)); err != nil {
				return false, err
			}
		case control.NodeHealth_NODE_DEAD:
			if n.Retry {
				break
			}
			if err := w.miss(n.Node, fmt.Errorf("node%d did not come up: %s", n.Node, n.Reason)); err != nil {
				return false, err
			}
		}
		if !w.up[n.Node] && !w.missing[n.Node] {
			waits++
		}
	}
	if waits == 0 && len(w.up) == 0 && len(w.missing) > 0 {
		return false, errors.New("none of the nodes came up")
	}
	w.count(wanted, waits == 0)
	return waits == 0, nil // nodes that were up may have left
}

// cameUp reports a node that is up, unless it is one of many and has booted once.
func (w *rising) cameUp(n *control.NodeState, wanted int) {
	boot := ""
	if n.Boots > 1 {
		boot = fmt.Sprintf(" on boot %d", n.Boots)
	}
	if boot != "" || wanted <= mostNamed {
		w.told("node%d is up%s after %.1f s (%d of %d)", n.Node, boot, time.Since(w.began).Seconds(), len(w.up), wanted)
	}
}

// count reports how many of many nodes are up, if that has changed.
func (w *rising) count(wanted int, last bool) {
	now := time.Now()
	if wanted <= mostNamed || len(w.up) == w.counted || !last && now.Sub(w.lined) < linePause {
		return
	}
	w.counted, w.lined = len(w.up), now
	w.told("%d of %d nodes are up after %.1f s", len(w.up), wanted, now.Sub(w.began).Seconds())
}

// miss handles a node that does not come up: the error, unless the machine can do without it.
func (w *rising) miss(node uint32, err error) error {
	if w.lost == nil {
		return err
	}
	if !w.missing[node] {
		w.missing[node] = true
		w.lost("%v", err)
	}
	return nil
}

// changeWait bounds how long a request to change the machine's nodes is repeated while serve or its
// connection to the holder is being replaced.
const changeWait = time.Minute

// change makes a request that can be repeated without harm, until a serve that has the holder
// answers.
func change[Answer proto.Message](ctx context.Context, serve *asker, request proto.Message) (Answer, error) {
	within, cancel := context.WithTimeout(ctx, changeWait)
	defer cancel()
	for {
		answer, err := ask[Answer](within, serve, request)
		if !errors.Is(err, &control.Failure{Code: control.Code_CODE_RESTARTED}) {
			return answer, err
		}
		select {
		case <-time.After(upPoll):
		case <-within.Done():
			return answer, firstCause(ctx, err)
		}
	}
}

// Grow adds nodes to the running machine, and returns their numbers when they are being started.
func (d Dir) Grow(ctx context.Context, count uint32, user string) ([]uint32, error) {
	serve := &asker{dir: d}
	defer serve.close()
	added, err := change[*control.NodesAdded](ctx, serve, &control.GrowMachine{Count: count, Order: trust.NewToken(), User: user})
	if err != nil {
		return nil, err
	}
	return added.Nodes, nil
}

// Shrink takes nodes out of the running machine. They leave when they have no job. Without nodes in
// the order it chooses count of them.
func (d Dir) Shrink(ctx context.Context, m *control.ShrinkMachine, count int) (*control.NodesLeaving, error) {
	serve := &asker{dir: d}
	defer serve.close()
	if len(m.Nodes) == 0 {
		list, err := ask[*control.Nodes](ctx, serve, &control.ListNodes{})
		if err != nil {
			return nil, err
		}
		if m.Nodes, err = leavers(list.Nodes, count); err != nil {
			return nil, err
		}
	}
	return change[*control.NodesLeaving](ctx, serve, m)
}

// leavers chooses nodes whose loss costs the machine least: those that cannot be given jobs before
// those that can, those with few busy cores before those with many, high numbers before low ones.
func leavers(list []*control.NodeState, count int) (nodes []uint32, err error) {
	list = slices.DeleteFunc(list, func(n *control.NodeState) bool { return n.Drain != nil && n.Drain.Leave })
	if count >= len(list) {
		return nil, fmt.Errorf("%d nodes cannot leave: the machine has %d, and at least one stays (margay machine down ends all of it)", count, len(list))
	}
	slices.SortFunc(list, func(a, b *control.NodeState) int {
		return cmp.Or(cmp.Compare(worth(a), worth(b)), cmp.Compare(busy(a), busy(b)), cmp.Compare(b.Node, a.Node))
	})
	for _, n := range list[:count] {
		nodes = append(nodes, n.Node)
	}
	slices.Sort(nodes)
	return nodes, nil
}

// worth ranks nodes by whether they can be given jobs.
func worth(n *control.NodeState) int {
	switch {
	case n.Health != control.NodeHealth_NODE_UP && n.Health != control.NodeHealth_NODE_LATE:
		return 0
	case n.Drain != nil || n.Ill != "":
		return 1
	}
	return 2
}

// busy returns how many cores of a node jobs have.
func busy(n *control.NodeState) (cores int) {
	for _, core := range n.Cores {
		if core.Job != 0 {
			cores++
		}
	}
	return cores
}

// AwaitGone waits until nodes that are to leave have left the machine. It returns an error if the
// order was taken back for one of them.
func (d Dir) AwaitGone(ctx context.Context, leaving *control.NodesLeaving) error {
	serve := &asker{dir: d}
	defer serve.close()
	return poll(ctx, serve, func(list []*control.NodeState) (done bool, err error) {
		left := 0
		for _, n := range list {
			i := slices.Index(leaving.Nodes, n.Node)
			if i < 0 || i < len(leaving.Terms) && n.Term != leaving.Terms[i] {
				continue
			}
			if n.Drain == nil || !n.Drain.Leave {
				return false, fmt.Errorf("%s stays in the machine: margay node resume has taken the order back", nodeset.Condense([]uint32{n.Node}))
			}
			left++
		}
		return left == 0, nil
	})
}
