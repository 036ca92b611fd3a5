package metal

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"margay/cluster/boot"
	"margay/internal/uuid"
	"margay/kernel/abi/id"
)

// How long a silent guest keeps its place: one that has never fetched its script, since every
// station can send requests, and one that has, and asks every few seconds.
const (
	strangerTime = time.Minute
	guestTime    = 5 * time.Minute
)

// bindTime is how long a machine that is a node must be silent on a card before it can boot from
// another one: longer than it repeats its questions.
const bindTime = time.Minute

// Cards has the network cards: the card of each node, for as long as the node is in the machine,
// and the cards of guests. A node that is known by its machine has the card that the machine asks
// with. The plan bounds its size, whatever is sent. It is a state machine without input and output,
// and not safe for concurrent use.
type Cards struct {
	plan     Plan
	nodes    map[boot.MAC]id.Node
	macs     map[id.Node]boot.MAC
	machines map[uuid.ID]id.Node // by the key of the UUID
	uuids    map[id.Node]uuid.ID
	bound    map[id.Node]time.Time // nodes that have their card by Bind: when they have used it last
	guests   map[boot.MAC]*guest
	taken    []bool // the places of guests
}

type guest struct {
	place       int
	machine     uuid.ID
	met         bool   // it has fetched its script
	doubt       string // why it would not join if it were made a node; empty: it would
	first, last time.Time
}

// Guest is a machine that waits until it is made a node.
type Guest struct {
	MAC   boot.MAC
	Since time.Time
	Doubt string // why it would not join if it were made a node; empty: it would
}

// ErrFull reports that the boot network has no address for one more.
var ErrFull = errors.New("no address is free")

