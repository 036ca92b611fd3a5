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
	"margay/kernel/abi/id"
)

// How long a silent guest keeps its place: one that has never fetched its script, since every
// station can send requests, and one that has, and asks every few seconds.
const (
	strangerTime = time.Minute
	guestTime    = 5 * time.Minute
)

// Cards has the network cards: the card of each node, for as long as the node is in the machine,
// and the cards of guests. The plan bounds its size, whatever is sent. It is a state machine
// without input and output, and not safe for concurrent use.
type Cards struct {
	plan   Plan
	nodes  map[boot.MAC]id.Node
	macs   map[id.Node]boot.MAC
	guests map[boot.MAC]*guest
	taken  []bool // the places of guests
}

type guest struct {
	place       int
	met         bool // it has fetched its script
	first, last time.Time
}

// Guest is a machine that waits until it is made a node.
type Guest struct {
	MAC   boot.MAC
	Since time.Time
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
	}
	for _, card := range all {
		mac, err := ParseMAC(card.MAC)
		if err == nil {
			err = c.Join(mac, card.Node)
		}
		if err != nil {
			return nil, err
		}
	}
	return c, nil
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
	if other, ok := c.macs[n]; ok {
		return fmt.Errorf("node%d has the network card %v already, and one is enough", n, other)
	}
	if _, ok := c.plan.Node(n); !ok {
		return fmt.Errorf("node%d: %w: the range %v has addresses for %d nodes, and for %d machines that wait", n, ErrFull, c.plan.Range, c.plan.Nodes(), c.plan.Guests())
	}
	c.drop(mac)
	c.nodes[mac], c.macs[n] = n, mac
	return nil
}

// Leave takes the card of a node that has left the machine.
func (c *Cards) Leave(n id.Node) {
	if mac, ok := c.macs[n]; ok {
		delete(c.macs, n)
		delete(c.nodes, mac)
	}
}

// Ask notes that a machine which is not a node has asked for an address, and returns it. It also
// returns the guests that have been silent for too long: they are none any more.
func (c *Cards) Ask(now time.Time, mac boot.MAC) (address netip.Addr, gone []boot.MAC, err error) {
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
	g.last = now
	return c.plan.guest(g.place), gone, nil
}

// Met notes that a guest has fetched its script, and reports whether it is the first time.
func (c *Cards) Met(now time.Time, mac boot.MAC) (first bool) {
	g := c.guests[mac]
	if g == nil {
		return false
	}
	first = !g.met
	g.met, g.last = true, now
	return first
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
			all = append(all, Guest{mac, g.first})
		}
	}
	slices.SortFunc(all, func(a, b Guest) int { return cmp.Or(a.Since.Compare(b.Since), bytes.Compare(a.MAC[:], b.MAC[:])) })
	return all
}

// List returns the cards of all nodes, by number.
func (c *Cards) List() []Card {
	all := []Card{}
	for _, n := range slices.Sorted(maps.Keys(c.macs)) {
		all = append(all, Card{n, c.macs[n].String()})
	}
	return all
}

func (c *Cards) drop(mac boot.MAC) {
	if g := c.guests[mac]; g != nil {
		delete(c.guests, mac)
		c.taken[g.place] = false
	}
}
