package boot

import (
	"fmt"
	"net"
	"net/netip"
	"time"

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
// not a node: it gets an address and a script that waits, and nothing else. It has no Node.
type Host struct {
	Node    id.Node
	Guest   bool
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
	Machine string     // identifies the client's machine (RFC 4578, option 97); may be empty
	Wants   netip.Addr // the address that it asks for, or has; may be invalid
	Server  netip.Addr // the server that it has chosen; may be invalid
	Means   Means      // what it boots from
	Why     string     // Nothing: the reason
}

// Answer is what a client gets.
type Answer struct {
	Kind    Kind // Offer, Ack, Nak, or Other for none
	Host    Host // of a known client
	Known   bool
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

// Leases decides on the questions of DHCP clients. The number of hosts bounds the state: packets of
// strangers are only counted, so they cannot exhaust addresses or memory. It is not safe for
// concurrent use.
type Leases struct {
	hosts     map[MAC]Host
	addresses map[netip.Addr]Host
	owners    map[MAC]owner
	counts    Counts
}

// owner is the machine that has used a MAC address.
type owner struct {
	machine string
	last    time.Time
}

// NewLeases returns the leases of hosts. Each host needs a MAC address and an address of its own.
func NewLeases(hosts []Host) (*Leases, error) {
	l := &Leases{hosts: make(map[MAC]Host, len(hosts)), owners: make(map[MAC]owner), addresses: make(map[netip.Addr]Host, len(hosts))}
	for _, h := range hosts {
		if err := l.Add(h); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// Add adds a host, unless it has it. On an error nothing is changed.
func (l *Leases) Add(h Host) error {
	if l.hosts[h.MAC] == h && h.Guest {
		return nil
	}
	if h.MAC == (MAC{}) || h.MAC[0]&1 != 0 {
		return fmt.Errorf("boot: %v: %v is not the MAC address of one station", h, h.MAC)
	}
	if !h.Address.Is4() {
		return fmt.Errorf("boot: %v: %v is not an IPv4 address", h, h.Address)
	}
	if other, ok := l.hosts[h.MAC]; ok {
		return fmt.Errorf("boot: %v and %v have the same MAC address %v", other, h, h.MAC)
	}
	if other, ok := l.addresses[h.Address]; ok {
		return fmt.Errorf("boot: %v and %v have the same address %v", other, h, h.Address)
	}
	l.hosts[h.MAC], l.addresses[h.Address] = h, h
	return nil
}

// Remove removes a node's host.
func (l *Leases) Remove(node id.Node) {
	for mac, h := range l.hosts {
		if h.Node == node && !h.Guest {
			l.Forget(mac)
		}
	}
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
	for mac, h := range l.hosts {
		if h.Node == node && !h.Guest {
			delete(l.owners, mac)
		}
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
	if q.Server.IsValid() && q.Server != server {
		l.counts.Elsewhere++
		a.Refusal = fmt.Sprintf("it has chosen another DHCP server, %v", q.Server)
		return a
	}
	if o, ok := l.owners[q.MAC]; ok && o.machine != q.Machine && now.Sub(o.last) < holdTime {
		l.counts.Duplicate++
		a.Refusal = "another machine has used its MAC address just now"
		return a
	}
	l.owners[q.MAC] = owner{q.Machine, now}
	switch {
	case q.Kind == Decline:
		l.counts.Declined++
		a.Refusal = fmt.Sprintf("it has found its address %v in use", host.Address)
	case q.Means == Nothing:
		l.counts.Unfit++
		a.Refusal = q.Why
	case q.Kind == Discover:
		a.Kind = Offer
	case q.Wants != host.Address:
		l.counts.Wrong++
		a.Kind, a.Refusal = Nak, fmt.Sprintf("it has asked for the address %v, and its own is %v", q.Wants, host.Address)
	default:
		a.Kind = Ack
	}
	return a
}
