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

	"margay/cluster/boot"
	"margay/cluster/control"
	"margay/cluster/trust"
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

	mu     sync.Mutex
	conn   *control.Conn // to serve; nil while there is none
	states map[id.Node]*nodeState
	ups    map[id.Node]chan struct{} // closed when the node has registered
}

// nodeState is what serve is told of a node when it connects.
type nodeState struct {
	boot  *control.NodeBoot
	stage *control.NodeStage // nil: nothing is known of its boot, or it is up
	exit  *control.NodeExit  // nil while it runs
}

// held is the lock of the machine that this process holds. It stays open until the process has ended: who finds it free finds no holder.
var held *os.File

// Hold is the life of a holder: it brings the machine in the folder up, and holds it until ctx ends. serve is the command
// that becomes the machine's serve; it gets the read end of the holder's lifeline as descriptor 3.
func Hold(ctx context.Context, d Dir, serve []string, log func(format string, args ...any)) (err error) {
	if held, err = d.lock(); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, held.Truncate(0)) }() // a pid would be that of a holder that was killed
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
	h := &holder{
		dir: d, spec: spec, lifeline: r, serve: serve, log: log,
		states: make(map[id.Node]*nodeState), ups: make(map[id.Node]chan struct{}),
	}
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

// run starts everything and waits for the end. Then serve ends before the nodes do: its clients are to hear that the machine goes down,
// and not what becomes of nodes and ranks.
func (h *holder) run(ctx context.Context) {
	for node := range id.Node(h.spec.Nodes) {
		h.ups[node] = make(chan struct{})
	}
	served, end := context.WithCancel(context.WithoutCancel(ctx))
	var all sync.WaitGroup
	all.Go(func() {
		defer end()
		h.keepServe(ctx)
	})
	all.Go(func() { h.report(ctx) })
	for node := range id.Node(h.spec.Nodes) {
		all.Go(func() { h.keepNode(served, node) })
	}
	<-ctx.Done()
	h.log("ending machine %s", h.spec.Name)
	all.Wait()
}

// keepNode starts a node, again when it fails before it was up, and stops it when ctx ends.
func (h *holder) keepNode(ctx context.Context, node id.Node) {
	for boots := uint32(1); ; boots++ {
		pid, ended, err := h.substrate.start(node)
		if err != nil {
			h.nodeExited(node, exit{Reason: err.Error()}, false)
			return
		}
		h.nodeStarted(node, pid, boots)
		select {
		case <-ctx.Done():
			h.substrate.stop(node)
			select {
			case <-ended:
			case <-time.After(stopWait):
				h.log("node%d does not end", node)
			}
			return
		case e := <-ended:
			again := boots <= bootRetries && !e.Off && !h.isUp(node)
			h.nodeExited(node, e, again)
			if !again {
				return
			}
		}
	}
}

func (h *holder) isUp(node id.Node) bool {
	select {
	case <-h.ups[node]:
		return true
	default:
		return false
	}
}

func (h *holder) nodeStarted(node id.Node, pid int, boots uint32) {
	h.log("node%d started, pid %d", node, pid)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := &nodeState{boot: &control.NodeBoot{Node: uint32(node), Pid: int64(pid), Boots: boots}}
	h.states[node] = s
	if h.conn != nil {
		_ = h.conn.Send(s.boot)
	}
}

// nodeStage tells serve how far the boot of a node has got.
func (h *holder) nodeStage(node id.Node, status boot.Status) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.states[node]
	if s == nil || h.isUp(node) {
		return
	}
	text := status.String()
	if s.stage == nil || s.stage.Stage != text {
		h.log("node%d: %s", node, text)
	}
	s.stage = &control.NodeStage{Node: uint32(node), Stage: text, Percent: uint32(status.Percent)}
	if h.conn != nil {
		_ = h.conn.Send(s.stage)
	}
}

func (h *holder) nodeExited(node id.Node, e exit, again bool) {
	h.log("node%d: %s", node, e.Reason)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.states[node]
	if s == nil {
		s = &nodeState{boot: &control.NodeBoot{Node: uint32(node)}}
		h.states[node] = s
	}
	s.exit = &control.NodeExit{Node: uint32(node), Reason: e.Reason, Console: e.Console, Retry: again}
	if h.conn != nil {
		_ = h.conn.Send(s.exit)
	}
}

// keepServe runs serve, one after the other, until ctx ends.
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

// runServe runs one serve until it ends. It is told of the holder's end by the lifeline, so that it can tell others.
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
	return cmd.Run()
}

// report keeps a connection to serve, over which it is told what becomes of nodes.
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
	for _, s := range h.states {
		_ = conn.Send(s.boot)
		if s.stage != nil {
			_ = conn.Send(s.stage)
		}
		if s.exit != nil {
			_ = conn.Send(s.exit)
		}
	}
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.conn = nil
	}()
	return conn.Serve(func(f *control.Frame) {
		if m, ok := f.Message().(*control.NodeUp); ok && int(m.Node) < h.spec.Nodes {
			h.mu.Lock()
			defer h.mu.Unlock()
			if node := id.Node(m.Node); !h.isUp(node) {
				close(h.ups[node])
				if s := h.states[node]; s != nil {
					s.stage = nil
				}
			}
		}
	})
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
