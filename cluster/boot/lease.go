package boot

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"margay/internal/uuid"
	"margay/kernel/abi/id"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address in the usual notation.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// ParseMAC reads an Ethernet address.
func ParseMAC(text string) (m MAC, err error) {
	hardware, err := net.ParseMAC(text)
	if err != nil || len(hardware) != len(m) {
		return m, fmt.Errorf("%.40q is not the address of a network card, such as 52:54:00:12:34:56", text)
	}
	return MAC(hardware), nil
}

// Host is a node that may boot, and its address, which it always gets. A guest is a machine that is
// not a node: it gets an address and a script that waits, and nothing else. It has no Node. Under a
// proxy, a host has the last address that it has asked another server for.
type Host struct {
	Node    id.Node
	Guest   bool
	Says    string // what a guest shows while it waits; empty: how it becomes a node
	MAC     MAC
	Address netip.Addr
}

// String names the host for people.
func (h Host) String() string {
	if h.Guest {
		return h.MAC.String()
	}
	return fmt.Sprintf("node%d", h.Node)
}

// Kind is the type of a DHCP message, as far as it matters here.
type Kind int

// The kinds: what clients send, and what they get.
const (
	Other Kind = iota
	Discover
	Request
	Decline
	Offer
	Ack
	Nak
)

// Question is what a DHCP client has sent, as far as it matters here. All of it is untrusted.
type Question struct {
	Kind    Kind
	MAC     MAC
	Machine string     // identifies the client's machine (RFC 4578, option 97), in one byte order; may be empty
	UUID    uuid.ID    // the same, if it is a UUID
	Wants   netip.Addr // the address that it asks for, or has; may be invalid
	Server  netip.Addr // the server that it has chosen; may be invalid
	Boots   bool       // it boots over the network, from something
	Means   Means      // what it boots from
	Why     string     // Nothing: the reason
	PXE     bool       // it was sent to PXEPort
}

// Answer is what a client gets.
type Answer struct {
	Kind    Kind // Offer, Ack, Nak, or Other for none
	Host    Host // of a known client
	Known   bool
	Leased  bool   // the client has an address, or another server gives it one
	Refusal string // why there is no Offer or Ack; empty if there is, or nothing was asked of this server
}

// Counts says how many messages were refused, by reason.
type Counts struct {
	Unknown   uint64 // no host has the MAC address
	Duplicate uint64 // another machine has just used the MAC address
	Unfit     uint64 // there is nothing that the client boots
	Elsewhere uint64 // the client has chosen another server: there is a second one
	Wrong     uint64 // the client asked for another address than its own
	Declined  uint64 // the client has found its address in use
	Malformed uint64 // no DHCP message of a client
}

// holdTime is how long a MAC address belongs to the machine that has used it: longer than a client
// repeats its messages, and shorter than the exchange of a machine takes.
const holdTime = time.Minute

// Leases decides on the questions of DHCP clients. As a proxy it gives no addresses, but learns
// them. The number of hosts bounds the state: packets of strangers are only counted, so they cannot
// exhaust addresses or memory. It is not safe for concurrent use.
type Leases struct {
	proxy     bool
	hosts     map[MAC]Host
	addresses map[netip.Addr]Host
	owners    map[MAC]owner
	counts    Counts
}

// owner is the machine that has used a MAC address.
type owner struct {
	machine string
	last    time.Time // of its questions
	used    time.Time // when it was last seen to use its IP address
}

// NewLeases returns the leases of a server that has no hosts yet.
func NewLeases(proxy bool) *Leases {
	return &Leases{proxy: proxy, hosts: make(map[MAC]Host), owners: make(map[MAC]owner), addresses: make(map[netip.Addr]Host)}
}

// Add adds a host, unless it has it. Each host needs a MAC address and, unless this is a proxy, an
// address of its own. On an error nothing is changed.
func (l *Leases) Add(h Host) error {
	was, known := l.hosts[h.MAC]
	if l.proxy {
		h.Address = was.Address
	}
	if known && was.Guest && h.Guest && was.Address == h.Address {
		l.hosts[h.MAC] = h
		if h.Address.IsValid() {
			l.addresses[h.Address] = h
		}
		return nil
	}
	if h.MAC == (MAC{}) || h.MAC[0]&1 != 0 {
		return fmt.Errorf("boot: %v: %v is not the MAC address of one station", h, h.MAC)
	}
	if !l.proxy && !h.Address.Is4() {
		return fmt.Errorf("boot: %v: %v is not an IPv4 address", h, h.Address)
	}
	if known {
		return fmt.Errorf("boot: %v and %v have the same MAC address %v", was, h, h.MAC)
	}
	if l.proxy {
		l.hosts[h.MAC] = h
		return nil
	}
	if other, ok := l.addresses[h.Address]; ok {
		return fmt.Errorf("boot: %v and %v have the same address %v", other, h, h.Address)
	}
	l.hosts[h.MAC], l.addresses[h.Address] = h, h
	return nil
}