// NewCards returns the cards of nodes.
func NewCards(p Plan, all []Card) (*Cards, error) {
	if err := p.Check(); err != nil {
		return nil, err
	}
	c := &Cards{
		plan: p, nodes: make(map[boot.MAC]id.Node), macs: make(map[id.Node]boot.MAC), guests: make(map[boot.MAC]*guest), taken: make([]bool, p.Guests()),
		machines: make(map[uuid.ID]id.Node), uuids: make(map[id.Node]uuid.ID), bound: make(map[id.Node]time.Time),
	}
	for _, card := range all {
		if err := c.Add(card); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Add adds how a node is known. On an error nothing is changed.
func (c *Cards) Add(card Card) error {
	var mac boot.MAC
	var machine uuid.ID
	var err error
	if card.MAC != "" || card.UUID == "" {
		mac, err = ParseMAC(card.MAC)
	}
	if err == nil && card.UUID != "" {
		machine, err = uuid.Parse(card.UUID)
	}
	if err != nil {
		return err
	}
	if other, ok := c.machines[machine.Key()]; ok {
		return fmt.Errorf("node%d is the machine %v already", other, machine)
	}
	if card.MAC != "" {
		err = c.Join(mac, card.Node)
	} else {
		err = c.free(card.Node)
	}
	if err == nil && card.UUID != "" {
		c.machines[machine.Key()], c.uuids[card.Node] = card.Node, machine
	}
	return err
}

// free returns an error unless a number can be a further node's.
func (c *Cards) free(n id.Node) error {
	if other, ok := c.macs[n]; ok {
		return fmt.Errorf("node%d has the network card %v already, and one is enough", n, other)
	}
	if machine, ok := c.uuids[n]; ok {
		return fmt.Errorf("node%d is the machine %v already", n, machine)
	}
	if _, ok := c.plan.Node(n); !ok {
		return fmt.Errorf("node%d: %w: the range %v has addresses for %d nodes, and for %d machines that wait", n, ErrFull, c.plan.Range, c.plan.Nodes(), c.plan.Guests())
	}
	return nil
}

// Find returns the node that a question comes from: the one with the card, or else with the
// machine, which is zero if the question has no UUID. A known card in another machine is an error,
// and so is a known machine with another card than the one that was given for it.
func (c *Cards) Find(mac boot.MAC, machine uuid.ID) (n id.Node, known bool, err error) {
	if n, known = c.nodes[mac]; known {
		if own, named := c.uuids[n]; named && machine != (uuid.ID{}) && own.Key() != machine.Key() {
			return 0, false, fmt.Errorf("the machine %v has the network card of node%d, which is the machine %v", machine, n, own)
		}
		return n, true, nil
	}
	n, known = c.machines[machine.Key()]
	_, byMachine := c.bound[n]
	if own, has := c.macs[n]; known && has && !byMachine {
		return 0, false, fmt.Errorf("node%d boots from another network card, %v", n, own)
	}
	return n, known, nil
}

// Bind gives a node that Find has found the card that its machine asks with, unless it has it. It
// returns the card that the node had until then, if any. A machine that asks with two cards at the
// same time boots from the first one.
func (c *Cards) Bind(now time.Time, mac boot.MAC, n id.Node) (was boot.MAC, changed bool, err error) {
	last, byMachine := c.bound[n]
	was, has := c.macs[n]
	switch {
	case has && (was == mac || !byMachine):
		if byMachine {
			c.bound[n] = now
		}
		return was, false, nil
	case has && now.Sub(last) < bindTime:
		return was, false, fmt.Errorf("node%d boots from another network card, %v", n, was)
	}
	c.drop(mac)
	delete(c.nodes, was)
	c.nodes[mac], c.macs[n], c.bound[n] = n, mac, now
	return was, true, nil
}

// Release takes a card that a node has by Bind away from it, and reports that, if another machine
// asks with it now and it was silent for bindTime: it was moved. A known card in another machine is
// then no error for Find.
func (c *Cards) Release(now time.Time, mac boot.MAC, machine uuid.ID) bool {
	n, known := c.nodes[mac]
	last, byMachine := c.bound[n]
	if !known || !byMachine || machine == (uuid.ID{}) || machine.Key() == c.uuids[n].Key() || now.Sub(last) < bindTime {
		return false
	}
	delete(c.nodes, mac)
	delete(c.macs, n)
	delete(c.bound, n)
	return true
}

// Uses notes that a node uses its card, which its machine keeps from then on for bindTime.
func (c *Cards) Uses(now time.Time, n id.Node) {
	if _, byMachine := c.bound[n]; byMachine {
		c.bound[n] = now
	}
}

// Named reports whether a node is known by its machine, so that it may have no card yet.
func (c *Cards) Named(n id.Node) bool {
	_, ok := c.uuids[n]
	return ok
}

// Node returns the node that has a card.
func (c *Cards) Node(mac boot.MAC) (n id.Node, ok bool) {
	n, ok = c.nodes[mac]
	return n, ok
}

// MAC returns the card of a node.
func (c *Cards) MAC(n id.Node) (mac boot.MAC, ok bool) {
	mac, ok = c.macs[n]
	return mac, ok
}

// Join gives a card to a node. A guest with that card is none any more.
func (c *Cards) Join(mac boot.MAC, n id.Node) error {
	if other, ok := c.nodes[mac]; ok {
		return fmt.Errorf("node%d has the network card %v already", other, mac)
	}
	if err := c.free(n); err != nil {
		return err
	}
	c.drop(mac)
	c.nodes[mac], c.macs[n] = n, mac
	return nil
}

// Machine returns the machine that a node is known by; zero: it is known by its card.
func (c *Cards) Machine(n id.Node) uuid.ID { return c.uuids[n] }

// GuestMachine returns the machine that a guest has named last; zero: it has named none.
func (c *Cards) GuestMachine(mac boot.MAC) uuid.ID {
	if g := c.guests[mac]; g != nil {
		return g.machine
	}
	return uuid.ID{}
}

// Doubt notes why a guest would not join if it were made a node; empty: it would. If that is news,
// it is met for the first time again.
func (c *Cards) Doubt(mac boot.MAC, why string) {
	if g := c.guests[mac]; g != nil && g.doubt != why {
		g.doubt, g.met = why, false
	}
}

// Doubted returns why a guest would not join if it were made a node; empty: it would.
func (c *Cards) Doubted(mac boot.MAC) string {
	if g := c.guests[mac]; g != nil {
		return g.doubt
	}
	return ""
}

// Admit is Add for the machine of a guest, which is none any more.
func (c *Cards) Admit(card Card, guest boot.MAC) error {
	if err := c.Add(card); err != nil {
		return err
	}
	c.drop(guest)
	return nil
}

// Leave forgets a node that has left the machine.
func (c *Cards) Leave(n id.Node) {
	if mac, ok := c.macs[n]; ok {
		delete(c.nodes, mac)
	}
	if machine, ok := c.uuids[n]; ok {
		delete(c.machines, machine.Key())
	}
	delete(c.macs, n)
	delete(c.uuids, n)
	delete(c.bound, n)
}

// Ask notes that a machine which is not a node has asked for an address, and returns it. It also
// returns the guests that have been silent for too long: they are none any more.
func (c *Cards) Ask(now time.Time, mac boot.MAC, machine uuid.ID) (address netip.Addr, gone []boot.MAC, err error) {
	gone = c.Expire(now)
	g := c.guests[mac]
	if g == nil {
		place := slices.Index(c.taken, false)
		if place < 0 {
			return netip.Addr{}, gone, fmt.Errorf("%w for it: %d machines that are not nodes have asked for one", ErrFull, len(c.taken))
		}
		g = &guest{place: place, first: now}
		c.guests[mac], c.taken[place] = g, true
	}
	g.last, g.machine = now, machine
	return c.plan.guest(g.place), gone, nil
}

// Met notes that a guest has fetched its script, and reports whether it is the first time. It
// returns the UUID that its machine has said last; zero: none.
func (c *Cards) Met(now time.Time, mac boot.MAC) (machine uuid.ID, first bool) {
	g := c.guests[mac]
	if g == nil {
		return uuid.ID{}, false
	}
	first = !g.met
	g.met, g.last = true, now
	return g.machine, first
}

// Expire removes guests that have been silent for too long, and returns them.
func (c *Cards) Expire(now time.Time) (gone []boot.MAC) {
	for mac, g := range c.guests {
		if silent := now.Sub(g.last); silent > guestTime || !g.met && silent > strangerTime {
			gone = append(gone, mac)
			c.drop(mac)
		}
	}
	slices.SortFunc(gone, func(a, b boot.MAC) int { return bytes.Compare(a[:], b[:]) })
	return gone
}

// Guests returns the guests that have fetched their script, the oldest first.
func (c *Cards) Guests() []Guest {
	var all []Guest
	for mac, g := range c.guests {
		if g.met {
			all = append(all, Guest{mac, g.first, g.doubt})
		}
	}
	slices.SortFunc(all, func(a, b Guest) int { return cmp.Or(a.Since.Compare(b.Since), bytes.Compare(a.MAC[:], b.MAC[:])) })
	return all
}

// List returns how all nodes are known, by number. Cards that nodes have by Bind are not in it.
func (c *Cards) List() []Card {
	known := make(map[id.Node]Card)
	for n, machine := range c.uuids {
		known[n] = Card{Node: n, UUID: machine.String()}
	}
	for n, mac := range c.macs {
		if _, byMachine := c.bound[n]; !byMachine {
			known[n] = Card{Node: n, MAC: mac.String(), UUID: known[n].UUID}
		}
	}
	all := []Card{}
	for _, n := range slices.Sorted(maps.Keys(known)) {
		all = append(all, known[n])
	}
	return all
}

func (c *Cards) drop(mac boot.MAC) {
	if g := c.guests[mac]; g != nil {
		delete(c.guests, mac)
		c.taken[g.place] = false
	}
}
