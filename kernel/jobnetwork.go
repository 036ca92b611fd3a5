package kernel

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"margay/internal/throwaway"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/node"
	"margay/kernel/neighbour"
	"margay/kernel/nftables"
)

// A job's network is a VXLAN (RFC 7348) of its own: on each of its nodes a device in the job's
// network namespace, whose packets travel in the node's UDP datagrams. The other nodes are entered
// in static tables: there is no learning, no address resolution and no flooding.
//
// The port is below 1024, so that no rank can take it, and datagrams to it are accepted only from
// such ports: ranks have sockets in the node's network namespace for mirrored channels, and could
// otherwise send forged packets from them.
const (
	jobNetworkPort = 478 // of UDP
	jobPortLow     = 512 // of the senders: the first
	jobPortHigh    = 1023

	jobInterface = "eth0"

	// vxlanHeaders are the headers of IPv4, UDP, VXLAN and Ethernet, in bytes.
	vxlanHeaders = 50

	// vxlanNumbers is the number of distinct network identifiers in a VXLAN header. noJobVXLAN is
	// the one that no job has.
	vxlanNumbers = 1 << 24
	noJobVXLAN   = 0
)

// jobSubnet is the network of each job. Jobs do not see each other's.
var jobSubnet = netip.MustParsePrefix("10.88.0.0/16")

// mostJobNodes is how many addresses the subnet has for nodes.
const mostJobNodes = 1<<16 - 2

// noPrefixRoute is IFA_F_NOPREFIXROUTE of linux/if_addr.h: no route to the subnet comes with an
// address.
const noPrefixRoute = 0x200

// jobAddress returns the address of the job's node at a place, and the hardware address.
func jobAddress(place int) (netip.Addr, net.HardwareAddr) {
	a := jobSubnet.Addr().As4()
	number := place + 1
	a[2], a[3] = byte(number>>8), byte(number)
	return netip.AddrFrom4(a), net.HardwareAddr{0x02, 0x4d, 0x47, 0, a[2], a[3]}
}

// Joined is the network of an allocation, which the steps that ask for it have. Of those there is
// one on a node at a time.
type Joined struct {
	Job    id.Job        // the allocation
	Layout layout.Layout // has its nodes
}

// networked reports whether the job has a network.
func (s JobSpec) networked() bool { return s.Network || s.PMI && s.Layout.Nodes() > 1 }

// network returns the job whose number its network has, and the nodes in that.
func (s JobSpec) network() (id.Job, layout.Layout) {
	if s.Joined != nil {
		return s.Joined.Job, s.Joined.Layout
	}
	return s.Job, s.Layout
}

// interfaces lists the interfaces of the job's network namespace.
func (s JobSpec) interfaces() []string {
	if s.networked() {
		return []string{"lo", jobInterface}
	}
	return []string{"lo"}
}

// hosts returns the job's /etc/hosts: its nodes, by the names of their hosts.
func (n *Node) hosts(s JobSpec) string {
	const localhost = "127.0.0.1 localhost\n"
	if !s.networked() {
		return localhost + fmt.Sprintf("127.0.0.1 %s\n", n.config.Boot.Hostname())
	}
	text := []byte(localhost)
	_, nodes := s.network()
	for place := range nodes.Nodes() {
		address, _ := jobAddress(place)
		text = fmt.Appendf(text, "%v %s\n", address, node.Config{Node: nodes.Node(place)}.Hostname())
	}
	return string(text)
}

