package ranktest

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"margay/kernel/abi/wire"
)

// partner is the other rank of a job of two, played by the test.
type partner struct {
	*Kernel
	random *rand.Rand
	own    *wire.Area
	out    *wire.Outlet
	in     *wire.Inlet

	// The node kernel's ends of its rings.
	sent     *wire.Consumer
	received *wire.Producer
}

// newPartner makes the other rank beside k's, with its header. nodes has the nodes of both.
func newPartner(k *Kernel, header wire.Header, nodes []uint32, random *rand.Rand) partner {
	k.t.Helper()
	_, mem := mapped(k.t, "area", wire.AreaSize(2))
	own, err := wire.NewArea(mem, header, nodes)
	if err != nil {
		k.t.Fatal(err)
	}
	return partner{
		Kernel: k, random: random, own: own, out: wire.NewOutlet(own, k.board, header), in: wire.NewInlet(own, k.board, header),
		sent: own.SendConsumer(), received: own.ReceiveProducer(),
	}
}

// setPath publishes the path word of both ranks.
func (p *partner) setPath(bits uint32) {
	p.area.Path().Store(bits)
	p.own.Path().Store(bits)
}

// next returns the next message of the rank, if there is one, and the local rank to wake, as
// wire.Inlet.Done does.
func (p *partner) next() (r wire.Record, wake int, ok bool) {
	p.t.Helper()
	r, ok, err := p.in.Next()
	if err != nil {
		p.t.Fatal(err)
	}
	if !ok {
		return r, wire.WakeNobody, false
	}
	r.Payload = bytes.Clone(r.Payload)
	return r, p.in.Done(), true
}

// talk is a conversation with a rank in the mode echo, which sends back each message.
type talk struct {
	t         *testing.T
	pass      func(wire.Record) bool          // sends the rank a message, if there is room
	take      func() (r wire.Record, ok bool) // returns the next message of the rank, if there is one
	sent, got int
}

// message is the next message to the rank.
func (c *talk) message() wire.Record {
	return wire.Record{Handler: 1, Args: [2]uint64{uint64(c.sent), 1 << 40}, Payload: payload(c.sent)}
}

// send sends the next message, if there is room.
func (c *talk) send() {
	if c.pass(c.message()) {
		c.sent++
	}
}

// receive takes the next message that the rank has sent back and checks that it is whole and in
// order. It reports whether there was one.
func (c *talk) receive() bool {
	r, ok := c.take()
	if !ok {
		return false
	}
	if r.Handler != 2 || r.Peer != 1 || r.Node != 2 || r.Args != [2]uint64{uint64(c.got), 1<<40 + 1} || !bytes.Equal(r.Payload, payload(c.got)) {
		c.t.Fatalf("message %d comes back as %+v", c.got, r)
	}
	c.got++
	return true
}
