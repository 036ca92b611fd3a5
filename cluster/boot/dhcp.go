package boot

import (
	"errors"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"
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

// pause follows an error of a connection that is not its end.
const pause = 100 * time.Millisecond

// serveDHCP answers until the connection is closed.
func (s *Services) serveDHCP(conn net.PacketConn) error {
	buf := make([]byte, maxDatagram)
	for failed := 0; ; {
		n, _, err := conn.ReadFrom(buf)
		if err != nil {
			if failed++; errors.Is(err, net.ErrClosed) || failed == maxFailed {
				return err
			}
			time.Sleep(pause)
			continue
		}
		failed = 0
		answer, to := s.answer(time.Now(), buf[:n])
		if answer == nil {
			continue
		}
		if _, err := conn.WriteTo(answer, to); err != nil {
			s.log.Printf("boot: answer to %v: %v", to, err)
		}
	}
}

// maxFailed is the number of errors in a row after which a connection is given up.
const maxFailed = 10

// answer returns the answer to a datagram, and where it goes; nil if there is none.
func (s *Services) answer(at time.Time, datagram []byte) ([]byte, net.Addr) {
	in, q, err := parse(datagram)
	s.mu.Lock()
	if err != nil {
		s.leases.Malformed()
		s.mu.Unlock()
		s.log.Printf("boot: a datagram of %d bytes is ignored: %v", len(datagram), err)
		return nil, nil
	}
	a := s.leases.Handle(at, s.config.Server.Addr(), q)
	s.mu.Unlock()
	switch {
	case a.Refusal != "" && a.Known:
		s.log.Printf("boot: node%d: DHCP: %s", a.Host.Node, a.Refusal)
		s.reached(a.Host.Node, Status{Stage: Asked, Why: a.Refusal})
	case a.Refusal != "":
		s.log.Printf("boot: DHCP: %s", a.Refusal)
	}
	if a.Kind == Other {
		return nil, nil
	}
	out, err := s.reply(in, a)
	if err != nil {
		s.log.Printf("boot: node%d: DHCP: %v", a.Host.Node, err)
		return nil, nil
	}
	if s.config.Send != nil {
		if err := s.config.Send(advertisement(s.config.MAC, a.Host.MAC)); err != nil {
			s.log.Printf("boot: node%d: router advertisement: %v", a.Host.Node, err)
		}
	}
	if a.Kind == Ack {
		s.reached(a.Host.Node, Status{Stage: Leased})
	}
	return out.ToBytes(), destination(in, a)
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
	q := Question{MAC: MAC(in.ClientHWAddr), IPXE: userClass(in) == "iPXE"}
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
	q.Server, _ = netip.AddrFromSlice(in.ServerIdentifier().To4())
	if q.Wants, _ = netip.AddrFromSlice(in.RequestedIPAddress().To4()); !q.Wants.IsValid() {
		q.Wants, _ = netip.AddrFromSlice(in.ClientIPAddr.To4())
	}
	return in, q, nil
}

// userClass is the user class of a client that does not divide it into pieces, as iPXE does not.
func userClass(in *dhcpv4.DHCPv4) string {
	return string(in.Options.Get(dhcpv4.OptionUserClassInformation))
}

// reply builds an answer.
func (s *Services) reply(in *dhcpv4.DHCPv4, a Answer) (*dhcpv4.DHCPv4, error) {
	server := net.IP(s.config.Server.Addr().AsSlice())
	modifiers := []dhcpv4.Modifier{
		dhcpv4.WithMessageType(messageTypes[a.Kind]),
		dhcpv4.WithOption(dhcpv4.OptServerIdentifier(server)),
	}
	if a.Kind != Nak {
		noSecondServer := dhcpv4.Options{optionNoPXEDHCP: []byte{1}}.ToBytes()
		modifiers = append(modifiers,
			dhcpv4.WithYourIP(a.Host.Address.AsSlice()),
			dhcpv4.WithServerIP(server),
			dhcpv4.WithNetmask(net.CIDRMask(s.config.Server.Bits(), 32)),
			dhcpv4.WithLeaseTime(uint32(leaseTime.Seconds())),
			dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(optionIPXE), noSecondServer)),
		)
	}
	out, err := dhcpv4.NewReplyFromRequest(in, modifiers...)
	if err == nil && a.Kind != Nak {
		out.BootFileName = "http://" + s.config.Server.Addr().String() + ScriptPath
	}
	return out, err
}

var messageTypes = map[Kind]dhcpv4.MessageType{
	Offer: dhcpv4.MessageTypeOffer, Ack: dhcpv4.MessageTypeAck, Nak: dhcpv4.MessageTypeNak,
}

// destination returns the address for an answer (RFC 2131, section 4.1): the client's, or broadcast
// if the client asks for that or gets no address.
func destination(in *dhcpv4.DHCPv4, a Answer) net.Addr {
	to := &net.UDPAddr{IP: net.IPv4bcast.To4(), Port: dhcpv4.ClientPort}
	if a.Kind != Nak && !in.IsBroadcast() {
		to.IP = a.Host.Address.AsSlice()
	}
	return to
}
