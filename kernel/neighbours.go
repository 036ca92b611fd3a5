package kernel

import (
	"net/netip"
	"sync"

	"margay/kernel/neighbour"
)

// neighbours enters the hardware addresses of the nodes that this node exchanges packets with, on a
// host whose table of neighbours has no room for those of all its nodes (package neighbour). Before
// two ranks exchange datagrams, their node kernels have a connection, so all nodes that a node needs
// are entered.
type neighbours struct {
	node *Node

	mu      sync.Mutex
	entered map[netip.Addr]bool
}

// reach enters a node before a connection to it, or at the first one from it. If that fails, Linux
// asks the node.
func (s *neighbours) reach(address netip.Addr) {
	mac, ok := s.node.config.Boot.Neighbour(address)
	if !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.entered[address] {
		return
	}
	wire, _, err := s.node.underlay()
	if err == nil {
		err = neighbour.Enter(wire.Attrs().Index, address, mac)
	}
	if err != nil {
		s.node.config.Log("neighbours: %v", err)
		return
	}
	if s.entered == nil {
		s.entered = make(map[netip.Addr]bool)
	}
	s.entered[address] = true
}
