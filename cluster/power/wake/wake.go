// Package wake switches nodes on by wake-on-LAN: a datagram that a network card knows its own
// address in. The card cannot answer, and cannot switch anything off.
package wake

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"

	"margay/cluster/power"
)

// copies is how many datagrams are sent, since any of them may be lost.
const copies = 3

// Everywhere is the address of all stations of the network that the default route of this host
// leads to.
var Everywhere = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// Card is the network card of a node. It implements power.Driver.
type Card struct {
	Address   net.HardwareAddr // 6 bytes
	Broadcast netip.AddrPort   // the address that the datagrams are sent to
}

// On implements power.Driver.
func (c Card) On(ctx context.Context) error {
	conn, err := new(net.Dialer).DialContext(ctx, "udp4", c.Broadcast.String())
	if err != nil {
		return fmt.Errorf("wake %v: %w", c.Address, err)
	}
	defer conn.Close()
	datagram := append(bytes.Repeat([]byte{0xff}, 6), bytes.Repeat(c.Address, 16)...)
	for range copies {
		if _, err := conn.Write(datagram); err != nil {
			return fmt.Errorf("wake %v: %w", c.Address, err)
		}
	}
	return nil
}

// Off implements power.Driver.
func (Card) Off(context.Context) error { return unsupported("switch a node off") }

// Reset implements power.Driver.
func (Card) Reset(context.Context) error { return unsupported("reset a node") }

// Status implements power.Driver.
func (Card) Status(context.Context) (power.State, error) {
	return power.Unknown, unsupported("show whether a node is on")
}

func unsupported(what string) error {
	return fmt.Errorf("wake-on-LAN cannot %s: %w", what, power.ErrUnsupported)
}
