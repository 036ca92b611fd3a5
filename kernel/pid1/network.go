package pid1

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"

	"margay/kernel/abi/node"
	"margay/kernel/neighbour"
)

// interfaceWait bounds how long PID 1 waits for the interface to the other nodes to appear.
const interfaceWait = 10 * time.Second

// lookPause is the time between two looks for further devices.
const lookPause = time.Second

// configureNetwork turns on loopback and gives the interface with the configured MAC its address.
// It returns the name of that interface. While the interface is not there, it calls look.
func configureNetwork(c node.Config, look func()) (name string, err error) {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return "", fmt.Errorf("network: loopback: %w", err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		return "", fmt.Errorf("network: turn on loopback: %w", err)
	}
	mac, err := net.ParseMAC(c.MAC)
	if err != nil {
		return "", err
	}
	nic, err := waitForLink(mac, look)
	if err != nil {
		return "", err
	}
	name = nic.Attrs().Name
	if c.MTU > 0 {
		if err := netlink.LinkSetMTU(nic, c.MTU); err != nil {
			return "", fmt.Errorf("network: set MTU %d of %s: %w", c.MTU, name, err)
		}
	}
	address, err := netlink.ParseAddr(c.Address)
	if err != nil {
		return "", err
	}
	if err := netlink.AddrReplace(nic, address); err != nil {
		return "", fmt.Errorf("network: give %s to %s: %w", c.Address, name, err)
	}
	if c.Substrate == node.Hosted {
		if err := neighbour.Quiet(new(netlink.Handle), nic); err != nil {
			return "", fmt.Errorf("network: %w", err)
		}
	}
	if err := netlink.LinkSetUp(nic); err != nil {
		return "", fmt.Errorf("network: turn on %s: %w", name, err)
	}
	return name, enterServe(c, nic)
}

// enterServe enters the hardware address of serve for good, where nodes do that (kernel/neighbour).
func enterServe(c node.Config, nic netlink.Link) error {
	serve, err := netip.ParseAddrPort(c.Serve)
	if err != nil {
		return err
	}
	if mac, ok := c.Neighbour(serve.Addr()); ok {
		return neighbour.Enter(nic.Attrs().Index, serve.Addr(), mac)
	}
	return nil
}

// waitForLink waits for the interface with the given MAC, and calls look until it is there.
func waitForLink(mac net.HardwareAddr, look func()) (netlink.Link, error) {
	looked := time.Now()
	deadline := looked.Add(interfaceWait)
	for {
		links, err := netlink.LinkList()
		if err != nil {
			return nil, fmt.Errorf("network: list interfaces: %w", err)
		}
		for _, l := range links {
			if bytes.Equal(l.Attrs().HardwareAddr, mac) {
				return l, nil
			}
		}
		if time.Now().After(deadline) {
			return nil, fmt.Errorf("network: no interface with MAC %s within %v (is its driver's module in the node image?)", mac, interfaceWait)
		}
		if time.Since(looked) > lookPause {
			look()
			looked = time.Now()
		}
		time.Sleep(20 * time.Millisecond)
	}
}