// checkJobNetwork refuses a network that the job cannot have here.
func (n *Node) checkJobNetwork(s JobSpec) error {
	if !s.networked() {
		return nil
	}
	if host := n.config.Boot.Host; host != "" {
		return fmt.Errorf("a network for the job: %w: its devices need rights over the network of %s, which this node shares; "+
			"an MPI program runs here on one node", ErrLacks, host)
	}
	if fabric := cmp.Or(n.config.Boot.Fabric, node.TCP); !node.TrustsWire(fabric) {
		return fmt.Errorf("a network for the job: %w: its packets are neither encrypted nor authenticated, and the wire between the nodes is not trusted "+
			"(fabric %s; %s and %s trust it)", ErrLacks, fabric, node.TrustedTCP, node.TrustedUDP)
	}
	_, nodes := s.network()
	if nodes.Nodes() > mostJobNodes {
		return fmt.Errorf("a network for the job: %w: it has %d nodes, at most %d can have addresses", ErrLacks, nodes.Nodes(), mostJobNodes)
	}
	if _, ok := nodes.PlaceOf(n.config.Boot.Node); !ok {
		return errors.New("a network for the job: its nodes do not include this one")
	}
	return nil
}

// jobNetworks is what a node has once for the networks of its jobs, from the first one on.
type jobNetworks struct {
	mu      sync.Mutex
	guarded bool
	socket  *os.File // the namespace of the device that keeps the socket; nil: there is none
}

// guard makes the rule that keeps forged packets out of jobs' networks.
func (k *jobNetworks) guard() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.guarded {
		return nil
	}
	if err := nftables.DropUDP("margay", jobNetworkPort, jobPortHigh+1); err != nil {
		return err
	}
	k.guarded = true
	return nil
}

// keepSocket keeps Linux's socket of VXLAN open, by a device of no job. Linux closes the socket
// with the last device that uses it, and while it does so, nothing on the host can change a
// network. Nothing reaches the device, which is alone in a namespace without an address. An error
// changes nothing but this.
func (k *jobNetworks) keepSocket(own netip.Addr) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.socket != nil {
		return nil
	}
	space, err := newNetworkNamespace()
	if err != nil {
		return err
	}
	if err := openDevice(own, space); err != nil {
		space.Close()
		return err
	}
	k.socket = space
	return nil
}

// newNetworkNamespace makes a network namespace, which ends with the file.
func newNetworkNamespace() (space *os.File, err error) {
	made := make(chan struct{})
	throwaway.Go(func() {
		defer close(made)
		var handle netns.NsHandle
		if handle, err = netns.New(); err == nil {
			space = os.NewFile(uintptr(handle), "network namespace")
		}
	})
	<-made
	return space, err
}

