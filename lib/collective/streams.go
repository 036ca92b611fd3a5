package collective

import (
	"errors"
	"fmt"

	"margay/kernel/abi/wire"
)

// ErrMismatch reports that two ranks do not make the same calls.
var ErrMismatch = errors.New("the ranks of the job call different collective operations")

// mismatch is an error about a call of another rank and one of this rank. It wraps ErrMismatch.
type mismatch struct {
	where wire.Where
	own   wire.Call
}

func (m *mismatch) Error() string {
	return fmt.Sprintf("%v: %s; this rank is in call %d, %s", ErrMismatch, m.where, m.own.Number, m.own)
}

func (m *mismatch) Unwrap() error { return ErrMismatch }

// streams is what a rank has received from the others of a group and not used, and its credits.
type streams struct {
	peers []*peer // by place; nil: nothing was sent to it or came from it
}

// peer is another rank of the group.
type peer struct {
	flying uint32  // chunks sent to it and not returned
	chunks []chunk // that came from it and were not taken
	used   int     // bytes of the first one that were taken
	taken  uint32  // chunks from it that were taken and not returned
	asks   uint16  // the call in which it awaits this rank, and has got no answer; 0: none
}

type chunk struct {
	call    wire.Call
	payload []byte
}

func (s *streams) peer(place int) *peer {
	if s.peers[place] == nil {
		s.peers[place] = new(peer)
	}
	return s.peers[place]
}

// arrive takes a chunk or a credit. The payload is copied. The sender may have written anything;
// the error wraps wire.ErrChunk.
func (s *streams) arrive(source int, call wire.Call, payload []byte) error {
	p := s.peer(source)
	switch {
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

// hasCredit reports whether a chunk may be sent to a rank.
func (p *peer) hasCredit() bool { return p.flying < wire.CollectiveWindow }

// hasData reports whether data has come that was not taken.
func (p *peer) hasData() bool { return len(p.chunks) > 0 }

// owed returns the credit to return to that rank now, 0 for none.
func (p *peer) owed() uint32 {
	if p.taken < wire.CollectiveWindow/2 {
		return 0
	}
	return p.taken
}

// take moves data for a call to buf and returns the number of bytes, 0 if there is none. rank is
// the peer's, for the error, which wraps ErrMismatch.
func (p *peer) take(rank int, call wire.Call, buf []byte) (n int, err error) {
	for n < len(buf) && len(p.chunks) > 0 {
		first := &p.chunks[0]
		if first.call != call {
			return n, &mismatch{wire.Where{Rank: uint32(rank), Call: first.call}, call}
		}
		moved := copy(buf[n:], first.payload[p.used:])
		n += moved
		if p.used += moved; p.used == len(first.payload) {
			p.chunks, p.used = p.chunks[1:], 0
			p.taken++
		}
	}
	return n, nil
}
