package machine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/roster"
	"margay/cluster/site"
	"margay/cluster/trust"
	"margay/internal/nodeset"
	"margay/kernel/abi/id"
	"margay/kernel/abi/node"
)

// The pause before serve is started again, and the longest one.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 2 * time.Second
)

// consoleLines is how much of a node's console goes into a report.
const consoleLines = 8

// holder holds one machine.
type holder struct {
	dir       Dir
	spec      Spec
	substrate substrate
	lifeline  *os.File      // read end of a pipe whose write end only this process has
	socket    *os.File      // on which each serve listens to nodes of other hosts; nil: they are here
	users     *os.File      // the same, to users of other hosts; nil: there is none
	patience  time.Duration // for the end of a node that was stopped; 0: stopWait
	serve     []string      // command that becomes serve
	log       func(format string, args ...any)

	turns   chan struct{}  // has a value for each node that is being started; nil: any number may be
	obeying sync.WaitGroup // goroutines that carry out orders of serve
	keeping sync.WaitGroup // goroutines that keep nodes

	changing sync.Mutex // held, before mu, while nodes are added and removed
	ending   bool       // no node is added any more
	over     func()     // ends the machine
	growths  growths

	mu      sync.Mutex
	conn    *control.Conn             // to serve; nil while there is none
	roster  roster.Roster             // as recorded; changed with both held
	nodes   map[id.Node]*heldNode     // the roster's, by number
	leaving map[id.Node]chan struct{} // by number: closed when the last node of the number has ended
	risen   bool                      // a node has registered
	served  context.Context           // ends when the machine does; nil before the first node is kept
	vacated bool                      // it ends because its hosts do
}

// heldNode is the state of a node in the holder. holder.mu guards life, begun, byHand and the
// messages.
type heldNode struct {
	number id.Node
	term   uint32 // of its number
	life   life
	orders chan order      // taken by keepNode
	once   int64           // the last named order that was carried out; 0: none. keepNode alone uses it
	turn   chan<- struct{} // takes a value when it is its turn to start; nil: it does not wait for that. keepNode alone uses it
	begun  func()          // ends its turn to start; nil: it had none
	leave  func()          // ends it for good
	gone   chan struct{}   // closed when it has ended for good
	byHand string          // why it cannot be ended and started again from here; empty: it can

	// Sent to serve when it connects.
	boot  *control.NodeBoot  // nil: it was never started
	stage *control.NodeStage // nil: nothing is known of its boot, or it is up
	panic *control.NodePanic // nil: its Linux has not panicked since its start
	exit  *control.NodeExit  // nil while it runs
}

// order requests a change of what a node runs on.
type order struct {
	kind   orderKind
	why    string
	once   int64      // its name, if it is carried out once; 0: each time
	woke   bool       // to start, as its machine boots: only a node that waits for that starts
	obeyed chan error // gets nil when that has happened; buffered for that
}

type orderKind int

const (
	reboot    orderKind = iota // end it if it runs, and start it
	switchOn                   // start it unless it runs
	switchOff                  // end it, and do not start it again
)

// held is the machine's lock that this process holds. It stays open until the process has ended, so
// a free lock means that there is no holder; a holder that removes its machine's folder closes it
// when the rest of the machine has ended.
var held *os.File

// HolderInherited is what a holder has from margay machine up. Each may be nil.
type HolderInherited struct {
	Until *os.File // a pidfd of the process with which the machine ends
	Users *os.File // the socket for users of other hosts
}

// give has a command inherit a file, and adds the flag that says which descriptor it is.
func give(cmd *exec.Cmd, flag string, f *os.File) {
	cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	cmd.Args = append(cmd.Args, flag, strconv.Itoa(2+len(cmd.ExtraFiles)))
}

// Hold is the life of a holder: it starts the machine in the folder, and holds it until ctx ends.
// serve is the command that becomes the machine's serve; it gets the read end of the holder's
// lifeline as descriptor 3, and with the flags --socket and --users the sockets for nodes and users
// of other hosts. A machine also ends, and Hold removes its folder, when it loses its hosts, or
// when the process of in.Until ends.
func Hold(ctx context.Context, d Dir, serve []string, in HolderInherited, log func(format string, args ...any)) error {
	vacated, err := holdMachine(ctx, d, serve, in, log)
	if vacated {
		// All of the machine has ended.
		err = errors.Join(err, held.Close(), Down(context.WithoutCancel(ctx), d, log))
	}
	return err
}

