package machine

import (
	"context"
	"net"
	"os"
	"os/exec"
	"time"

	"margay/cluster/control"
	"margay/cluster/folder"
	"margay/internal/revival"
	"margay/internal/slack"
	"margay/kernel/abi/id"
)

// keepServe runs one serve after the other until ctx ends.
func (h *holder) keepServe(ctx context.Context) {
	pauses := revival.Pauses{First: firstPause, Last: lastPause}
	for {
		started := time.Now()
		err := h.runServe(ctx)
		if ctx.Err() != nil {
			return
		}
		pause := pauses.After(time.Since(started))
		h.log("serve ended: %v; starting it again in %v", err, pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// runServe runs one serve until it ends. The lifeline signals the holder's end to serve, which
// notifies its clients.
func (h *holder) runServe(ctx context.Context) error {
	log, err := folder.Open(h.dir.Log("serve"), os.O_WRONLY|os.O_CREATE|os.O_APPEND)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, h.serve[0], h.serve[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.ExtraFiles = []*os.File{h.lifeline}
	if h.socket != nil {
		give(cmd, "--socket", h.socket)
	}
	if h.users != nil {
		give(cmd, "--users", h.users)
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopWait
	err = slack.Start(slack.Daemon, cmd.Start)
	log.Close() // serve rotates it
	if err != nil {
		return err
	}
	return cmd.Wait()
}

// report keeps a connection to serve, over which it reports the state of the nodes. Nodes that are
// added run until served ends.
func (h *holder) report(ctx, served context.Context) {
	for ctx.Err() == nil {
		if err := h.reportOnce(ctx, served); err != nil && ctx.Err() == nil {
			select {
			case <-time.After(firstPause):
			case <-ctx.Done():
			}
		}
	}
}

func (h *holder) reportOnce(ctx, served context.Context) error {
	raw, err := net.Dial("unix", h.dir.Socket())
	if err != nil {
		return err
	}
	return h.attend(ctx, served, control.NewConn(raw))
}

// attend reports to serve and obeys it over a connection, which it closes.
func (h *holder) attend(ctx, served context.Context, conn *control.Conn) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()
	if _, err := conn.Greet(&control.Hello{Role: control.Role_ROLE_HOLDER, Program: "the holder"}); err != nil {
		h.log("serve refuses the holder: %v", err)
		return err
	}
	h.mu.Lock()
	h.conn = conn
	_ = conn.Send(rosterMessage(h.roster))
	for _, number := range h.roster.Nodes {
		n := h.nodes[id.Node(number)]
		if n == nil { // it is being added
			continue
		}
		if n.boot != nil {
			_ = conn.Send(n.boot)
		}
		if n.stage != nil {
			_ = conn.Send(n.stage)
		}
		if n.panic != nil {
			_ = conn.Send(n.panic)
		}
		if n.exit != nil {
			_ = conn.Send(n.exit)
		}
	}
	h.mu.Unlock()
	h.sendGuests()
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
			h.obeying.Go(func() {
				conn.Answer(f, &control.Done{}, h.order(ctx, m.Node, order{kind: reboot, why: m.Why, once: m.Once}))
			})
		case *control.SwitchNode:
			kind := switchOff
			if m.On {
				kind = switchOn
			}
			h.obeying.Go(func() {
				done := new(control.Done)
				if kind == switchOn {
					done.Notices = h.begun(id.Node(m.Node))
				}
				conn.Answer(f, done, h.order(ctx, m.Node, order{kind: kind, why: m.Why}))
			})
		case *control.StageImage:
			h.obeying.Go(func() {
				staged, err := h.stageImage(m)
				conn.Answer(f, staged, err)
			})
		case *control.KeepImage:
			h.obeying.Go(func() { conn.Answer(f, &control.Done{}, h.keepImage(m)) })
		case *control.GrowMachine:
			h.obeying.Go(func() {
				added, err := h.grow(ctx, served, m)
				conn.Answer(f, added, err)
			})
		case *control.ApproveGuests:
			h.obeying.Go(func() {
				added, err := h.approve(ctx, served, m)
				conn.Answer(f, added, err)
			})
		case *control.RemoveNode:
			h.obeying.Go(func() { conn.Answer(f, &control.Done{}, h.remove(ctx, m)) })
		}
	})
}

// nodeUp handles serve's report that a node has registered.
func (h *holder) nodeUp(m *control.NodeUp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.nodes[id.Node(m.Node)]; n != nil {
		h.risen = true
		n.endTurn()
		n.life.registered()
		n.stage, n.panic = nil, nil // a node that has panicked does not register
	}
}
