package boot

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"margay/internal/uuid"
)

// maxDatagram bounds a DHCP message, in bytes. Clients send no longer ones unless a server allows
// them to (RFC 2132, section 9.10).
const maxDatagram = 1500

// maxMachine bounds a client's identifier of its machine, in bytes: a type and a UUID.
const maxMachine = 17

// leaseTime is the lease time in answers. It has no effect, because addresses never change.
const leaseTime = 24 * time.Hour

// errQuestion reports a datagram that no DHCP client sends.
var errQuestion = errors.New("not a DHCP message of a client on Ethernet in this subnet")

// The options of iPXE: a list of options, and one of those, which says that there is no second
// server to wait for.
const (
	optionIPXE      = 175
	optionNoPXEDHCP = 176
)

// An option of PXE (PXE 2.1, table 2-1) by which a client finds its boot server, its value for a
// client that fetches the file in the answer, and the end of the options of PXE.
const (
	optionDiscovery = 6
	fileIsNamed     = 8
	endOfPXE        = 255
)

// serveDHCP answers until the connection is closed.
func (s *Services) serveDHCP(conn net.PacketConn) error {
	return Receive(conn, maxDatagram, func(datagram []byte, _ netip.AddrPort) {
		if answer, to := s.answer(time.Now(), datagram, false); answer != nil {
			s.write(conn, answer, to)
		}
	}, nil)
}

// servePXE answers clients that have an address, and ask a proxy for the rest, until the connection
// is closed.
func (s *Services) servePXE(conn net.PacketConn) error {
	return Receive(conn, maxDatagram, func(datagram []byte, from netip.AddrPort) {
		if answer, _ := s.answer(time.Now(), datagram, true); answer != nil {
			s.write(conn, answer, net.UDPAddrFromAddrPort(from))
		}
	}, nil)
}

func (s *Services) write(conn net.PacketConn, answer []byte, to net.Addr) {
	if _, err := conn.WriteTo(answer, to); err != nil {
		s.log.Printf("boot: answer to %v: %v", to, err)
	}
}

// answer returns the answer to a datagram, and where it goes; nil if there is none. The datagram
// has come on DHCPPort or on PXEPort.
func (s *Services) answer(at time.Time, datagram []byte, pxe bool) ([]byte, net.Addr) {
	in, q, err := parse(datagram)
	q.PXE = pxe
	s.mu.Lock()
	if err != nil {
		s.leases.Malformed()
		s.mu.Unlock()
		s.log.Printf("boot: a datagram of %d bytes is ignored: %v", len(datagram), err)
		return nil, nil
	}
	s.mu.Unlock()
	if s.config.Proxy && !q.Boots {
		return nil, nil // the network has other stations, too
	}
	if q.Means != Nothing && s.locations[q.Means] == "" {
		q.Means, q.Why = Nothing, "this machine has no iPXE for its firmware"
	}
	if s.config.Asks != nil {
		if refusal := s.config.Asks(at, q); refusal != "" {
			s.log.Printf("boot: DHCP: %v: %s", q.MAC, refusal)
			return nil, nil
		}
	}
	s.mu.Lock()
	a := s.leases.Handle(at, s.config.Server.Addr(), q)
	if a.Leased && q.Means.configured() {
		s.grants.Arm(at, a.Host)
	}
	s.mu.Unlock()
	switch {
	case a.Refusal != "" && a.Known:
		s.log.Printf("boot: %v: DHCP: %s", a.Host, a.Refusal)
		s.reached(a.Host, Status{Stage: Asked, Why: a.Refusal})
	case a.Refusal != "":
		s.log.Printf("boot: DHCP: %s", a.Refusal)
	}
	switch {
	case !a.Leased:
	case q.Means.configured():
		s.reached(a.Host, Status{Stage: Entered})
	default:
		s.reached(a.Host, Status{Stage: Leased})
	}
	if a.Kind == Other {
		return nil, nil
	}
	out, err := s.reply(in, a, q.Means)
	if err != nil {
		s.log.Printf("boot: %v: DHCP: %v", a.Host, err)
		return nil, nil
	}
	if s.config.Send != nil && q.Means == ByScript {
		if err := s.config.Send(advertisement(s.config.MAC, a.Host.MAC)); err != nil {
			s.log.Printf("boot: %v: router advertisement: %v", a.Host, err)
		}
	}
	to := destination(in, a)
	if s.config.Broadcast || s.config.Proxy {
		to = everyone()
	}
	return out.ToBytes(), to
}