// holdMachine holds the machine, and reports whether it has lost its hosts.
func holdMachine(ctx context.Context, d Dir, serve []string, in HolderInherited, log func(format string, args ...any)) (vacated bool, err error) {
	if held, err = d.lock(); err != nil {
		return false, err
	}
	// A pid in the lock file would mean that the holder was killed.
	defer func() { err = errors.Join(err, held.Truncate(0)) }()
	spec, err := d.ReadSpec()
	if err != nil {
		return false, err
	}
	authority, err := trust.Load(d.keyFile())
	if err != nil {
		return false, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return false, err
	}
	defer w.Close()
	defer r.Close()
	h := &holder{dir: d, spec: spec, lifeline: r, users: in.Users, serve: serve, log: log}
	if h.roster, err = d.ReadRoster(spec); err != nil {
		return false, err
	}
	if h.substrate, err = h.newSubstrate(authority); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, h.substrate.close()) }()
	ctx, h.over = context.WithCancel(ctx)
	defer h.over()
	if in.Until != nil {
		go h.watch(in.Until)
	}
	h.run(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.vacated, nil
}

func (h *holder) newSubstrate(a *trust.Authority) (substrate, error) {
	switch h.spec.Substrate {
	case node.Hosted:
		h.turns = make(chan struct{}, startsEach*runtime.GOMAXPROCS(0))
		return newHosted(h.spec, h.dir, a)
	case node.Virtual:
		return newVirtual(h.spec, h.dir, a, virtualEvents{h.nodeStage, h.log})
	case node.Hosts:
		r, err := newRemote(h.spec, h.dir, a)
		if err != nil {
			return nil, err
		}
		h.socket = r.socket
		return r, nil
	case node.Metal:
		m, err := newMetal(h.spec, h.dir, a, h.metalEvents())
		if err != nil {
			return nil, err
		}
		h.patience = m.patience()
		if h.socket, err = m.wire.Nodes.(*net.TCPListener).File(); err != nil {
			return nil, errors.Join(err, m.close())
		}
		return m, nil
	}
	return nil, fmt.Errorf("%w %q", errUnknownSubstrate, h.spec.Substrate)
}

// run starts everything and waits for the end. Then serve ends before the nodes do, so that its
// clients are notified of the end of the machine, and not of the ends of nodes and ranks.
func (h *holder) run(ctx context.Context) {
	served, end := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() {
		defer end()
		h.keepServe(ctx)
	})
	h.begin(served)
	all.Go(func() { h.report(ctx, served) })
	<-ctx.Done()
	h.log("ending machine %s", h.spec.Name)
	if err := writeFile(h.dir.file(site.EndingName), nil); err != nil {
		h.log("clients wait for a serve that does not come: %v", err)
	}
	h.noMore()
	all.Wait()
	h.keeping.Wait()
	h.obeying.Wait()
	h.noteRunOn()
}

// noteRunOn notes which nodes run on after the machine, because they are switched by hand.
func (h *holder) noteRunOn() {
	rack, ok := h.substrate.(interface{ runOn() []uint32 })
	if !ok {
		return
	}
	if left := rack.runOn(); len(left) > 0 {
		if err := h.dir.noteLeftOn(fmt.Sprintf("not switched off, because nothing here can do that: %s. Each runs on and reboots within ten minutes, unless it is switched off by hand", nodeset.Condense(left))); err != nil {
			h.log("%v", err)
		}
	}
}

// begin keeps the nodes of the roster until served ends.
func (h *holder) begin(served context.Context) {
	h.mu.Lock()
	h.nodes, h.leaving, h.served = make(map[id.Node]*heldNode), make(map[id.Node]chan struct{}), served
	h.mu.Unlock()
	for _, number := range h.roster.Nodes {
		h.keep(served, id.Node(number), h.roster.Term(number))
	}
}

// keeps returns the context in which the holder keeps nodes; nil before it keeps any.
func (h *holder) keeps() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.served
}

