package hosts

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"time"
)

// nameWait bounds how long Address looks for hosts by their names.
const nameWait = 5 * time.Second

// elsewhere is an address of no host (RFC 5737), by which the default route is found. Nothing is
// sent to it.
const elsewhere = "192.0.2.1"

// Address chooses the IPv4 address at which the hosts of a list can reach this host: the one from
// which this host reaches the first of them that is another host, or the one of the default route.
// If all hosts are this one, it is the loopback address.
func Address(list []string) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(context.Background(), nameWait)
	defer cancel()
	var local netip.Addr
	unknown := false
	for _, host := range list {
		_, name, found := strings.Cut(host, "@")
		if !found {
			name = host
		}
		from, err := sourceTo(ctx, name)
		if err == nil && !from.IsLoopback() {
			return from, nil
		}
		if err == nil {
			local = from
		} else {
			unknown = true
		}
	}
	if local.IsValid() && !unknown {
		return local, nil
	}
	from, err := sourceTo(context.Background(), elsewhere) // it is not a name, so there is no wait
	if err != nil {
		return from, errors.New("no address of this host is known to reach the others")
	}
	return from, nil
}

// sourceTo returns the address of this host that Linux sends from to another one.
func sourceTo(ctx context.Context, host string) (netip.Addr, error) {
	c, err := new(net.Dialer).DialContext(ctx, "udp4", net.JoinHostPort(host, "9"))
	if err != nil {
		return netip.Addr{}, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
