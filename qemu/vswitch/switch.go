// Package vswitch is an Ethernet switch in user space. It joins the virtual machines of one margay machine and its
// service node without any privilege, and it is the place where a test cuts a cable, loses frames or slows them down.
//
// A switch has a fixed set of ports. Each port is a unix stream socket that its peer connects to: a QEMU with
// "-netdev stream,server=off,addr.type=unix,addr.path=SOCKET" or the service node's network stack. Frames travel in the
// framing of package ether. Only processes of the switch's own user, or root, may connect. A port has one peer at a
// time; a newer connection takes the place of the older one.
//
// # Forwarding
//
// The forwarding table is static: each port declares the one address of its peer. A unicast frame goes to the port of
// its destination or is dropped, a multicast or broadcast frame goes to all other ports. A frame whose source is not
// its port's own address is dropped, so a receiver knows who sent a frame from its source address alone. So is an
// ARP packet in which the peer claims another Ethernet or IP address than its own: none can draw to itself what is meant for another.
// Of a peer that has an IP address nothing but ARP and IPv4 from that address passes, so that an address stands for one station.
//
// # No port stalls another
//
//	peer -> session.read -> Port.in (wire) -> Switch.forward -> Port.out (wire) -> outbox -> session.write -> peer
//
// Everything between the two goroutines of a session, one that reads and one that writes, takes bounded time: a frame
// is copied into the outbox of the port it leaves by, and dropped and counted when that is full. A peer that reads
// slowly or not at all loses its own frames, and one that sends too much to another leaves room in that one's outbox for
// what others send. Nothing is dropped without a counter (see Drops).
//
// Locks, outermost first: Port.mu, wire.mu of a port's in, wire.mu of a port's out, outbox.mu. Of each kind at most one
// is held.
package vswitch

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"

	"margay/qemu/ether"
)

// DefaultQueue is how many bytes wait for a slow peer unless Config says otherwise.
const DefaultQueue = 4 << 20

// A Config describes a switch.
type Config struct {
	Ports []PortConfig
	// Queue bounds the bytes that wait for one port's peer, of which those of one other are three quarters at most, and those that
	// each of a port's two directions delays by its Fault. Zero means DefaultQueue; a queue holds at least one frame of the greatest
	// length.
	Queue int
	// Seed determines which frames a Fault loses: the same seed, port and direction lose the same ones of a sequence.
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
	ports  []*Port
	byMAC  map[ether.MAC]*Port
	byName map[string]*Port
	log    *slog.Logger
	wg     sync.WaitGroup // every goroutine of the switch
}

// New starts a switch: when it returns, every port's socket accepts connections. A socket file left behind by a dead
// switch is replaced, so the caller must be the only one to use the paths (it holds the lock of their directory).
func New(cfg Config) (*Switch, error) {
	if cfg.Queue == 0 {
		cfg.Queue = DefaultQueue
	}
	cfg.Queue = max(cfg.Queue, ether.PrefixLen+ether.MaxFrame)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Switch{
		byMAC:  make(map[ether.MAC]*Port, len(cfg.Ports)),
		byName: make(map[string]*Port, len(cfg.Ports)),
		log:    cfg.Log,
	}
	for i, pc := range cfg.Ports {
		if err := s.addPort(i, pc, cfg); err != nil {
			return nil, errors.Join(fmt.Errorf("vswitch: port %q: %w", pc.Name, err), s.Close())
		}
	}
	for _, p := range s.ports {
		s.wg.Go(p.accept)
	}
	return s, nil
}

func (s *Switch) addPort(index int, pc PortConfig, cfg Config) error {
	switch {
	case pc.Name == "":
		return errors.New("no name")
	case s.byName[pc.Name] != nil:
		return errors.New("name used twice")
	case !pc.MAC.Station():
		return fmt.Errorf("%v is not the address of one station", pc.MAC)
	case s.byMAC[pc.MAC] != nil:
		return fmt.Errorf("address %v is port %q's", pc.MAC, s.byMAC[pc.MAC].cfg.Name)
	}
	p, err := newPort(s, index, pc, cfg)
	if err != nil {
		return err
	}
	s.ports = append(s.ports, p)
	s.byMAC[pc.MAC] = p
	s.byName[pc.Name] = p
	return nil
}

// Ports returns the ports in the order of the Config.
func (s *Switch) Ports() []*Port { return append([]*Port(nil), s.ports...) }

// Port returns the port of that name, or nil.
func (s *Switch) Port(name string) *Port { return s.byName[name] }

// Stats returns the sum over all ports. Connected is whether any port is.
func (s *Switch) Stats() Stats {
	var sum Stats
	for _, p := range s.ports {
		sum.add(p.Stats())
	}
	return sum
}

// Close disconnects all peers, removes the sockets and waits for the switch's goroutines. Frames under way are lost.
// Later calls do nothing.
func (s *Switch) Close() error {
	var errs []error
	for _, p := range s.ports {
		errs = append(errs, p.close())
	}
	s.wg.Wait()
	return errors.Join(errs...)
}

// forward sends a frame with a valid header, which came in at a port, to where its destination is.
func (s *Switch) forward(from *Port, frame []byte) {
	dst := ether.Destination(frame)
	if dst.Group() {
		for _, p := range s.ports {
			if p != from {
				p.out.send(frame)
			}
		}
		return
	}
	to := s.byMAC[dst]
	if to == nil || to == from {
		from.count.unknown.Add(1)
		return
	}
	to.out.send(frame)
}