// keep keeps a node until served ends or the node leaves. The last node of its number ends first.
func (h *holder) keep(served context.Context, number id.Node, term uint32) {
	ctx, leave := context.WithCancel(served)
	n := &heldNode{number: number, term: term, orders: make(chan order), leave: leave, gone: make(chan struct{})}
	h.mu.Lock()
	last := h.leaving[number]
	h.nodes[number] = n
	h.mu.Unlock()
	h.keeping.Go(func() {
		defer close(n.gone)
		defer leave()
		if last != nil {
			<-last
		}
		h.keepNode(ctx, n)
		if served.Err() == nil { // otherwise the machine ends
			h.substrate.remove(number)
			if err := h.dir.removeFirmwareLog(number); err != nil {
				h.log("%v", err)
			}
			h.log("node%d has left the machine", number)
		}
	})
}

// keepNode starts a node, starts it again after a verdict or an order to do so, and stops it when
// ctx ends.
func (h *holder) keepNode(ctx context.Context, n *heldNode) {
	var ended <-chan exit // nil while the node does not run
	start := time.NewTimer(0)
	defer start.Stop()
	for ctx.Err() == nil {
		select {
		case <-start.C:
			// startNode reports an error to serve as the node's end.
			ended, _ = h.startNode(n)
		case n.turn <- struct{}{}:
			h.takeTurn(n)
			if ctx.Err() == nil {
				ended, _ = h.startNow(n)
			}
		case e := <-ended:
			ended = nil
			if v := h.nodeExited(n, e); v.Again {
				start.Reset(v.Pause)
			}
		case o := <-n.orders:
			start.Stop()
			var err error
			ended, err = h.obey(n, ended, o)
			o.obeyed <- err
		case <-ctx.Done():
		}
	}
	if _, err := h.stopNode(n, ended); err != nil {
		h.log("%v", err)
		if err := h.dir.noteLeftOn(fmt.Sprintf("%v; it may run on", err)); err != nil {
			h.log("%v", err)
		}
	}
}

// begun says if a node has begun to boot, so that an order to start it switches nothing.
func (h *holder) begun(number id.Node) []string {
	rack, ok := h.substrate.(interface{ begun(id.Node) time.Duration })
	if !ok {
		return nil
	}
	ago := rack.begun(number)
	if ago == 0 {
		return nil
	}
	return []string{fmt.Sprintf("node%d has begun to boot %v ago, so nothing is switched; if it does not come up, margay node power reset -m %s node%[1]d resets it", number, ago, h.spec.Name)}
}

// obey carries out an order. An order to start is carried out when the node waits for its turn. The
// channel gets the end of the node, and is nil while it does not run.
func (h *holder) obey(n *heldNode, ended <-chan exit, o order) (<-chan exit, error) {
	h.mu.Lock()
	before, waits := n.life.off, n.exit != nil && n.exit.Waits
	h.mu.Unlock()
	off := before != ""
	var err error
	switch {
	case o.woke && !waits: // it was switched off, or has started
		return ended, nil
	case o.kind == reboot && off:
		return ended, control.Failf(control.Code_CODE_REFUSED, "it is switched off")
	case o.once != 0 && o.once == n.once:
		return ended, nil
	case o.kind == reboot:
		if ended, err = h.stopNode(n, ended); err != nil {
			return ended, err
		}
		if o.once != 0 {
			n.once = o.once
		}
	case o.kind == switchOff:
		h.mu.Lock()
		n.life.switchOff(o.why) // it counts for a node that ends too late, too
		h.mu.Unlock()
		ran := ended != nil
		if waits {
			h.substrate.stop(n.number)
		}
		ended, err = h.stopNode(n, ended)
		switch {
		case errors.As(err, new(staysError)):
			h.mu.Lock()
			n.life.off = before // the order has failed
			h.mu.Unlock()
		case err == nil && (ran || waits || !off):
			h.nodeOff(n)
		}
		return ended, err
	case ended != nil && h.foundOff(n, ended):
		ended = nil
	case ended != nil: // it is on, or has not ended after an order to switch it off
		h.mu.Lock()
		defer h.mu.Unlock()
		n.life.order()
		return ended, nil
	}
	h.nodeOrdered(n, o)
	return h.startNode(n)
}

