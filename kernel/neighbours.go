package kernel

import (
	"net/netip"
	"sync"

	"margay/kernel/neighbour"
)

// neighbours is the set of nodes whose hardware addresses this node has entered in the table of
// neighbours, which has no room to learn them all on a host of many nodes (package neighbour).
// Before two ranks exchange datagrams, their node kernels have a connection, so each node that is
// needed is entered. The nodes of a job with a network of its own are entered when it is made.
type neighbours struct {
	mu      sync.Mutex
	entered map[netip.Addr]bool
}

// reached enters a node before a connection to it, or at the first one from it. If that fails,
// Linux asks the node for its address.
func (n *Node) reached(address netip.Addr) {
	n.enterNeighbour(address, func() (int, error) {
		wire, _, err := n.underlay()
		if err != nil {
			return 0, err
		}
		return wire.Attrs().Index, nil
	})
}

// enterNeighbour enters a node whose hardware address this node knows, on the interface that wire
// returns.
func (n *Node) enterNeighbour(address netip.Addr, wire func() (index int, err error)) {
	mac, ok := n.config.Boot.Neighbour(address)
	if !ok {
		return
	}
	err := n.neighbours.enter(address, func() error {
		index, err := wire()
		if err != nil {
			return err
		}
		return neighbour.Enter(index, address, mac)
	})
	if err != nil {
		n.config.Log("%v", err)
	}
}

// enter calls do, until that has succeeded once for an address.
func (s *neighbours) enter(address netip.Addr, do func() error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entered[address] {
		return nil
	}
	if err := do(); err != nil {
		return err
	}
	if s.entered == nil {
		s.entered = make(map[netip.Addr]bool)
	}
	s.entered[address] = true
	return nil
}
