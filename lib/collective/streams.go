// Package collective has the algorithms of collective operations, without a way to send: the
// library of Go programs (lib/margay) brings that. lib/c/collective.c repeats it in C.
//
// All ranks of a job make the same calls in the same order. A call moves data along a binomial tree
// whose root is the call's. Ranks count from the root: place 0 is the root, and place p has the
// children p+1, p+2, p+4 and so on, below the lowest bit of p. So each subtree is a contiguous
// range of places, and a reduction combines in the order of places: the result depends on the
// operation, the values, the root and the number of ranks, and on nothing else.
//
// Data travels in chunks of at most wire.MaxPayload bytes (wire.Call). The chunks from one rank to
// another are a stream, whose order the system keeps, and each carries its call. A receiver keeps
// chunks that come before it makes their call. To bound that, a sender has at most
// wire.CollectiveWindow chunks in flight to each other rank, and the receiver returns credits when
// it takes chunks.
package collective

import (
	"errors"
	"fmt"

	"margay/kernel/abi/wire"
)

// ErrMismatch reports that two ranks do not make the same calls.
var ErrMismatch = errors.New("the ranks of the job call different collective operations")

// Streams is what a rank has received and not used, and its credits. It does no I/O and is not safe
// for concurrent use.
type Streams struct {
	peers []*peer // by rank; nil: nothing was sent to it or came from it
}

// peer is another rank.
type peer struct {
	flying uint32  // chunks sent to it and not returned
	chunks []chunk // that came from it and were not taken
	used   int     // bytes of the first one that were taken
	taken  uint32  // chunks from it that were taken and not returned
}

type chunk struct {
	call    wire.Call
	payload []byte
}

// NewStreams returns the streams of a rank in a job of size ranks.
func NewStreams(size int) *Streams { return &Streams{make([]*peer, size)} }

func (s *Streams) peer(rank int) *peer {
	if s.peers[rank] == nil {
		s.peers[rank] = new(peer)
	}
	return s.peers[rank]
}

// Arrive takes a message of wire.HandlerCollective. The payload is copied. The sender may have
// written anything; the error wraps wire.ErrChunk.
func (s *Streams) Arrive(source int, args [2]uint64, payload []byte) error {
	if source < 0 || source >= len(s.peers) {
		return fmt.Errorf("%w: it is from rank %d of %d", wire.ErrChunk, source, len(s.peers))
	}
	call, err := wire.ParseCall(args, len(payload), len(s.peers))
	if err != nil {
		return err
	}
	p := s.peer(source)
	switch {
	case call.Kind == wire.CallProbe:
	case call.Kind == wire.CallCredit:
		if call.Length > uint64(p.flying) {
			return fmt.Errorf("%w: credit for %d chunks, %d are in flight", wire.ErrChunk, call.Length, p.flying)
		}
		p.flying -= uint32(call.Length)
	case len(p.chunks)+int(p.taken) >= wire.CollectiveWindow:
		return fmt.Errorf("%w: more than %d chunks in flight", wire.ErrChunk, wire.CollectiveWindow)
	default:
		p.chunks = append(p.chunks, chunk{call, append([]byte(nil), payload...)})
	}
	return nil
}

// HasCredit reports whether a chunk may be sent to a rank.
func (s *Streams) HasCredit(target int) bool { return s.peer(target).flying < wire.CollectiveWindow }

// Spend spends the credit for a chunk to a rank, which there must be.
func (s *Streams) Spend(target int) { s.peer(target).flying++ }

// HasData reports whether data has come from a rank that was not taken.
func (s *Streams) HasData(source int) bool { return len(s.peer(source).chunks) > 0 }

// Take moves data that came from a rank for a call to buf and returns the number of bytes, 0 if
// there is none, and the credit to return to that rank, 0 for none. The error wraps ErrMismatch.
func (s *Streams) Take(source int, call wire.Call, buf []byte) (n int, credit uint32, err error) {
	p := s.peer(source)
	for n < len(buf) && len(p.chunks) > 0 {
		first := &p.chunks[0]
		if first.call != call {
			return n, 0, fmt.Errorf("%w: rank %d is in call %d, %s; this rank is in call %d, %s", ErrMismatch, source,
				first.call.Number, first.call, call.Number, call)
		}
		moved := copy(buf[n:], first.payload[p.used:])
		n += moved
		if p.used += moved; p.used == len(first.payload) {
			p.chunks, p.used = p.chunks[1:], 0
			p.taken++
		}
	}
	if p.taken >= wire.CollectiveWindow/2 {
		credit, p.taken = p.taken, 0
	}
	return n, credit, nil
}
