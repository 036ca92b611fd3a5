package seek

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/kernel/abi/node"
)

// Lease is an address for a machine, and the address of the boot services, on the same network.
type Lease struct {
	Address netip.Prefix
	Server  netip.Addr
}

// Question asks by DHCP for a lease from boot services. It takes no lease from other DHCP servers:
// only boot services name a script. It is a state machine: datagrams in, datagrams out.
type Question struct {
	mac   net.HardwareAddr
	id    dhcpv4.TransactionID
	offer *dhcpv4.DHCPv4 // that was accepted; nil: none yet
	lease Lease
	done  bool
}

// NewQuestion returns a question of a network card. All datagrams of it have the identifier.
func NewQuestion(mac net.HardwareAddr, id [4]byte) *Question { return &Question{mac: mac, id: id} }

// Next returns the datagram to send, for the first time or again.
func (q *Question) Next() ([]byte, error) {
	modifiers := []dhcpv4.Modifier{
		dhcpv4.WithTransactionID(q.id), dhcpv4.WithBroadcast(true), dhcpv4.WithUserClass(node.UserClass, true),
	}
	if q.offer == nil {
		m, err := dhcpv4.NewDiscovery(q.mac, modifiers...)
		if err != nil {
			return nil, err
		}
		return m.ToBytes(), nil
	}
	m, err := dhcpv4.NewRequestFromOffer(q.offer, modifiers...)
	if err != nil {
		return nil, err
	}
	return m.ToBytes(), nil
}

// Receive handles a datagram, which is untrusted. It reports whether the question has got further:
// there is a lease, or Next has another datagram.
func (q *Question) Receive(datagram []byte) bool {
	m, err := dhcpv4.FromBytes(datagram)
	if err != nil || q.done || m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != q.id || !bytes.Equal(m.ClientHWAddr, q.mac) {
		return false
	}
	if m.MessageType() == dhcpv4.MessageTypeNak && q.offer != nil {
		q.offer = nil
		return true
	}
	lease, err := leaseOf(m)
	switch {
	case err != nil:
		return false
	case m.MessageType() == dhcpv4.MessageTypeOffer && q.offer == nil:
		q.offer, q.lease = m, lease
		return true
	case m.MessageType() == dhcpv4.MessageTypeAck && q.offer != nil && lease == q.lease:
		q.done = true
		return true
	}
	return false
}

// Lease returns the lease, once there is one.
func (q *Question) Lease() (l Lease, ok bool) { return q.lease, q.done }

var errLease = errors.New("not a lease of boot services")

// leaseOf reads the lease in an answer.
func leaseOf(m *dhcpv4.DHCPv4) (Lease, error) {
	own, ok := netip.AddrFromSlice(m.YourIPAddr.To4())
	bits, size := m.SubnetMask().Size()
	if !ok || own.IsUnspecified() || size != 32 || bits == 0 || len(m.ServerIdentifier()) == 0 {
		return Lease{}, errLease
	}
	script, err := url.Parse(m.BootFileName)
	if err != nil || script.Scheme != "http" {
		return Lease{}, errLease
	}
	server, err := netip.ParseAddr(script.Host)
	l := Lease{netip.PrefixFrom(own, bits), server}
	if err != nil || !l.Address.Contains(server) || server == own {
		return Lease{}, errLease
	}
	return l, nil
}

// String describes the lease for people.
func (l Lease) String() string { return fmt.Sprintf("%v, boot services at %v", l.Address, l.Server) }