// openDevice makes the device that keeps the socket open.
func openDevice(own netip.Addr, space *os.File) error {
	if err := netlink.LinkAdd(vxlan(own, noJobVXLAN, space)); err != nil {
		return err
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(space.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer inside.Close()
	link, err := inside.LinkByName(jobInterface)
	if err != nil {
		return err
	}
	if err := silence(inside, link); err != nil {
		return err
	}
	return inside.LinkSetUp(link)
}

// openJobNetwork makes the job's network on this node, if it has one. The device is made in the
// job's namespace and ends with it.
func (n *Node) openJobNetwork(ctx context.Context, j *job) error {
	if !j.spec.networked() {
		return nil
	}
	// Before the device, which would accept anything.
	if err := n.networks.guard(); err != nil {
		return fmt.Errorf("a network for the job: %w: this Linux takes no rule against forged packets: %w", ErrLacks, err)
	}
	space, err := j.container.NetworkNamespace()
	if err != nil {
		return err
	}
	defer space.Close()
	if err := n.makeJobDevice(ctx, j.spec, space); err != nil {
		return fmt.Errorf("a network for the job: %w", err)
	}
	if err := n.networks.keepSocket(n.config.Boot.Prefix().Addr()); err != nil {
		n.config.Log("jobs' networks: their socket is not kept open, so the end of one delays the next: %v", err)
	}
	return nil
}

// underlay returns the node's interface to the other nodes.
func (n *Node) underlay() (netlink.Link, netip.Addr, error) {
	own := n.config.Boot.Prefix().Addr()
	links, err := netlink.LinkList()
	if err != nil {
		return nil, own, err
	}
	for _, l := range links {
		addresses, err := netlink.AddrList(l, netlink.FAMILY_V4)
		if err != nil {
			return nil, own, err
		}
		for _, a := range addresses {
			if a.IP.Equal(own.AsSlice()) {
				return l, own, nil
			}
		}
	}
	return nil, own, fmt.Errorf("no interface has the node's address %v", own)
}

// vxlanNumber returns the network identifier of a job.
func vxlanNumber(job id.Job) int { return int(1 + (uint32(job)-1)%(vxlanNumbers-1)) }

// vxlan describes a device of this node for a namespace. All of them have one socket of Linux.
func vxlan(own netip.Addr, number int, space *os.File) *netlink.Vxlan {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Namespace = jobInterface, netlink.NsFd(space.Fd())
	return &netlink.Vxlan{
		LinkAttrs: attrs, VxlanId: number, SrcAddr: own.AsSlice(), Port: jobNetworkPort, PortLow: jobPortLow, PortHigh: jobPortHigh, NoAge: true,
	}
}

func (n *Node) makeJobDevice(ctx context.Context, s JobSpec, space *os.File) error {
	wire, own, err := n.underlay()
	if err != nil {
		return err
	}
	number, nodes := s.network()
	place, _ := nodes.PlaceOf(n.config.Boot.Node)
	_, mac := jobAddress(place)
	device := vxlan(own, vxlanNumber(number), space)
	device.MTU, device.HardwareAddr = wire.Attrs().MTU-vxlanHeaders, mac
	if err := addJobDevice(ctx, device, s.Joined != nil); err != nil {
		return fmt.Errorf("make its device: %w", lacking(err))
	}
	inside, err := netlink.NewHandleAt(netns.NsHandle(space.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter its namespace: %w", err)
	}
	defer inside.Close()
	link, err := inside.LinkByName(jobInterface)
	if err != nil {
		return fmt.Errorf("find its device: %w", err)
	}
	if err := setUpJobDevice(inside, link, place, nodes.Nodes()); err != nil {
		return err
	}
	var entries []jobEntry
	for at := range nodes.Nodes() {
		if at == place {
			continue
		}
		outer := nodes.Address(at).Addr().Unmap()
		if !outer.Is4() {
			return fmt.Errorf("add node%d: its address %v is not IPv4", nodes.Node(at), outer)
		}
		entries = append(entries, entriesOf(nodes.Node(at), link, at, outer)...)
		n.enterNeighbour(outer, func() (int, error) { return wire.Attrs().Index, nil })
	}
	socket, err := nl.GetNetlinkSocketAt(netns.NsHandle(space.Fd()), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("enter its namespace: %w", err)
	}
	defer socket.Close()
	return enterAll(socket, entries)
}

// Linux removes the devices of a network namespace some time after its last process has ended,
// later when it is busy.
const (
	deviceLeaves = 10 * time.Second
	devicePause  = 10 * time.Millisecond
)

// addJobDevice makes the device. In a joined network it waits until an earlier step's is gone, or
// ctx ends.
func addJobDevice(ctx context.Context, device *netlink.Vxlan, joined bool) error {
	for end := time.Now().Add(deviceLeaves); ; {
		err := netlink.LinkAdd(device)
		switch {
		case !joined || !errors.Is(err, unix.EEXIST):
			return err
		case time.Now().After(end):
			return errors.New("another step has the network of the allocation on this node, and one can have it at a time")
		}
		select {
		case <-time.After(devicePause):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lacking explains the error of a Linux without VXLAN.
func lacking(err error) error {
	if errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: this Linux has no VXLAN (module vxlan)", ErrLacks)
	}
	return err
}

// setUpJobDevice gives the device its address and turns it on. Linux asks for no hardware address
// on it, so that ranks cannot fill the node's table of neighbours with questions, and routes to the
// job's nodes alone.
func setUpJobDevice(inside *netlink.Handle, link netlink.Link, place, nodes int) error {
	if err := silence(inside, link); err != nil {
		return err
	}
	own, _ := jobAddress(place)
	address := &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(jobSubnet.Bits(), 32)}, Flags: noPrefixRoute}
	if err := inside.AddrAdd(link, address); err != nil {
		return fmt.Errorf("give it the address %v: %w", own, err)
	}
	if err := inside.LinkSetUp(link); err != nil {
		return fmt.Errorf("turn it on: %w", err)
	}
	for _, to := range jobRoutes(nodes) {
		route := &netlink.Route{
			LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), 32)},
		}
		if err := inside.RouteAdd(route); err != nil {
			return fmt.Errorf("route to %v: %w", to, err)
		}
	}
	return nil
}

