package kernel

import (
	"context"
	"crypto/tls"
	"net"

	"margay/kernel/abi/id"
	"margay/kernel/fabric"
	"margay/kernel/fabric/tcp"
)

// Membership is what makes a node a member of the fabric. All fields are required.
type Membership struct {
	Listener net.Listener // accepts other nodes; the node kernel's from then on
	Accept   *tls.Config  // as the side that is connected to; must demand the peer's certificate
	Connect  *tls.Config  // as the side that connects
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
	t := tcp.New(m.Listener, tcp.Config{
		Self: n.config.Boot.Node, Accept: m.Accept, Connect: m.Connect, Peer: m.Peer, Log: n.config.Log,
		Handler: &network{node: n, stream: m.Stream},
	})
	n.mu.Lock()
	n.transport = t
	for _, j := range n.jobs {
		n.meet(j.spec.Members)
	}
	n.mu.Unlock()
	n.messages.Connect(t)
}

// meet gives the transport, if there is one, the addresses of a job's nodes. The caller holds
// Node.mu.
func (n *Node) meet(members []Member) {
	if n.transport == nil {
		return
	}
	for _, m := range members {
		n.transport.Meet(m.Node, m.Address)
	}
}

// Stream opens a stream to a service of another node of a job. Join must have been called.
func (n *Node) Stream(ctx context.Context, to id.Node, service string) (net.Conn, error) {
	n.mu.Lock()
	t := n.transport
	n.mu.Unlock()
	return t.Stream(ctx, to, service)
}

// network is the handler of the node's transport.
type network struct {
	node   *Node
	stream func(from id.Node, service string, c net.Conn)
}

var _ fabric.Handler = (*network)(nil)

func (h *network) Frame(from id.Node, frame []byte) { h.node.messages.Frame(from, frame) }

func (h *network) Broken(node id.Node, err error) {
	h.node.config.Log("connection to node%d: %v", node, err)
	h.node.messages.Broken(node)
}

func (h *network) Stream(from id.Node, service string, c net.Conn) { h.stream(from, service, c) }
