// Package vswitch is an Ethernet switch in user space. It connects the virtual machines and the
// service node of one margay machine without any privilege. Tests use it to cut cables and to lose
// or delay frames.
//
// Ports can be added and removed while the switch runs. Each port is a unix stream socket that its
// peer connects to: a QEMU with "-netdev stream,server=off,addr.type=unix,addr.path=SOCKET" or the
// service node's network stack. Frames use the framing of package ether. Only processes of the
// switch's own user or of root may connect. A port has one peer at a time; a newer connection
// replaces the older one.
//
// # Forwarding
//
// The forwarding table follows from the ports alone: each port declares the one address of its
// peer. A unicast frame goes to the port of its destination or is dropped, a multicast or broadcast
// frame goes to all other ports. A frame whose source is not its port's own address is dropped, so
// the source address identifies the sender. So is an ARP packet that claims another Ethernet or IP
// address than the peer's own, so no peer can attract another's frames. From a peer with an IP
// address only ARP and IPv4 from that address pass, so an address identifies one station. It cannot
// answer DHCP clients, so it cannot give another station something else to boot, nor ask DHCP in
// the name of another station.
//
// # No port stalls another
//
//	peer -> session.read -> Port.in (wire) -> Switch.forward -> Port.out (wire) -> outbox -> session.write -> peer
//
// A session has one goroutine that reads and one that writes. All work between them takes bounded
// time: a frame is copied into the outbox of its destination port, or dropped and counted if the
// outbox is full. A peer that reads slowly or not at all loses its own frames. A peer that sends
// too much leaves room for other senders in the receiver's outbox. Every dropped frame is counted
// (see Drops).
//
// Locks, outermost first: Switch.mu, Port.mu, wire.mu of a port's in, wire.mu of a port's out,
// outbox.mu. Of each kind at most one is held.
package vswitch

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"margay/qemu/ether"
)

// DefaultQueue is the default of Config.Queue, in bytes.
const DefaultQueue = 4 << 20

// A Config describes a switch.
type Config struct {
	Ports []PortConfig
	// Queue bounds the bytes that wait for one port's peer, at most three quarters of them from one
	// sender. It also bounds the bytes delayed by a Fault in each direction of a port. Zero means
	// DefaultQueue; a queue holds at least one frame of the greatest length.
	Queue int
	// Seed determines which frames a Fault loses: the same seed, port and direction lose the same
	// frames of a sequence.
	Seed uint64
	// Log receives connections, refusals and the reasons of disconnections. Nil means none.
	Log *slog.Logger
}

// A PortConfig describes a port.
type PortConfig struct {
	Name    string     // unique in the switch
	MAC     ether.MAC  // of the peer, unique in the switch
	Address netip.Addr // that the peer may claim, and send IPv4 from; not valid: any, and any protocol
	Socket  string     // path the peer connects to
}

// A Switch is a running switch. Its methods may be called from several goroutines.
type Switch struct {
	cfg   Config
	table atomic.Pointer[table]
	wg    sync.WaitGroup // every goroutine of the switch

	mu     sync.Mutex // held to change table
	added  int        // ports, those removed since included
	closed bool
}

// table is the ports of a switch. It never changes.
type table struct {
	ports  []*Port
	byMAC  map[ether.MAC]*Port
	byName map[string]*Port
}

// New starts a switch: when it returns, every port's socket accepts connections. It replaces the
// socket file of a dead switch, so the caller must have exclusive use of the paths (by the lock of
// their directory).
func New(cfg Config) (*Switch, error) {
	if cfg.Queue == 0 {
		cfg.Queue = DefaultQueue
	}
	cfg.Queue = max(cfg.Queue, ether.PrefixLen+ether.MaxFrame)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Switch{cfg: cfg}
	s.table.Store(&table{byMAC: make(map[ether.MAC]*Port, len(cfg.Ports)), byName: make(map[string]*Port, len(cfg.Ports))})
	for _, pc := range cfg.Ports {
		if _, err := s.Add(pc); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

// Add adds a port. Its socket accepts connections when Add returns.
func (s *Switch) Add(pc PortConfig) (*Port, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.table.Load()
	if err := t.check(pc); err != nil {
		return nil, fmt.Errorf("vswitch: port %q: %w", pc.Name, err)
	}
	if s.closed {
		return nil, fmt.Errorf("vswitch: port %q: %w", pc.Name, net.ErrClosed)
	}
	p, err := newPort(s, s.added, pc, s.cfg)
	if err != nil {
		return nil, fmt.Errorf("vswitch: port %q: %w", pc.Name, err)
	}
	s.added++
	next := t.clone()
	next.ports = append(next.ports, p)
	next.byMAC[pc.MAC], next.byName[pc.Name] = p, p
	s.table.Store(next)
	s.wg.Go(p.accept)
	return p, nil
}

// Remove disconnects the peer of a port, and removes the port and its socket. A name that no port
// has is not an error.
func (s *Switch) Remove(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	next := s.table.Load().clone()
	p := next.byName[name]
	if p == nil {
		return nil
	}
	next.ports = slices.DeleteFunc(next.ports, func(other *Port) bool { return other == p })
	delete(next.byMAC, p.cfg.MAC)
	delete(next.byName, name)
	s.table.Store(next)
	return p.close()
}

// check refuses a port that cannot be beside the others.
func (t *table) check(pc PortConfig) error {
	switch {
	case pc.Name == "":
		return errors.New("no name")
	case t.byName[pc.Name] != nil:
		return errors.New("name used twice")
	case !pc.MAC.Station():
		return fmt.Errorf("%v is not the address of one station", pc.MAC)
	case t.byMAC[pc.MAC] != nil:
		return fmt.Errorf("address %v is port %q's", pc.MAC, t.byMAC[pc.MAC].cfg.Name)
	}
	return nil
}

func (t *table) clone() *table {
	return &table{slices.Clone(t.ports), maps.Clone(t.byMAC), maps.Clone(t.byName)}
}

// Ports returns the ports in the order in which they were added.
func (s *Switch) Ports() []*Port { return slices.Clone(s.table.Load().ports) }

// Port returns the port of that name, or nil.
func (s *Switch) Port(name string) *Port { return s.table.Load().byName[name] }

// Stats returns the sum over all ports. Connected reports whether any port is connected.
func (s *Switch) Stats() Stats {
	var sum Stats
	for _, p := range s.table.Load().ports {
		sum.add(p.Stats())
	}
	return sum
}

// Close disconnects all peers, removes the sockets and waits for the switch's goroutines. Frames in
// flight are lost. Later calls do nothing.
func (s *Switch) Close() error {
	s.mu.Lock()
	s.closed = true
	var errs []error
	for _, p := range s.table.Load().ports {
		errs = append(errs, p.close())
	}
	s.mu.Unlock()
	s.wg.Wait()
	return errors.Join(errs...)
}

// forward sends a frame with a valid header, received at a port, to its destination.
func (s *Switch) forward(from *Port, frame []byte) {
	t := s.table.Load()
	dst := ether.Destination(frame)
	if dst.Group() {
		for _, p := range t.ports {
			if p != from {
				p.out.send(frame)
			}
		}
		return
	}
	to := t.byMAC[dst]
	if to == nil || to == from {
		from.count.unknown.Add(1)
		return
	}
	to.out.send(frame)
}
