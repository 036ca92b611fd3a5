package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/trust"
	"margay/internal/slack"
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
	lifeline  *os.File // read end of a pipe whose write end only this process has
	serve     []string // command that becomes serve
	log       func(format string, args ...any)

	obeying sync.WaitGroup // goroutines that carry out orders of serve

	mu    sync.Mutex
	conn  *control.Conn // to serve; nil while there is none
	nodes []*heldNode   // by number
}

// heldNode is the state of a node in the holder. holder.mu guards all but orders.
type heldNode struct {
	life   life
	orders chan order // to reboot it, taken by keepNode

	// Sent to serve when it connects.
	boot  *control.NodeBoot  // nil: it was never started
	stage *control.NodeStage // nil: nothing is known of its boot, or it is up
	exit  *control.NodeExit  // nil while it runs
}

// order requests a reboot of a node.
type order struct {
	why    string
	obeyed chan error // gets nil when the node has been started; buffered for that
}

// held is the machine's lock that this process holds. It stays open until the process has ended, so
// a free lock means that there is no holder.
var held *os.File

// Hold is the life of a holder: it starts the machine in the folder, and holds it until ctx ends.
// serve is the command that becomes the machine's serve; it gets the read end of the holder's
// lifeline as descriptor 3.
func Hold(ctx context.Context, d Dir, serve []string, log func(format string, args ...any)) (err error) {
	if held, err = d.lock(); err != nil {
		return err
	}
	// A pid in the lock file would mean that the holder was killed.
	defer func() { err = errors.Join(err, held.Truncate(0)) }()
	spec, err := d.ReadSpec()
	if err != nil {
		return err
	}
	authority, err := trust.Load(d.keyFile())
	if err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer w.Close()
	defer r.Close()
	h := &holder{dir: d, spec: spec, lifeline: r, serve: serve, log: log}
	if h.substrate, err = h.newSubstrate(authority); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.substrate.close()) }()
	h.run(ctx)
	return nil
}

func (h *holder) newSubstrate(a *trust.Authority) (substrate, error) {
	switch h.spec.Substrate {
	case node.Hosted:
		return newHosted(h.spec, h.dir, a)
	case node.Virtual:
		return newVirtual(h.spec, h.dir, a, virtualEvents{h.nodeStage, h.log})
	}
	return nil, fmt.Errorf("%w %q", errUnknownSubstrate, h.spec.Substrate)
}

// run starts everything and waits for the end. Then serve ends before the nodes do, so that its
// clients are notified of the end of the machine, and not of the ends of nodes and ranks.
func (h *holder) run(ctx context.Context) {
	for range h.spec.Nodes {
		h.nodes = append(h.nodes, &heldNode{orders: make(chan order)})
	}
	served, end := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() {
		defer end()
		h.keepServe(ctx)
	})
	all.Go(func() { h.report(ctx) })
	for number, n := range h.nodes {
		all.Go(func() { h.keepNode(served, id.Node(number), n) })
	}
	<-ctx.Done()
	h.log("ending machine %s", h.spec.Name)
	all.Wait()
	h.obeying.Wait()
}

// keepNode starts a node, starts it again after a verdict or an order to do so, and stops it when
// ctx ends.
func (h *holder) keepNode(ctx context.Context, number id.Node, n *heldNode) {
	var ended <-chan exit // nil while the node does not run
	start := time.NewTimer(0)
	defer start.Stop()
	for {
		select {
		case <-start.C:
			// startNode reports an error to serve as the node's end.
			ended, _ = h.startNode(number, n)
		case e := <-ended:
			ended = nil
			if v := h.nodeExited(number, n, e); v.Again {
				start.Reset(v.Pause)
			}
		case o := <-n.orders:
			start.Stop()
			var err error
			if ended, err = h.stopNode(number, ended); err == nil {
				h.nodeOrdered(number, n, o)
				ended, err = h.startNode(number, n)
			}
			o.obeyed <- err
		case <-ctx.Done():
			if _, err := h.stopNode(number, ended); err != nil {
				h.log("%v", err)
			}
			return
		}
	}
}

// startNode starts a node and returns a channel that gets its end; nil with an error.
func (h *holder) startNode(number id.Node, n *heldNode) (<-chan exit, error) {
	pid, ended, err := h.substrate.start(number)
	if err != nil {
		h.nodeExited(number, n, exit{Reason: err.Error(), Off: true})
		return nil, err
	}
	h.log("node%d started, pid %d", number, pid)
	h.mu.Lock()
	defer h.mu.Unlock()
	n.life.start()
	n.boot, n.stage, n.exit = &control.NodeBoot{Node: uint32(number), Pid: int64(pid), Boots: n.life.boots}, nil, nil
	h.tell(n.boot)
	return ended, nil
}

