package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// PieceArgs is the size of a message's arguments in its first piece, in bytes.
const PieceArgs = 16

// Piece is a part of a message with more than MaxPayload bytes. A rank sends the pieces of a
// message to one target in order, and no pieces of another message to that target in between.
// Offset 0 begins a message. If pieces of the one before it are missing, its source has given that
// up. The number of the message keeps pieces of one whose first piece was stopped away from an
// older one that was given up. The arguments of the record are
//
//	0 u64: bytes of the message's payload in bits 0 to 31, offset of the piece's data in them in bits 32 to 63
//	1 u64: rank to which the message was sent in bits 0 to 31, its handler in bits 32 to 47, its number in 48 to 63
//
// The payload of the first piece is the two arguments of the message, PieceArgs bytes, and data; of
// the others, data. Each has at least a byte of data.
type Piece struct {
	Target  uint32 // differs from the receiver if the message was forwarded
	Handler uint16
	Number  uint16 // of the long messages of its source, wrapping
	Total   int
	Offset  int
	Args    [2]uint64 // of the message; in the first piece only
	Data    []byte
}

// First and Last report whether the piece is the first and the last one of its message.
func (p *Piece) First() bool { return p.Offset == 0 }
func (p *Piece) Last() bool  { return p.Offset+len(p.Data) == p.Total }

// WholeSize returns the bytes of the message that a record carries, and whether it is that message
// or its first piece. The record may be anything.
func WholeSize(handler uint16, args [2]uint64, payload int) (size uint32, first bool) {
	if handler == HandlerPiece {
		return uint32(args[0]), args[0]>>32 == 0
	}
	return uint32(payload), true
}

// laterPiece reports whether a message is a piece, and not a first one.
func laterPiece(r *Record) bool { return r.Handler == HandlerPiece && r.Args[0]>>32 != 0 }

// ErrPiece reports a message of HandlerPiece that makes no sense.
var ErrPiece = errors.New("part of a long message makes no sense")

// ParsePiece reads a message of HandlerPiece in a job of size ranks. The sender may have written
// anything. The error wraps ErrPiece.
func ParsePiece(args [2]uint64, payload []byte, size int) (Piece, error) {
	p := Piece{
		Target: uint32(args[1]), Handler: uint16(args[1] >> 32), Number: uint16(args[1] >> 48), Total: int(uint32(args[0])), Offset: int(args[0] >> 32), Data: payload,
	}
	if p.Offset == 0 && len(payload) > PieceArgs {
		p.Args = [2]uint64{binary.LittleEndian.Uint64(payload), binary.LittleEndian.Uint64(payload[8:])}
		p.Data = payload[PieceArgs:]
	} else if p.Offset == 0 {
		p.Data = nil
	}
	if uint64(p.Target) >= uint64(size) || p.Handler >= MaxHandlers || p.Total <= MaxPayload || p.Total > MaxMessage ||
		len(p.Data) == 0 || p.Offset+len(p.Data) > p.Total {
		return p, fmt.Errorf("%w: %d bytes at %d of %d for handler %d of rank %d", ErrPiece, len(p.Data), p.Offset, p.Total, p.Handler, p.Target)
	}
	return p, nil
}

// Long is a message of more than MaxPayload bytes that is being sent, or put together.
type Long struct {
	Peer    uint32
	Handler uint16
	Args    [2]uint64
	Payload []byte
	number  uint16
	sent    int  // bytes, or bytes that have arrived
	passes  bool // a piece has passed a node kernel, which may have decided about the message
}

// Done reports whether all pieces were sent.
func (l *Long) Done() bool { return l.sent == len(l.Payload) }

// next returns the next piece, with a payload of at most limit bytes, and how many bytes of the
// message it carries. A first piece is built in first.
func (l *Long) next(limit int, first *[]byte) (r Record, n int) {
	r = Record{
		Handler: HandlerPiece, Peer: l.Peer,
		Args: [2]uint64{uint64(len(l.Payload)) | uint64(l.sent)<<32, uint64(l.Peer) | uint64(l.Handler)<<32 | uint64(l.number)<<48},
	}
	if l.sent > 0 {
		n = min(limit, len(l.Payload)-l.sent)
		r.Payload = l.Payload[l.sent:][:n]
		return r, n
	}
	n = min(limit-PieceArgs, len(l.Payload))
	b := binary.LittleEndian.AppendUint64((*first)[:0], l.Args[0])
	b = binary.LittleEndian.AppendUint64(b, l.Args[1])
	*first = append(b, l.Payload[:n]...)
	r.Payload = *first
	return r, n
}

// batch is how many bytes of a long message are written before they are sent, where that takes a
// system call.
const batch = ChannelRing / 2

