package peer

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"margay/internal/throwaway"
)

// device is the name of the device of each node of a Network.
const device = "v0"

// Network is a bridge with nodes, each a network namespace. It ends with Close, or with this
// process.
type Network struct {
	nodes []*os.File // their namespaces
	joint *os.File   // the bridge's, which would end with its last reference
}

// NewNetwork makes a network of n nodes. Only root may.
func NewNetwork(n int) (*Network, error) {
	w := new(Network)
	done := make(chan error)
	throwaway.Go(func() { done <- w.make(n) }) // it leaves its namespace
	if err := <-done; err != nil {
		_ = w.Close() // some are missing
		return nil, fmt.Errorf("make network of %d nodes: %w", n, err)
	}
	return w, nil
}

// make makes all namespaces. It leaves the thread in another one.
func (w *Network) make(n int) error {
	for range n {
		node, err := newNamespace()
		if err != nil {
			return err
		}
		w.nodes = append(w.nodes, node)
	}
	var err error
	if w.joint, err = newNamespace(); err != nil {
		return err
	}
	bridge := &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = "bridge"
	if err := netlink.LinkAdd(bridge); err != nil {
		return fmt.Errorf("bridge: %w", err)
	}
	if err := netlink.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("turn on bridge: %w", err)
	}
	for i, node := range w.nodes {
		if err := plugIn(bridge, i, node); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	for i, node := range w.nodes {
		if err := configure(i, node); err != nil {
			return fmt.Errorf("node %d: %w", i, err)
		}
	}
	return nil
}

// newNamespace moves the thread into a new network namespace.
func newNamespace() (*os.File, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("unshare network: %w", err)
	}
	return os.Open("/proc/thread-self/ns/net")
}

// plugIn joins a node with the bridge in the namespace of the thread.
func plugIn(bridge *netlink.Bridge, i int, node *os.File) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = fmt.Sprintf("port%d", i), bridge.Attrs().Index
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: device, PeerNamespace: netlink.NsFd(node.Fd())}
	if err := netlink.LinkAdd(veth); err != nil {
		return fmt.Errorf("veth: %w", err)
	}
	return netlink.LinkSetUp(veth)
}

// configure turns on the devices of a node. It leaves the thread there.
func configure(i int, node *os.File) error {
	if err := unix.Setns(int(node.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter: %w", err)
	}
	for _, name := range []string{"lo", device} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if name == device {
			address := &net.IPNet{IP: address(i), Mask: net.CIDRMask(24, 32)}
			if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: address}); err != nil {
				return fmt.Errorf("address: %w", err)
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return fmt.Errorf("turn on %s: %w", name, err)
		}
	}
	return nil
}

// address is the address of a node.
func address(i int) net.IP { return net.IPv4(10, 99, 0, byte(i+1)) }

// Enter returns the beginning of a command line that runs a command on a node.
func (w *Network) Enter(i int) []string {
	return []string{"nsenter", "--net=" + w.path(i)}
}

// path is the file of a node's namespace. It exists as long as this process.
func (w *Network) path(i int) string {
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), w.nodes[i].Fd())
}

// Close ends the network when the last process has left it.
func (w *Network) Close() error {
	var errs []error
	for _, namespace := range append(w.nodes, w.joint) {
		errs = append(errs, namespace.Close())
	}
	return errors.Join(errs...)
}