// stopNode ends a node that runs. It returns nil, or ended unchanged if the node does not end in
// time.
func (h *holder) stopNode(number id.Node, ended <-chan exit) (<-chan exit, error) {
	if ended == nil {
		return nil, nil
	}
	h.substrate.stop(number)
	select {
	case <-ended:
		return nil, nil
	case <-time.After(stopWait):
		return ended, fmt.Errorf("node%d does not end", number)
	}
}

// A message goes to serve only if serve is connected. The caller holds h.mu.
func (h *holder) tell(m proto.Message) {
	if h.conn != nil {
		_ = h.conn.Send(m)
	}
}

// nodeStage reports to serve how far the boot of a node has got.
func (h *holder) nodeStage(node id.Node, status boot.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if int(node) >= len(h.nodes) {
		return
	}
	n := h.nodes[node]
	if n.boot == nil || n.life.up {
		return
	}
	text := status.String()
	if n.stage == nil || n.stage.Stage != text {
		h.log("node%d: %s", node, text)
	}
	n.stage = &control.NodeStage{Node: uint32(node), Stage: text, Percent: uint32(status.Percent)}
	h.tell(n.stage)
}

// nodeExited gets the verdict on a node that has ended, and reports the end to serve.
func (h *holder) nodeExited(number id.Node, n *heldNode, e exit) verdict {
	h.mu.Lock()
	defer h.mu.Unlock()
	v := n.life.end(e.Off, time.Now())
	reason := e.Reason
	if v.Reason != "" {
		reason += "; " + v.Reason
	}
	h.log("node%d: %s", number, reason)
	n.exit = &control.NodeExit{Node: uint32(number), Reason: reason, Console: e.Console, Retry: v.Again}
	h.tell(n.exit)
	return v
}

// nodeOrdered notes that a node starts because of an order.
func (h *holder) nodeOrdered(number id.Node, n *heldNode, o order) {
	h.log("node%d: %s", number, o.why)
	h.mu.Lock()
	defer h.mu.Unlock()
	n.life.order()
	n.exit = &control.NodeExit{Node: uint32(number), Reason: o.why, Retry: true}
	h.tell(n.exit)
}

// reboot ends a node and starts it. It returns when the node has been started. ctx ends with the
// holder.
func (h *holder) reboot(ctx context.Context, m *control.RebootNode) error {
	if int(m.Node) >= len(h.nodes) {
		return control.Failf(control.Code_CODE_NOT_FOUND, "the holder has no node%d", m.Node)
	}
	o := order{why: m.Why, obeyed: make(chan error, 1)}
	select {
	case h.nodes[m.Node].orders <- o:
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

// keepServe runs one serve after the other until ctx ends.
func (h *holder) keepServe(ctx context.Context) {
	pause := firstPause
	for {
		started := time.Now()
		err := h.runServe(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > time.Minute {
			pause = firstPause
		}
		h.log("serve ended: %v; starting it again in %v", err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// runServe runs one serve until it ends. The lifeline signals the holder's end to serve, which
// notifies its clients.
func (h *holder) runServe(ctx context.Context) error {
	log, err := openFile(h.dir.Log("serve"), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.CommandContext(ctx, h.serve[0], h.serve[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{h.lifeline}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopWait
	if err := slack.Start(slack.Daemon, cmd.Start); err != nil {
		return err
	}
	return cmd.Wait()
}

// report keeps a connection to serve, over which it reports the state of the nodes.
func (h *holder) report(ctx context.Context) {
	for ctx.Err() == nil {
		if err := h.reportOnce(ctx); err != nil && ctx.Err() == nil {
			select {
			case <-time.After(firstPause):
			case <-ctx.Done():
			}
		}
	}
}

func (h *holder) reportOnce(ctx context.Context) error {
	raw, err := net.Dial("unix", h.dir.Socket())
	if err != nil {
		return err
	}
	conn := control.NewConn(raw)
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_HOLDER, Program: "the holder"}); err != nil {
		h.log("serve refuses the holder: %v", err)
		return err
	}
	h.mu.Lock()
	h.conn = conn
	for _, n := range h.nodes {
		if n.boot != nil {
			_ = conn.Send(n.boot)
		}
		if n.stage != nil {
			_ = conn.Send(n.stage)
		}
		if n.exit != nil {
			_ = conn.Send(n.exit)
		}
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conn = nil
	}()
	return conn.Serve(func(f *control.Frame) {
		switch m := f.Message().(type) {
		case *control.NodeUp:
			h.nodeUp(m)
		case *control.RebootNode:
			h.obeying.Go(func() { conn.Answer(f, &control.Done{}, h.reboot(ctx, m)) })
		}
	})
}

// nodeUp handles serve's report that a node has registered.
func (h *holder) nodeUp(m *control.NodeUp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if int(m.Node) < len(h.nodes) {
		n := h.nodes[m.Node]
		n.life.registered()
		n.stage = nil
	}
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
