package seek

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"margay/internal/uuid"
	"margay/kernel/abi/node"
)

// Lease is an address for a machine, and the address of the boot services, on the same network.
type Lease struct {
	Address netip.Prefix
	Server  netip.Addr
}

// Question asks by DHCP for a lease of boot services, which name their script. Boot services that
// leave addresses to a server of the site name the script alone, and the address is the site's. A
// server without boot services beside it gives no lease. It is a state machine: datagrams in,
// datagrams out.
type Question struct {
	mac     net.HardwareAddr
	id      dhcpv4.TransactionID
	machine uuid.ID

	site   *dhcpv4.DHCPv4 // the first offer of an address without a script; nil: none yet
	script netip.Addr     // of boot services without addresses; invalid: none yet
	offer  *dhcpv4.DHCPv4 // that was accepted; nil: none yet
	lease  Lease
	done   bool
}

// NewQuestion returns a question of a network card, of a machine that may be the zero ID. All
// datagrams of it have the identifier.
func NewQuestion(mac net.HardwareAddr, id [4]byte, machine uuid.ID) *Question {
	return &Question{mac: mac, id: id, machine: machine}
}

// Next returns the datagram to send, for the first time or again.
func (q *Question) Next() ([]byte, error) {
	modifiers := []dhcpv4.Modifier{
		dhcpv4.WithTransactionID(q.id), dhcpv4.WithBroadcast(true), dhcpv4.WithUserClass(node.UserClass, true),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask),
	}
	if q.machine != (uuid.ID{}) {
		modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClientMachineIdentifier, q.machine.Option())))
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
	if err != nil || q.done || m.OpCode != dhcpv4.OpcodeBootReply || m.TransactionID != q.id || !bytes.Equal(m.ClientHWAddr, q.mac) ||
		len(m.ServerIdentifier()) == 0 {
		return false
	}
	switch kind := m.MessageType(); {
	case kind == dhcpv4.MessageTypeNak && q.offer != nil:
		q.offer, q.site, q.script = nil, nil, netip.Addr{}
		return true
	case kind == dhcpv4.MessageTypeOffer && q.offer == nil:
		return q.offered(m)
	case kind == dhcpv4.MessageTypeAck && q.offer != nil:
		address, ok := addressOf(m)
		script, _ := scriptOf(m)
		q.done = ok && address == q.lease.Address && m.ServerIdentifier().Equal(q.offer.ServerIdentifier()) && (q.offer == q.site || script == q.lease.Server)
		return q.done
	}
	return false
}

// offered handles an offer, and reports whether it, or an earlier one with it, is accepted.
func (q *Question) offered(m *dhcpv4.DHCPv4) bool {
	address, has := addressOf(m)
	script, names := scriptOf(m)
	lease := Lease{address, script}
	switch {
	case has && names:
		if lease.valid() {
			q.offer, q.lease = m, lease
		}
		return q.offer != nil
	case has && q.site == nil:
		q.site = m
	case names && m.YourIPAddr.IsUnspecified():
		q.script = script
	}
	if q.site != nil && q.script.IsValid() {
		address, _ = addressOf(q.site)
		if lease = (Lease{address, q.script}); lease.valid() {
			q.offer, q.lease = q.site, lease
		}
	}
	return q.offer != nil
}

// Lease returns the lease, once there is one.
func (q *Question) Lease() (l Lease, ok bool) { return q.lease, q.done }

// Missing returns why there is no lease, for people.
func (q *Question) Missing() error {
	switch {
	case q.offer != nil:
		return fmt.Errorf("the DHCP server %v offers an address there, and does not acknowledge it", q.offer.ServerIdentifier())
	case q.script.IsValid() && q.site == nil:
		return fmt.Errorf("boot services answer there, at %v, and leave addresses to a DHCP server of the site, which does not answer", q.script)
	case q.site != nil && !q.script.IsValid():
		return errors.New("a DHCP server answers there, and no boot services of a machine")
	}
	return errors.New("no boot services of a machine answer there")
}

// valid reports whether the server is another host of the subnet of the address.
func (l Lease) valid() bool { return l.Address.Contains(l.Server) && l.Server != l.Address.Addr() }

// addressOf reads the address that an answer gives.
func addressOf(m *dhcpv4.DHCPv4) (address netip.Prefix, ok bool) {
	own, ok := netip.AddrFromSlice(m.YourIPAddr.To4())
	bits, size := m.SubnetMask().Size()
	return netip.PrefixFrom(own, bits), ok && !own.IsUnspecified() && size == 32 && bits > 0
}

// scriptOf reads the host of the script that an answer names.
func scriptOf(m *dhcpv4.DHCPv4) (host netip.Addr, ok bool) {
	script, err := url.Parse(m.BootFileName)
	if err != nil || script.Scheme != "http" {
		return netip.Addr{}, false
	}
	host, err = netip.ParseAddr(script.Host)
	return host, err == nil && host.Is4()
}

// String describes the lease for people.
func (l Lease) String() string { return fmt.Sprintf("%v, boot services at %v", l.Address, l.Server) }
