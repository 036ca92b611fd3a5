package kernel

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/layout"
	"margay/kernel/abi/mirror"
	"margay/kernel/abi/node"
	"margay/kernel/border"
	"margay/kernel/fabric"
	"margay/kernel/fabric/tcp"
	"margay/kernel/fabric/udp"
	"margay/kernel/message"
)

// datagramHeaders are the headers of IPv4 and UDP, in bytes.
const datagramHeaders = 28

// commonMTU is an MTU in bytes that nearly all networks and tunnels have.
const commonMTU = 1400

// Membership is what makes a node a member of the fabric. All fields but Datagrams are required.
type Membership struct {
	Listener net.Listener // accepts other nodes; the node kernel's from then on
	// Datagrams carries the frames of the fabrics of node.Datagrams, and is the node kernel's from
	// then on. nil: it is another fabric.
	Datagrams *net.UDPConn
	Accept    *tls.Config // as the side that is connected to; must demand the peer's certificate
	Connect   *tls.Config // as the side that connects
	// Peer reads a node's number from the certificate that it has shown.
	Peer func(tls.ConnectionState) (id.Node, error)
	// Stream handles a stream that another node has opened, and closes it. It has a goroutine of
	// its own.
	Stream func(from id.Node, service string, c net.Conn)
}

// Join makes the node a member of the fabric. The node kernel opens the transport, which it has for
// the rest of its life, and gives it the addresses of the nodes of adopted jobs. It must be called
// once, after Adopt.
func (n *Node) Join(m Membership) {
	t := n.open(m)
	n.mu.Lock()
	n.transport = t
	for _, j := range n.jobs {
		n.meet(j.spec.Layout)
	}
	n.mu.Unlock()
	n.messages.Connect(t)
}

// open opens the transport that the node's configuration selects.
func (n *Node) open(m Membership) fabric.Transport {
	boot := n.config.Boot
	overTCP := func(h fabric.Handler) fabric.Transport {
		return tcp.New(m.Listener, tcp.Config{
			Self: boot.Node, Accept: m.Accept, Connect: m.Connect, Peer: m.Peer, Reach: n.reached, Log: n.config.Log, Handler: h,
			Patience: n.patience(),
		})
	}
	h := &network{node: n, stream: m.Stream}
	if m.Datagrams == nil {
		return overTCP(h)
	}
	return udp.New(m.Datagrams, udp.Config{
		Self: boot.Node, Streams: overTCP, Datagram: max(0, boot.MTU-datagramHeaders), Trusted: boot.Fabric == node.TrustedUDP,
		Handler: h, Log: n.config.Log,
	})
}

// hostedPatience is how long a hosted node waits for another one that opens a connection: with a
// thousand nodes at work on a host, each has a thousandth of its processors.
const hostedPatience = time.Minute

// patience returns how long this node waits for such a node; 0: as long as is usual.
func (n *Node) patience() time.Duration {
	if n.ownLinux() {
		return 0
	}
	return hostedPatience
}

// meets reports whether ranks of a job on several nodes meet without the node kernels. Unlike
// remote, it depends only on the settings that all nodes of a machine share. A node without
// mirrored channels carries its ranks' notes.
func (n *Node) meets(s JobSpec) bool {
	return node.TrustsWire(n.config.Boot.Fabric) && s.Layout.Nodes() > 1
}

// remote describes the nodes of a job to its mirrored channels; nil: there are none. Datagrams of
// ranks are neither encrypted nor authenticated, so only a trusted wire carries them.
func (n *Node) remote(s JobSpec) *message.Remote {
	boot, l := n.config.Boot, s.Layout
	largest := min(mirror.Most, cmp.Or(boot.MTU, commonMTU)-datagramHeaders)
	if !node.TrustsWire(boot.Fabric) || l.Nodes() < 2 || largest < mirror.Least {
		return nil
	}
	for _, run := range l.Condensed().Runs {
		if !run.Address.Addr().Unmap().Is4() {
			return nil
		}
	}
	address := func(node id.Node) netip.Addr {
		place, ok := l.PlaceOf(node)
		if !ok {
			return netip.Addr{}
		}
		return l.Address(place).Addr().Unmap()
	}
	return &message.Remote{Self: address(boot.Node), Ranks: l.Ranks(), Largest: largest, Address: func(rank id.Rank) netip.Addr {
		p, _ := l.Rank(rank)
		return address(p.Node)
	}}
}

// newBorder returns what runs extensions on the interface to the other nodes; nil:
// no messages arrive there that pass no node kernel, or this Linux is not the node's own.
func (n *Node) newBorder() *border.Border {
	if !n.ownLinux() || !node.TrustsWire(n.config.Boot.Fabric) {
		return nil
	}
	return border.New(border.Config{
		Interface: func() (string, int, error) {
			l, _, err := n.underlay()
			if err != nil {
				return "", 0, err
			}
			return l.Attrs().Name, l.Attrs().Index, nil
		},
		Chain:   n.extensions.OnInterface,
		Jobs:    n.config.Boot.Offload,
		Changed: func() { n.messages.Repath() },
		Keeper:  pid1Keeper{n.config.Link}, Log: n.config.Log,
	})
}

// followMessages has the extensions that decide about messages run where they can, after they have
// changed.
func (n *Node) followMessages(id.Job) {
	if n.border != nil {
		n.border.Follow()
	}
	n.messages.Repath()
}

// meet gives the transport, if there is one, the addresses of a job's nodes. The caller holds
// Node.mu.
func (n *Node) meet(l layout.Layout) {
	if n.transport == nil {
		return
	}
	for _, run := range l.Condensed().Runs {
		if slices.ContainsFunc(n.met, run.Within) {
			continue
		}
		for i := range run.Count {
			place, _ := l.PlaceOf(run.Node + id.Node(i))
			n.transport.Meet(l.Node(place), l.Address(place).String())
		}
		n.met = append(slices.DeleteFunc(n.met, run.Overlaps), run)
	}
}

// Stream opens a stream to a service of another node of a job. Before Join there is none.
func (n *Node) Stream(ctx context.Context, to id.Node, service string) (net.Conn, error) {
	n.mu.Lock()
	t := n.transport
	n.mu.Unlock()
	if t == nil {
		return nil, fmt.Errorf("stream to node%d: %w: this node has not joined the fabric", to, ErrLacks)
	}
	return t.Stream(ctx, to, service)
}

// network is the handler of the node's transport.
type network struct {
	node   *Node
	stream func(from id.Node, service string, c net.Conn)
}

var _ fabric.Handler = (*network)(nil)

func (h *network) Frame(from id.Node, b []byte) {
	if len(b) >= frame.HeaderSize && frame.KindOf(b) == frame.Exchange {
		h.node.exchanged(from, b)
		return
	}
	h.node.messages.Frame(from, b)
}

func (h *network) Broken(node id.Node, err error) {
	h.node.config.Log("connection to node%d: %v", node, err)
	h.node.messages.Broken(node)
}

func (h *network) Stream(from id.Node, service string, c net.Conn) { h.stream(from, service, c) }