// silence keeps Linux from sending packets of its own on the device.
func silence(inside *netlink.Handle, link netlink.Link) error {
	if err := inside.LinkSetARPOff(link); err != nil {
		return fmt.Errorf("turn off ARP: %w", err)
	}
	return neighbour.Quiet(inside, link)
}

// jobRoutes returns the prefixes that have the addresses of so many nodes, and no others. They are
// few, because programs read all routes: each rank with UCX does so 84 times.
func jobRoutes(nodes int) (routes []netip.Prefix) {
	for place := 0; place < nodes; {
		first, _ := jobAddress(place)
		size := bits.TrailingZeros(uint(place + 1))
		for 1<<size > nodes-place {
			size--
		}
		routes = append(routes, netip.PrefixFrom(first, 32-size))
		place += 1 << size
	}
	return routes
}

// jobEntry is a request to Linux for an entry about another node of the job.
type jobEntry struct {
	node    id.Node
	request *nl.NetlinkRequest
}

// entriesOf returns what enters a node in the tables: the destination of its packets, and the
// hardware address of its address.
func entriesOf(node id.Node, link netlink.Link, place int, outer netip.Addr) []jobEntry {
	address, mac := jobAddress(place)
	entry := func(flags int, family uint8, own uint8, to netip.Addr) jobEntry {
		r := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|flags)
		r.AddData(&netlink.Ndmsg{Family: family, Index: uint32(link.Attrs().Index), State: netlink.NUD_PERMANENT, Flags: own})
		r.AddData(nl.NewRtAttr(netlink.NDA_DST, to.AsSlice()))
		r.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, mac))
		return jobEntry{node, r}
	}
	return []jobEntry{entry(unix.NLM_F_APPEND, unix.AF_BRIDGE, netlink.NTF_SELF, outer), entry(unix.NLM_F_REPLACE, unix.AF_INET, 0, address)}
}

// entriesAtOnce is how many entries are one message to Linux. One by one they would cost twice as
// much.
const entriesAtOnce = 256

// enterAll sends requests to Linux and returns the error of the first that fails.
func enterAll(socket *nl.NetlinkSocket, entries []jobEntry) error {
	if err := socket.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		return err
	}
	for some := range slices.Chunk(entries, entriesAtOnce) {
		var all []byte
		for i, e := range some {
			e.request.Seq = uint32(i)
			if i == len(some)-1 {
				e.request.Flags |= unix.NLM_F_ACK // others are answered only if they fail
			}
			all = append(all, e.request.Serialize()...)
		}
		if err := unix.Sendto(socket.GetFd(), all, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
			return fmt.Errorf("add its other nodes: %w", err)
		}
		if err := answersTo(socket, some); err != nil {
			return err
		}
	}
	return nil
}

// answersTo reads answers until that to the last entry.
func answersTo(socket *nl.NetlinkSocket, entries []jobEntry) error {
	for {
		messages, _, err := socket.Receive()
		if err != nil {
			return fmt.Errorf("add its other nodes: %w", err)
		}
		for _, m := range messages {
			at := int(m.Header.Seq)
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 || at >= len(entries) {
				continue
			}
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 {
				return fmt.Errorf("add node%d: %w", entries[at].node, unix.Errno(-code))
			}
			if at == len(entries)-1 {
				return nil
			}
		}
	}
}
