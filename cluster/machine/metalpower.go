package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"margay/cluster/boot"
	"margay/cluster/power"
	"margay/cluster/power/file"
	"margay/cluster/power/wake"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
)

// findDriver makes the driver of a node, if the machine file has one. The caller holds m.mu.
func (m *metalNodes) findDriver(number id.Node, n *metalNode) error {
	if n.driver != nil || m.unswitched(number) != "" {
		return nil
	}
	driver, patience, err := m.power.Driver(uint32(number))
	if err != nil {
		return err
	}
	// An address that the file lacks means everywhere, where Linux sends to its default route
	// alone.
	if card, ok := driver.(wake.Card); ok && card.Broadcast.Addr() == wake.Everywhere {
		card.Broadcast = netip.AddrPortFrom(m.spec.Metal.Plan.Broadcast(), card.Broadcast.Port())
		driver = card
	}
	n.driver, n.patience = driver, patience
	return nil
}

// unswitched returns why nothing here switches a node; empty: the machine file says how to.
func (m *metalNodes) unswitched(number id.Node) string {
	if m.power == nil || !m.power.Switched(uint32(number)) {
		return "it has no entry below power in the machine file"
	}
	if entry, ok := m.entry(number); ok && !m.is(entry) {
		return fmt.Sprintf("its entry below power in the machine file is for the machine %v, and it is another one", entry)
	}
	return ""
}

// entry returns how the machine file knows the node of a number, if it does.
func (m *metalNodes) entry(number id.Node) (file.Card, bool) {
	if m.power == nil {
		return file.Card{}, false
	}
	cards := m.power.Cards()
	i := slices.IndexFunc(cards, func(c file.Card) bool { return id.Node(c.Node) == number })
	if i < 0 {
		return file.Card{}, false
	}
	return cards[i], true
}

// is reports whether the node of an entry of the machine file is the machine of the entry. The
// caller holds m.mu.
func (m *metalNodes) is(entry file.Card) bool {
	number := id.Node(entry.Node)
	mac, _ := m.cards.MAC(number)
	return (entry.MAC == nil || bytes.Equal(entry.MAC, mac[:])) && (entry.UUID == uuid.ID{} || m.cards.Machine(number).Key() == entry.UUID.Key())
}

// isGuest reports whether a guest, or a card that was not seen yet, is the machine of an entry of
// the machine file. The caller holds m.mu.
func (m *metalNodes) isGuest(entry file.Card, mac boot.MAC) bool {
	machine := m.cards.GuestMachine(mac)
	if entry.MAC != nil && !bytes.Equal(entry.MAC, mac[:]) {
		return false
	}
	return entry.UUID == uuid.ID{} || machine.Key() == entry.UUID.Key() || entry.MAC != nil && machine == (uuid.ID{})
}

// named returns the numbers that the machine file has for machines, and the number that it has for
// the machine of a guest, if it has one: how it is switched follows from that.
func (m *metalNodes) named(mac boot.MAC) (all []uint32, own uint32, known bool) {
	if m.power == nil {
		return nil, 0, false
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, entry := range m.power.Cards() {
		all = append(all, entry.Node)
		if m.isGuest(entry, mac) {
			own, known = entry.Node, true
		}
	}
	return all, own, known
}

// byHand returns why a node can only be ended and started again by hand; empty: it has a driver.
func (m *metalNodes) byHand(number id.Node) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(number)
	if _, wakes := n.driver.(wake.Card); wakes || n.blind {
		return "its driver cannot switch it off"
	}
	return m.unswitched(number)
}