// Hosted nodes start some at a time, startsEach for each processor: a thousand nodes that start
// together are slower, and late. A node that has not registered after turnWait no longer holds up
// others.
const (
	startsEach = 8
	turnWait   = 5 * time.Second
)

// takeTurn begins the turn of a node to start. The caller has put a value into h.turns.
func (h *holder) takeTurn(n *heldNode) {
	over := sync.OnceFunc(func() { <-h.turns })
	time.AfterFunc(turnWait, over)
	h.mu.Lock()
	defer h.mu.Unlock()
	n.turn, n.begun = nil, over
}

// endTurn ends the turn of a node to start, if it has one. The caller holds h.mu.
func (n *heldNode) endTurn() {
	if n.begun != nil {
		n.begun()
	}
}

// startNode starts a node, or has keepNode start it when it is its turn. The channel gets its end;
// it is nil with an error, and while the node waits.
func (h *holder) startNode(n *heldNode) (<-chan exit, error) {
	if h.turns != nil {
		select {
		case h.turns <- struct{}{}:
			h.takeTurn(n)
		default:
			n.turn = h.turns
			return nil, nil
		}
	}
	return h.startNow(n)
}

// startNow starts a node, and returns a channel that gets its end; nil with an error.
func (h *holder) startNow(n *heldNode) (<-chan exit, error) {
	h.mu.Lock()
	n.panic = nil // before the console of this start can say anything
	h.mu.Unlock()
	pid, ended, err := h.substrate.start(n.number, n.term)
	byHand := ""
	if rack, ok := h.substrate.(interface{ byHand(id.Node) string }); ok {
		byHand = rack.byHand(n.number)
	}
	h.mu.Lock()
	n.byHand = byHand
	h.mu.Unlock()
	if errors.Is(err, errAsleep) {
		h.nodeAsleep(n, err)
		return nil, err
	}
	if err != nil {
		h.nodeExited(n, exit{Reason: err.Error(), Off: true})
		return nil, err
	}
	if pid == 0 {
		h.log("node%d is being started", n.number)
	} else {
		h.log("node%d started, pid %d", n.number, pid)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n.life.start()
	n.boot, n.stage, n.exit = &control.NodeBoot{Node: uint32(n.number), Pid: int64(pid), Boots: n.life.boots, ByHand: n.byHand}, nil, nil
	h.tell(n, n.boot)
	return ended, nil
}

// staysError is the reason why a node cannot be stopped, and goes on.
type staysError struct{ error }

// foundOff reports whether a node that seems to run has been switched off, as far as the substrate
// can find out. It takes the end of the node then.
func (h *holder) foundOff(n *heldNode, ended <-chan exit) bool {
	rack, ok := h.substrate.(interface{ look(id.Node) })
	if !ok {
		return false
	}
	rack.look(n.number)
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

// stopNode ends a node that runs, or its wait for its turn. It returns nil, or ended unchanged if
// the node does not end in time.
func (h *holder) stopNode(n *heldNode, ended <-chan exit) (<-chan exit, error) {
	n.turn = nil
	h.mu.Lock()
	n.endTurn()
	h.mu.Unlock()
	if ended == nil {
		return nil, nil
	}
	failed := h.substrate.stop(n.number)
	select {
	case <-ended:
		return nil, nil
	case err := <-failed:
		return ended, staysError{fmt.Errorf("node%d does not end: %w", n.number, err)}
	case <-time.After(cmp.Or(h.patience, stopWait)):
		return ended, fmt.Errorf("node%d does not end", n.number)
	}
}

// A message about a node goes to serve only if serve is connected, and not about a node that has
// left: another one may have its number. The caller holds h.mu.
func (h *holder) tell(n *heldNode, m proto.Message) {
	if h.conn != nil && h.nodes[n.number] == n {
		_ = h.conn.Send(m)
	}
}

// nodeStage reports to serve how far the boot of a node has got.
func (h *holder) nodeStage(node id.Node, status boot.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[node]
	if n == nil || n.boot == nil || n.life.up {
		return
	}
	text := status.String()
	if n.stage == nil || n.stage.Stage != text {
		h.log("node%d: %s", node, text)
	}
	n.stage = &control.NodeStage{Node: uint32(node), Stage: text, Percent: uint32(status.Percent)}
	h.tell(n, n.stage)
}

// nodePanic reports to serve that the console of a node says that its Linux has panicked. The node
// goes on if that is not true.
func (h *holder) nodePanic(node id.Node, reason string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := h.nodes[node]
	if n == nil {
		return
	}
	h.log("node%d: its console says that its Linux has panicked: %s", node, reason)
	n.panic = &control.NodePanic{Node: uint32(node), Reason: reason}
	h.tell(n, n.panic)
}

// nodeExited gets the verdict on a node that has ended, and reports the end to serve.
func (h *holder) nodeExited(n *heldNode, e exit) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	n.endTurn()
	v := n.life.end(e.Off, time.Now())
	if n.life.off != "" {
		h.reportOff(n)
		return v
	}
	reason := e.Reason
	if n.panic != nil {
		reason += "; its console says that its Linux has panicked: " + n.panic.Reason
	}
	if v.Reason != "" {
		reason += "; " + v.Reason
	}
	h.log("node%d: %s", n.number, reason)
	n.exit = &control.NodeExit{Node: uint32(n.number), ByHand: n.byHand, Reason: reason, Console: e.Console, Retry: v.Again}
	h.tell(n, n.exit)
	h.vacateIfGone()
	return v
}

// vacateIfGone ends a machine of hosts that has lost all of them. The caller holds h.mu.
func (h *holder) vacateIfGone() {
	if h.risen && len(h.spec.Hosts) > 0 && h.allGone() {
		h.vacate("no host has a node any more")
	}
}

// vacate ends the machine, and has its folder removed. The caller holds h.mu.
func (h *holder) vacate(why string) {
	if !h.vacated {
		h.log("%s", why)
		h.vacated = true
		h.over()
	}
}

// watch ends the machine when the process of a pidfd ends.
func (h *holder) watch(process *os.File) {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(process.Fd()), Events: unix.POLLIN}}, -1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			h.log("watch the session that has made the machine: %v", err)
			return
		}
		if n > 0 {
			break
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.vacate("the session that has made the machine has ended")
}

