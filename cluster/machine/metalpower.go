package machine

import (
	"context"
	"errors"
	"fmt"

	"margay/cluster/boot"
	"margay/cluster/power"
	"margay/kernel/abi/id"
)

// findDriver makes the driver of a node, if the machine file has one. The caller holds m.mu.
func (m *metalNodes) findDriver(number id.Node, n *metalNode) (err error) {
	if n.driver == nil && m.power != nil && m.power.Switched(uint32(number)) {
		n.driver, n.patience, err = m.power.Driver(uint32(number))
	}
	return err
}

// switchOn switches a node on when it is its turn, or resets it if it is on: something else may run
// there. A node that was stopped before, or is up, stays as it is.
func (m *metalNodes) switchOn(number id.Node, n *metalNode, ended chan exit) {
	err := m.turns.Wait(m.ctx, func() {
		if m.awaits(n, ended) {
			m.events.stage(number, boot.Status{Stage: boot.Unpowered})
		}
	})
	if err != nil {
		return // the machine ends, and the node with it
	}
	err = m.switched(n, func(ctx context.Context) error {
		if !m.awaits(n, ended) {
			return nil
		}
		action := power.SwitchOn
		if state, err := power.Carry(ctx, n.driver, power.Look); err == nil && state == power.On {
			action = power.Reset
		}
		_, err := power.Carry(ctx, n.driver, action)
		return err
	})
	if err != nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.over(number, n, ended, exit{Reason: fmt.Sprintf("switch it on: %v", err), Off: true})
	}
}

// awaits reports whether a start of a node goes on, and the node has not got its configuration.
func (m *metalNodes) awaits(n *metalNode, ended chan exit) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.ended == ended && n.phase == booting
}

// stop implements substrate. A node that cannot be switched off from here gets no answer any more.
func (m *metalNodes) stop(number id.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(number)
	ended := n.ended
	n.began = false
	if n.driver == nil {
		m.over(number, n, ended, exit{Reason: "it is ended, and runs on until it is switched off by hand"})
		return
	}
	n.phase = stopped
	m.boot.services.Remove(number)
	m.running.Go(func() {
		err := m.switched(n, func(ctx context.Context) error {
			_, err := power.Carry(ctx, n.driver, power.SwitchOff)
			return err
		})
		if err != nil && !errors.Is(err, power.ErrUnsupported) {
			m.events.log("node%d is not switched off: %v", number, err)
			return // the holder waits in vain, and reports that
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		n.runs = false
		m.over(number, n, ended, exit{Reason: "it was switched off"})
	})
}

// switched carries out an action on the power of a node.
func (m *metalNodes) switched(n *metalNode, act func(context.Context) error) error {
	n.switching.Lock()
	defer n.switching.Unlock()
	ctx, cancel := context.WithTimeoutCause(m.ctx, n.patience, fmt.Errorf("timed out after %v", n.patience))
	defer cancel()
	return act(ctx)
}
