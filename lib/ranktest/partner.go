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
	long   *wire.Long // that is being sent; nil: none
	pieces wire.Assembler
	passed [2]int // by rank: offset of the piece that must pass the node kernel next; 0: none

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

// carries notes that the node kernel carries a message of a rank. Behind a piece of a long message
// it gets all others: it may have decided that the message goes elsewhere.
func (p *partner) carries(rank int, r *wire.Record) {
	p.t.Helper()
	if r.Handler != wire.HandlerPiece {
		return
	}
	piece, err := wire.ParsePiece(r.Args, r.Payload, 2)
	if err != nil {
		p.t.Fatal(err)
	}
	if expected := p.passed[rank]; expected != 0 && piece.Offset != expected {
		p.t.Fatalf("of a message of rank %d that passes the node kernel, the piece at %d took a channel", rank, expected)
	}
	if p.passed[rank] = piece.Offset + len(piece.Data); piece.Last() {
		p.passed[rank] = 0
	}
}

// push sends the rank a message and reports whether it has, and which process to wake. A long
// message takes several calls.
func (p *partner) push(r wire.Record) (ok bool, wake int) {
	p.t.Helper()
	var err error
	if len(r.Payload) <= wire.MaxPayload {
		ok, wake, err = p.out.Push(&r)
	} else {
		if p.long == nil {
			p.long = &wire.Long{Peer: r.Peer, Handler: r.Handler, Args: r.Args, Payload: r.Payload}
		}
		_, wake, err = p.out.PushLong(p.long)
		if ok = p.long.Done(); ok {
			p.long = nil
		}
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return ok, wake
}

// next returns the next message of the rank, if there is one that is whole, and the local rank to
// wake, as wire.Inlet.Done does.
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
	wake = p.in.Done()
	if r.Handler != wire.HandlerPiece {
		return r, wake, true
	}
	piece, err := wire.ParsePiece(r.Args, r.Payload, 2)
	if err != nil {
		p.t.Fatal(err)
	}
	l, err := p.pieces.Arrive(r.Peer, &piece)
	if err != nil {
		p.t.Fatal(err)
	}
	if l == nil {
		return r, wake, false
	}
	r.Handler, r.Args, r.Payload = l.Handler, l.Args, l.Payload
	return r, wake, true
}

// talk is a conversation with a rank in the mode echo, which sends back each message.
type talk struct {
	t         *testing.T
	pass      func(wire.Record) bool          // sends the rank a message, if there is room
	take      func() (r wire.Record, ok bool) // returns the next message of the rank, if there is one
	sent, got int
	next      []byte // payload of the next message, if it is long and there was no room for all of it
}

// message is the next message to the rank.
func (c *talk) message() wire.Record {
	return wire.Record{Handler: 1, Args: [2]uint64{uint64(c.sent), 1 << 40}, Payload: c.payload(c.sent)}
}

// longEach is how many messages of a talk there are for a long one.
const longEach = 512

// longSizes are the sizes of the long messages of a talk, in their order.
var longSizes = [...]int{
	wire.MaxPayload + 1, wire.MaxMessage, wire.ChannelPayload, wire.ChannelPayload + 1, 3 * wire.ChannelRing, 20_000, wire.ChannelRing, 1300, 100_001,
}

// payload is the payload of the i-th message of a talk.
func (c *talk) payload(i int) []byte {
	if i%longEach != longEach/4 {
		return payload(i)
	}
	if i == c.sent && c.next != nil {
		return c.next
	}
	b := make([]byte, longSizes[i/longEach%len(longSizes)])
	for j := range b {
		b[j] = byte(i + j + j>>8)
	}
	if i == c.sent {
		c.next = b
	}
	return b
}

// send sends the next message, if there is room.
func (c *talk) send() {
	if c.pass(c.message()) {
		c.sent++
		c.next = nil
	}
}

// receive takes the next message that the rank has sent back and checks that it is whole and in
// order. It reports whether there was one.
func (c *talk) receive() bool {
	r, ok := c.take()
	if !ok {
		return false
	}
	if r.Handler != 2 || r.Peer != 1 || r.Node != 2 || r.Args != [2]uint64{uint64(c.got), 1<<40 + 1} || !bytes.Equal(r.Payload, c.payload(c.got)) {
		c.t.Fatalf("message %d comes back with %d bytes for handler %d, arguments %x", c.got, len(r.Payload), r.Handler, r.Args)
	}
	c.got++
	return true
}