// Settle adds a node in the place of the guest with its MAC address, if there is one. Under a proxy
// the node has the address of the guest.
func (l *Leases) Settle(h Host) error {
	guest, o := l.hosts[h.MAC], l.owners[h.MAC]
	l.Forget(h.MAC)
	if err := l.Add(h); err != nil {
		return err
	}
	if l.proxy && guest.Address.IsValid() {
		h.Address = guest.Address
		l.hosts[h.MAC], l.addresses[h.Address], l.owners[h.MAC] = h, h, o
	}
	return nil
}

// Node returns the host of a node.
func (l *Leases) Node(node id.Node) (h Host, known bool) {
	for _, h := range l.hosts {
		if h.Node == node && !h.Guest {
			return h, true
		}
	}
	return Host{}, false
}

// Forget removes the host of a MAC address, if there is one.
func (l *Leases) Forget(mac MAC) {
	if h, ok := l.hosts[mac]; ok {
		delete(l.hosts, mac)
		delete(l.owners, mac)
		delete(l.addresses, h.Address)
	}
}

// Host returns the host that has an address.
func (l *Leases) Host(address netip.Addr) (h Host, known bool) {
	h, known = l.addresses[address]
	return h, known
}

// Counts returns what was refused so far.
func (l *Leases) Counts() Counts { return l.counts }

// Malformed counts a datagram that is not a question.
func (l *Leases) Malformed() { l.counts.Malformed++ }

// Starting frees the MAC address of a node: another machine may have it now.
func (l *Leases) Starting(node id.Node) {
	if h, ok := l.Node(node); ok {
		delete(l.owners, h.MAC)
	}
}

// Uses notes that a host uses its address now.
func (l *Leases) Uses(now time.Time, mac MAC) {
	if _, known := l.hosts[mac]; known {
		o := l.owners[mac]
		o.used = now
		l.owners[mac] = o
	}
}

// Handle answers a question that server has received.
func (l *Leases) Handle(now time.Time, server netip.Addr, q Question) Answer {
	host, known := l.hosts[q.MAC]
	if !known {
		l.counts.Unknown++
		return Answer{Refusal: fmt.Sprintf("no node has the MAC address %v", q.MAC)}
	}
	a := Answer{Host: host, Known: true}
	if q.Kind != Discover && q.Kind != Request && q.Kind != Decline {
		return a
	}
	if !l.proxy && q.Server.IsValid() && q.Server != server {
		l.counts.Elsewhere++
		a.Refusal = fmt.Sprintf("it has chosen another DHCP server, %v", q.Server)
		return a
	}
	o, asked := l.owners[q.MAC]
	if asked && o.machine != q.Machine && now.Sub(o.last) < holdTime {
		l.counts.Duplicate++
		a.Refusal = "another machine has used its MAC address just now"
		return a
	}
	o.machine, o.last = q.Machine, now
	l.owners[q.MAC] = o
	switch {
	case q.Kind == Decline:
		l.counts.Declined++
		a.Refusal = fmt.Sprintf("it has found its address %v in use", host.Address)
	case q.Means == Nothing:
		l.counts.Unfit++
		a.Refusal = q.Why
	case l.proxy:
		l.assist(now, server, q, &a)
	case q.Kind == Discover:
		a.Kind = Offer
	case q.Wants != host.Address:
		l.counts.Wrong++
		a.Kind, a.Refusal = Nak, fmt.Sprintf("it has asked for the address %v, and its own is %v", q.Wants, host.Address)
	default:
		a.Kind, a.Leased = Ack, true
	}
	return a
}

// assist answers as a proxy: a client's search for servers, and the request of one that has an
// address and comes back for the rest. The request to the server that gives the address is
// broadcast, and has the address in it.
func (l *Leases) assist(now time.Time, server netip.Addr, q Question, a *Answer) {
	switch {
	case q.Kind == Discover && !q.PXE:
		a.Kind = Offer
	case q.Kind != Request:
	case !q.Wants.Is4() || q.Wants.IsUnspecified() || q.Wants == server:
		l.counts.Wrong++
		a.Refusal = fmt.Sprintf("it asks for the address %v, which cannot be its own", q.Wants)
	case !l.learn(now, &a.Host, q.Wants):
		l.counts.Wrong++
		a.Refusal = fmt.Sprintf("it has the address %v, which another one has used just now", q.Wants)
	default:
		a.Leased = true
		if q.PXE {
			a.Kind = Ack
		}
	}
}

// learn notes the address of a host. It refuses one that another host has used within holdTime.
func (l *Leases) learn(now time.Time, h *Host, address netip.Addr) bool {
	if other, ok := l.addresses[address]; ok && other.MAC != h.MAC {
		if o := l.owners[other.MAC]; now.Sub(o.last) < holdTime || now.Sub(o.used) < holdTime {
			return false
		}
		other.Address = netip.Addr{}
		l.hosts[other.MAC] = other
	}
	delete(l.addresses, h.Address)
	h.Address = address
	l.hosts[h.MAC], l.addresses[address] = *h, *h
	return true
}