// parse reads a datagram, which is untrusted.
func parse(datagram []byte) (*dhcpv4.DHCPv4, Question, error) {
	in, err := dhcpv4.FromBytes(datagram)
	if err != nil {
		return nil, Question{}, err
	}
	// The answer to a relay (giaddr) would go to a network without nodes.
	if in.OpCode != dhcpv4.OpcodeBootRequest || in.HWType != iana.HWTypeEthernet || len(in.ClientHWAddr) != len(MAC{}) ||
		!in.GatewayIPAddr.IsUnspecified() {
		return nil, Question{}, errQuestion
	}
	client := Client{
		Class: string(in.Options.Get(dhcpv4.OptionClassIdentifier)),
		User:  string(in.Options.Get(dhcpv4.OptionUserClassInformation)),
		Archs: string(in.Options.Get(dhcpv4.OptionClientSystemArchitectureType)),
	}
	q := Question{MAC: MAC(in.ClientHWAddr), Boots: client.kind() != ""}
	q.Means, q.Why = client.Means()
	switch in.MessageType() {
	case dhcpv4.MessageTypeDiscover:
		q.Kind = Discover
	case dhcpv4.MessageTypeRequest:
		q.Kind = Request
	case dhcpv4.MessageTypeDecline:
		q.Kind = Decline
	}
	machine := in.Options.Get(dhcpv4.OptionClientMachineIdentifier)
	q.Machine = string(machine[:min(len(machine), maxMachine)])
	if q.UUID = uuid.FromOption(machine); q.UUID != (uuid.ID{}) { // firmware and its boot program may differ in the order
		key := q.UUID.Key()
		q.Machine = string(key[:])
	}
	q.Server, _ = netip.AddrFromSlice(in.ServerIdentifier().To4())
	if q.Wants, _ = netip.AddrFromSlice(in.RequestedIPAddress().To4()); !q.Wants.IsValid() {
		q.Wants, _ = netip.AddrFromSlice(in.ClientIPAddr.To4())
	}
	return in, q, nil
}

// reply builds an answer for a client that boots by some means.
func (s *Services) reply(in *dhcpv4.DHCPv4, a Answer, m Means) (*dhcpv4.DHCPv4, error) {
	server := net.IP(s.config.Server.Addr().AsSlice())
	modifiers := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(messageTypes[a.Kind]),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server)),
	}
	if a.Kind != Nak {
		modifiers = append(modifiers, dhcpv4.WithServerIP(server))
		modifiers = append(modifiers, bootOptions(in, m)...)
	}
	switch {
	case a.Kind == Nak:
	case s.config.Proxy && m == ByScript: // iPXE takes only such an answer for a proxy's
		modifiers = append(modifiers, dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClassIdentifier, []byte(classPXE))))
	case !s.config.Proxy:
		modifiers = append(modifiers,
			dhcpv4.WithYourIP(a.Host.Address.AsSlice()),
			dhcpv4.WithNetmask(net.CIDRMask(s.config.Server.Bits(), 32)),
			dhcpv4.WithLeaseTime(uint32(leaseTime.Seconds())),
		)
	}
	out, err := dhcpv4.NewReplyFromRequest(in, modifiers...)
	if err == nil && a.Kind != Nak {
		out.BootFileName = s.locations[m]
	}
	return out, err
}

// bootOptions are the options by which a client accepts an answer as one to boot from. Firmware
// wants its vendor class back (RFC 4578, section 3; UEFI 2.10, section 24.7.3.1), and a PXE the
// identifier of its machine.
func bootOptions(in *dhcpv4.DHCPv4, m Means) []dhcpv4.Modifier {
	with := func(code dhcpv4.OptionCode, value []byte) dhcpv4.Modifier {
		return dhcpv4.WithOption(dhcpv4.OptGeneric(code, value))
	}
	switch m {
	case ByScript:
		return []dhcpv4.Modifier{with(dhcpv4.GenericOptionCode(optionIPXE), dhcpv4.Options{optionNoPXEDHCP: []byte{1}}.ToBytes())}
	case ByItself:
		return nil
	case ByHTTP:
		return []dhcpv4.Modifier{with(dhcpv4.OptionClassIdentifier, []byte(classHTTP))}
	}
	all := []dhcpv4.Modifier{
		with(dhcpv4.OptionClassIdentifier, []byte(classPXE)),
		with(dhcpv4.OptionVendorSpecificInformation, append(dhcpv4.Options{optionDiscovery: []byte{fileIsNamed}}.ToBytes(), endOfPXE)),
	}
	if machine := in.Options.Get(dhcpv4.OptionClientMachineIdentifier); len(machine) > 0 {
		all = append(all, with(dhcpv4.OptionClientMachineIdentifier, machine[:min(len(machine), maxMachine)]))
	}
	return all
}

var messageTypes = map[Kind]dhcpv4.MessageType{
	Offer: dhcpv4.MessageTypeOffer, Ack: dhcpv4.MessageTypeAck, Nak: dhcpv4.MessageTypeNak,
}

// destination returns the address for an answer (RFC 2131, section 4.1): the client's, or broadcast
// if the client asks for that or gets no address.
func destination(in *dhcpv4.DHCPv4, a Answer) *net.UDPAddr {
	to := everyone()
	if a.Kind != Nak && !in.IsBroadcast() {
		to.IP = a.Host.Address.AsSlice()
	}
	return to
}

// everyone is the address of all DHCP clients.
func everyone() *net.UDPAddr { return &net.UDPAddr{IP: net.IPv4bcast.To4(), Port: dhcpv4.ClientPort} }
