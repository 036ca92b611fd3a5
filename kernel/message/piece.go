package message

import (
	"fmt"

	"margay/kernel/abi/frame"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/abi/wire"
	"margay/kernel/flow"
)

// longHops is how often a long message may be forwarded. Its target assembles one message at a time
// from each source and each rank to which that source has sent it. If a message took two ways from
// there, pieces of two messages could mix.
const longHops = 1

// stream is the pieces of long messages from one rank to another that arrive for a rank of this
// node.
type stream struct {
	source  id.Rank
	sent    uint32 // the rank to which the source has sent them
	arrived id.Rank
}

// decision is the verdict about the pieces of a long message.
type decision struct {
	verdict     slot.Verdict
	target      id.Rank
	number      uint16
	total, next int // bytes of the message, offset of its next piece
}

// continues reports whether a piece is the next one of the message.
func (d *decision) continues(p *wire.Piece) bool {
	return p.Number == d.number && p.Total == d.total && p.Offset == d.next
}

// judgePiece returns the verdict about a piece of a long message. The extensions decide about the
// message when its first piece comes; the other pieces share its verdict. Without a known verdict,
// because the first piece took a channel or this node kernel started after it, a piece is
// delivered: the rank ignores it if it does not have the first one. The source may have written
// anything; the error wraps wire.ErrPiece. The caller holds receiver.mu.
func (j *Job) judgePiece(o flow.Origin, m *frame.Message) (decision, error) {
	in := &j.receiver
	p, err := wire.ParsePiece(m.Args, m.Payload, len(j.place))
	if err == nil && m.Hops == 0 && p.Target != uint32(m.Target) {
		err = fmt.Errorf("%w: it was sent to rank %d", wire.ErrPiece, p.Target)
	}
	if err != nil {
		return decision{}, err
	}
	s := stream{m.Source, p.Target, m.Target}
	d, known := in.pieces[s]
	known = known && d.continues(&p)
	if p.First() {
		whole := *m
		whole.Handler, whole.Args, whole.Payload = p.Handler, p.Args, p.Data
		d.verdict, d.target = j.judge(o, &whole, p.Total, longHops)
		m.Used = whole.Used
		if d.verdict == slot.Upcall {
			d.verdict = slot.Deliver // it cannot interrupt before it is whole
		}
		known = d.verdict != slot.Deliver
	} else if !known {
		d.verdict = slot.Deliver
	}
	if known && !p.Last() {
		d.number, d.total, d.next = p.Number, p.Total, p.Offset+len(p.Data)
		in.pieces[s] = d
	} else {
		delete(in.pieces, s) // possibly the verdict about an abandoned message
	}
	return d, nil
}