// begun returns how long ago a node with a driver, which does not run, has begun to boot unasked;
// 0: it has not, or long ago.
func (m *metalNodes) begun(number id.Node) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()
	if n := m.node(number); n.ended == nil && n.driver != nil && n.boots() {
		return max(time.Since(n.began).Round(time.Second), time.Second)
	}
	return 0
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
	err = m.switched(m.ctx, n, func(ctx context.Context) error {
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

// wake switches a node on that may be on: nothing happens then. When it boots it wakes.
func (m *metalNodes) wake(number id.Node, n *metalNode) {
	if _, err := m.carry(m.ctx, n, power.SwitchOn); err != nil && m.ctx.Err() == nil {
		m.events.log("node%d: switch it on: %v", number, err)
	}
}

// awaits reports whether a start of a node goes on, and the node has not got its configuration.
func (m *metalNodes) awaits(n *metalNode, ended chan exit) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return n.ended == ended && n.phase == booting
}

// patience bounds how long a node may take to end: an action on its power that is under way, and
// the one that switches it off.
func (m *metalNodes) patience() time.Duration {
	if m.power == nil {
		return stopWait
	}
	return offTime(m.power)
}

// offTime is patience for the nodes of a machine file.
func offTime(rack *file.Machine) time.Duration { return 2*rack.Timeout() + stopWait }

// runsOn is the reason of the end of a node that cannot be switched off from here.
const runsOn = "it is ended, and runs on until it is switched off by hand"

// runOn returns the nodes that may run after their end, because nothing here switches them off.
func (m *metalNodes) runOn() (numbers []uint32) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for number, n := range m.nodes {
		if n.runs && (n.driver == nil || n.blind) {
			numbers = append(numbers, uint32(number))
		}
	}
	slices.Sort(numbers)
	return numbers
}

// stop implements substrate. A node that cannot be switched off from here gets no answer any more.
func (m *metalNodes) stop(number id.Node) <-chan error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.node(number)
	ended, was := n.ended, n.phase
	n.phase, n.began = stopped, time.Time{}
	if mac, ok := m.cards.MAC(number); ok && was == waking {
		m.boot.services.Forget(mac) // it is detained
	}
	if ended == nil {
		return nil
	}
	if n.driver == nil {
		m.over(number, n, ended, exit{Reason: runsOn})
		return nil
	}
	m.boot.services.Remove(number)
	failed := make(chan error, 1)
	m.running.Go(func() {
		// It goes on when the machine ends: close waits for it.
		_, err := m.carry(context.WithoutCancel(m.ctx), n, power.SwitchOff)
		m.mu.Lock()
		defer m.mu.Unlock()
		switch {
		case errors.Is(err, power.ErrUnsupported):
			n.blind = true
			m.over(number, n, ended, exit{Reason: runsOn})
		case err != nil:
			m.goesOn(number, n, ended, was)
			failed <- fmt.Errorf("switch it off: %w", err)
		default:
			n.runs = false
			m.over(number, n, ended, exit{Reason: "it was switched off"})
		}
	})
	return failed
}

// look asks the driver of a node that seems to be up whether it is on. If it is off, it has ended.
func (m *metalNodes) look(number id.Node) {
	m.mu.Lock()
	n := m.node(number)
	ended, seems := n.ended, n.driver != nil && n.phase == handed
	m.mu.Unlock()
	if !seems {
		return
	}
	state, err := m.carry(m.ctx, n, power.Look)
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil && state == power.Off {
		n.runs = false
		m.over(number, n, ended, exit{Reason: "it has been switched off"})
	}
}

// goesOn takes back that a node, which could not be switched off, gets no answer. The caller holds
// m.mu.
func (m *metalNodes) goesOn(number id.Node, n *metalNode, ended chan exit, phase metalPhase) {
	if n.ended != ended {
		return
	}
	n.phase = phase
	mac, address, ok := m.place(number)
	if phase != booting || !ok {
		return
	}
	if err := m.boot.services.Settle(boot.Host{Node: number, MAC: mac, Address: address.Addr()}); err != nil {
		m.over(number, n, ended, exit{Reason: err.Error(), Off: true})
	}
}

// carry carries out one action on the power of a node, which has a driver.
func (m *metalNodes) carry(ctx context.Context, n *metalNode, a power.Action) (state power.State, err error) {
	err = m.switched(ctx, n, func(ctx context.Context) (err error) {
		state, err = power.Carry(ctx, n.driver, a)
		return err
	})
	return state, err
}

// switched has an action on the power of a node carried out.
func (m *metalNodes) switched(ctx context.Context, n *metalNode, act func(context.Context) error) error {
	n.switching.Lock()
	defer n.switching.Unlock()
	ctx, cancel := context.WithTimeoutCause(ctx, n.patience, fmt.Errorf("timed out after %v", n.patience))
	defer cancel()
	return act(ctx)
}