// PushLong sends pieces of a message while there is room, but not many before a process must be
// woken. It reports whether there was no room, and which process to wake. While another message to
// the same rank is in pieces, there is none. Behind a piece that has passed the node kernel all do:
// its extensions may have kept the first one from the rank.
func (o *Outlet) PushLong(l *Long) (full bool, wake int, err error) {
	switch o.longs[l.Peer] {
	case l:
	case nil:
		o.number++
		o.longs[l.Peer], l.number = l, o.number
	default:
		return true, WakeNobody, nil
	}
	to, wake := o.to[l.Peer], WakeNobody
	for begin := l.sent; !l.Done() && (wake == WakeNobody || wake < 0 && l.sent-begin < batch); {
		direct := o.directLong(to, l)
		if direct && wake == WakeKernel || !direct && wake == WakeMirror {
			break
		}
		r, n := l.next(o.limit(to, direct), &o.first)
		ok, whom, err := o.push(&r, to, direct)
		if !ok {
			return err == nil, wake, err
		}
		l.sent += n
		l.passes = !direct
		if whom != WakeNobody {
			wake = whom
		}
	}
	if l.Done() {
		delete(o.longs, l.Peer)
	}
	return false, wake, nil
}

// directLong is direct for the next piece of a message.
func (o *Outlet) directLong(to *outlet, l *Long) bool { return !l.passes && o.direct(to, HandlerPiece) }

// limit returns the size of the longest payload on a path.
func (o *Outlet) limit(to *outlet, direct bool) int {
	if direct {
		return to.limit
	}
	return MaxPayload
}

// room returns for how large a payload the message must wait for room, twice: for the next piece,
// or where that is a datagram for a batch, because a train takes hardly longer.
func (l *Long) room(to *outlet) int {
	if to.local != mirrored {
		return to.limit
	}
	return max(to.limit, min(batch/2, len(l.Payload)-l.sent))
}

// WaitLong is Wait for the next pieces of a message.
func (o *Outlet) WaitLong(l *Long) (wait bool) {
	if other := o.longs[l.Peer]; other != nil && other != l {
		return true
	}
	if to := o.to[l.Peer]; o.directLong(to, l) {
		return to.Wait(l.room(to))
	}
	return o.send.Wait(MaxPayload)
}

// GiveUp notes that no further pieces of a message will be sent. Its target drops those that have
// been sent when the next long message begins.
func (o *Outlet) GiveUp(l *Long) {
	if o.longs[l.Peer] == l {
		delete(o.longs, l.Peer)
	}
}

// mostIdle is how many buffers an Assembler keeps for later messages.
const mostIdle = 8

// Assembler puts long messages together from their pieces. It has at most one unfinished message
// for each source and each rank to which that has sent it. The zero value is empty. It is not safe
// for concurrent use.
type Assembler struct {
	unfinished map[[2]uint32]*Long // by source and target
	idle       [][]byte
}

// Arrive takes a piece from a source. If it completes a message, it returns that message, whose
// payload is valid until the next call. It ignores pieces of a message that did not begin: an
// extension may have stopped the first one on the interface, before the others took another way.
// The sender may have written anything; the error wraps ErrPiece.
func (a *Assembler) Arrive(source uint32, p *Piece) (l *Long, err error) {
	key := [2]uint32{source, p.Target}
	l = a.unfinished[key]
	switch {
	case p.First():
		if l != nil {
			a.release(l)
		}
		l = &Long{Peer: p.Target, Handler: p.Handler, Args: p.Args, Payload: a.buffer(p.Total), number: p.Number}
		if a.unfinished == nil {
			a.unfinished = make(map[[2]uint32]*Long)
		}
		a.unfinished[key] = l
	case l == nil || l.number != p.Number:
		return nil, nil
	case l.sent != p.Offset || len(l.Payload) != p.Total || l.Handler != p.Handler:
		return nil, fmt.Errorf("%w: %d bytes at %d of %d for handler %d do not continue it", ErrPiece, len(p.Data), p.Offset, p.Total, p.Handler)
	}
	l.sent += copy(l.Payload[p.Offset:], p.Data)
	if !l.Done() {
		return nil, nil
	}
	delete(a.unfinished, key)
	a.release(l)
	return l, nil
}

// buffer returns a buffer of a size.
func (a *Assembler) buffer(size int) []byte {
	for i, b := range a.idle {
		if cap(b) >= size {
			last := len(a.idle) - 1
			a.idle[i] = a.idle[last]
			a.idle = a.idle[:last]
			return b[:size]
		}
	}
	return make([]byte, size)
}

// release keeps the buffer of a message for another one.
func (a *Assembler) release(l *Long) {
	if len(a.idle) == mostIdle {
		a.idle = append(a.idle[:0], a.idle[1:]...) // the oldest, which may be too small
	}
	a.idle = append(a.idle, l.Payload)
}
