package metal

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"margay/cluster/boot"
)

// WatchPause is the time between two questions for other DHCP servers.
const WatchPause = 5 * time.Minute

// mostServers bounds how many other servers are reported each time.
const mostServers = 8

// Offer is what another DHCP server has answered.
type Offer struct {
	Server netip.Addr
	Boots  bool // it names something to boot
}

// Watch asks for an address as a machine that boots does, again and again until ctx ends, and
// reports each server other than this host that offers one, each time. Such a server can keep nodes
// from their boot, or give them something else to boot. An error says that it cannot be known.
func (w *Wire) Watch(ctx context.Context, own netip.Addr, report func(Offer)) error {
	conn, err := w.packets("", dhcpv4.ClientPort)
	if err != nil {
		return err
	}
	return watch(ctx, conn, w.MAC(), own, report)
}

// watch is Watch on a socket, which it closes.
func watch(ctx context.Context, conn net.PacketConn, mac boot.MAC, own netip.Addr, report func(Offer)) error {
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	var seen []Offer
	buf := make([]byte, 1500)
	for next := time.Now(); ctx.Err() == nil; {
		if now := time.Now(); !now.Before(next) {
			if err := ask(conn, mac); err != nil && ctx.Err() == nil {
				return err
			}
			next, seen = now.Add(WatchPause), nil
		}
		_ = conn.SetReadDeadline(next) // fails only on a closed connection, which the read notices
		n, from, err := conn.ReadFrom(buf)
		if late := net.Error(nil); err != nil && errors.As(err, &late) && late.Timeout() {
			continue
		}
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		sender, _ := netip.ParseAddrPort(from.String())
		offer := readOffer(buf[:n], sender.Addr().Unmap())
		if offer.Server.IsValid() && offer.Server != own && len(seen) < mostServers && !slices.Contains(seen, offer) {
			seen = append(seen, offer)
			report(offer)
		}
	}
	return nil
}

// ask sends a question as a PXE client does, so that servers that answer only those answer, too.
func ask(conn net.PacketConn, mac boot.MAC) error {
	question, err := dhcpv4.NewDiscovery(mac[:], dhcpv4.WithBroadcast(true),
		dhcpv4.WithOption(dhcpv4.OptGeneric(dhcpv4.OptionClassIdentifier, []byte("PXEClient:Arch:00007:UNDI:003000"))),
		dhcpv4.WithOption(dhcpv4.OptClientArch(iana.EFI_BC)))
	if err != nil {
		return err
	}
	_, err = conn.WriteTo(question.ToBytes(), &net.UDPAddr{IP: net.IPv4bcast, Port: boot.DHCPPort})
	return err
}

// readOffer reads a datagram from a sender, which is untrusted. If it is not an answer to a DHCP
// client, the offer has no server.
func readOffer(datagram []byte, sender netip.Addr) Offer {
	m, err := dhcpv4.FromBytes(datagram)
	if err != nil || m.OpCode != dhcpv4.OpcodeBootReply {
		return Offer{}
	}
	switch m.MessageType() {
	case dhcpv4.MessageTypeOffer, dhcpv4.MessageTypeAck, dhcpv4.MessageTypeNak:
	default:
		return Offer{}
	}
	o := Offer{sender, m.BootFileName != "" || m.Options.Has(dhcpv4.OptionBootfileName) || m.ClassIdentifier() != ""}
	if server, ok := netip.AddrFromSlice(m.ServerIdentifier().To4()); ok {
		o.Server = server
	}
	return o
}