// allGone reports whether no node runs or was switched off, and none will be started again without
// an order. The caller holds h.mu.
func (h *holder) allGone() bool {
	for _, n := range h.nodes {
		if n.exit == nil || n.exit.Retry || n.exit.Off { // an operator switches it on again
			return false
		}
	}
	return true
}

// nodeOrdered notes that a node starts because of an order.
func (h *holder) nodeOrdered(n *heldNode, o order) {
	h.log("node%d: %s", n.number, o.why)
	h.mu.Lock()
	defer h.mu.Unlock()
	n.life.order()
	if o.kind == switchOn { // it did not run
		return
	}
	n.exit = &control.NodeExit{Node: uint32(n.number), ByHand: n.byHand, Reason: o.why, Retry: true}
	h.tell(n, n.exit)
}

// nodeOff reports to serve that a node has been switched off.
func (h *holder) nodeOff(n *heldNode) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reportOff(n)
}

// nodeAsleep notes that a node starts when it is switched on by hand, why, and reports that to
// serve.
func (h *holder) nodeAsleep(n *heldNode, why error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n.life.switchOff(why.Error())
	h.log("node%d: %s", n.number, n.life.off)
	n.exit = &control.NodeExit{Node: uint32(n.number), ByHand: n.byHand, Reason: n.life.off, Off: true, Waits: true}
	h.tell(n, n.exit)
}

// reportOff is nodeOff for callers that hold h.mu.
func (h *holder) reportOff(n *heldNode) {
	h.log("node%d: %s", n.number, n.life.off)
	n.exit = &control.NodeExit{Node: uint32(n.number), ByHand: n.byHand, Reason: n.life.off, Off: true}
	h.tell(n, n.exit)
}

// order has an order carried out by the goroutine that keeps the node, and waits for that. ctx ends
// with the holder.
func (h *holder) order(ctx context.Context, node uint32, o order) error {
	h.mu.Lock()
	n := h.nodes[id.Node(node)]
	h.mu.Unlock()
	none := control.Failf(control.Code_CODE_NOT_FOUND, "the holder has no node%d", node)
	if n == nil {
		return none
	}
	o.obeyed = make(chan error, 1)
	select {
	case n.orders <- o:
	case <-n.gone:
		return none
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case err := <-o.obeyed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
