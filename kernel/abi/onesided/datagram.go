// Package onesided carries one-sided operations on windows (package wire) from a rank straight to
// the rank of the window, or to its node kernel, without the node kernel of the rank that asks. A
// request is a datagram that the rank sends from its socket for mirrored channels (package mirror),
// and so is its answer.
//
// Requester is the asking side of the protocol, and Journal the other one, both as state machines
// without I/O: datagrams and the time are passed in, and datagrams that are due come out. A rank
// has one Requester for each rank of another node whose windows it uses. Each Journal has two
// servers: the library of the window's rank carries out requests while the rank polls or waits, and
// its node kernel at any time.
//
// A requester asks the window's rank as long as that answers within a moment. If it does not,
// because it computes or has not mapped the window, and at first, the requester asks the node
// kernel. The rank then gets a copy of one request at times, after a pause that doubles each time.
// If it answers the copy within that moment, it is asked from then on.
//
// A request may wait for a rank that has begun to compute while the requester computes, too, and so
// does not notice. The node kernel looks for these in the rank's socket (package channel, Peek). So
// what changes memory takes effect although neither rank calls its library.
//
// # Datagrams
//
// All numbers are little-endian. A request has RequestSize bytes and its data:
//
//	 0 u16 0x4d57
//	 2 u8  version, 1
//	 3 u8  kind (wire.RemoteKind)
//	 4 u32 rank that asks
//	 8 u32 rank of the window
//	12 u8  window
//	13 u8  0
//	14 u16 bytes of a get, 1 to MaxData; otherwise of the data
//	16 u64 key of the window's rank's end of the mirrored channels
//	24 u64 number of the request, counted from 1
//	32 u64 offset in the window
//	40 data of a put, or words of an atomic access as in wire.RemoteKind
//
// An answer has AnswerSize bytes and data:
//
//	 0 u16 0x4d57
//	 2 u8  version, 1
//	 3 u8  kind, wire.RemoteReply
//	 4 u32 rank that has asked
//	 8 u32 rank of the window
//	12 u8  flags: 1 says that a request has come whose predecessor has not
//	13 u8  0
//	14 u16 bytes of data
//	16 u64 key of the asking rank's end of the mirrored channels
//	24 u64 number of the request that the data answer; 0: there are none
//	32 u64 number of the last request that was carried out
//	40 u64 bit N%64: request N, of the last 64, was refused: there is no such window
//	48 u64 the same: it was refused because it is not all in the window, or not aligned
//	56 data of a get, or the word that was there before an atomic access
//
// Both sides compare the source address of a datagram and its key with those that their node
// kernels have exchanged. So a rank can speak for itself only.
//
// # Reliability
//
// Requests are carried out in the order of their numbers, each once, by either server. A server
// that finds the other one at work says that nothing was done. A request that comes again is
// answered again: an atomic access from the journal, and a get from the memory. That is the same
// memory as for the first time, because a requester sends nothing that changes memory while a get
// is not answered. At most Outstanding requests are not answered. The requester sends them again
// from the first when a time-out ends, or when an answer says that a predecessor is missing.
//
// # Restarts
//
// The journal is memory that both servers map and that outlives the node kernel. It has the server
// at work, the number of the last request of the requester, its refusals, and the results of its
// atomic accesses. Before an atomic access the journal gets the number of that request. If the node
// kernel is killed before it has noted the result, it is not known whether the access was made, and
// the job must end. Puts and gets can be carried out again. Each datagram is a whole operation, so
// no put is carried out in part. A rank that is killed ends the job. When one has ended well, the
// node kernel takes the journal, in which it may have been at work (Abandon). One that is stopped
// at work holds up the requests of that requester until it goes on.
package onesided

import (
	"encoding/binary"
	"errors"
	"fmt"

	"margay/kernel/abi/wire"
)

// Sizes in bytes.
const (
	RequestSize = 40
	AnswerSize  = 56

	// Most is the size of the largest datagram.
	Most = 1472
	// MaxData bounds the data of a datagram.
	MaxData = Most - AnswerSize
)

// Outstanding bounds the requests of a requester that are not answered.
const Outstanding = 64

// Parts of the datagrams.
const (
	magic   = 0x4d57
	version = 1
	flagGap = 1
)

// Pair names the rank that asks and the rank of the window.
type Pair struct{ Source, Target uint32 }

// Request is an operation on a window.
type Request struct {
	Pair
	Kind   wire.RemoteKind // not wire.RemoteReply
	Window uint8
	Length uint16
	Key    uint64
	Number uint64
	Offset uint64
}

// Answer says how far the requests of a requester are carried out.
type Answer struct {
	Pair
	Gap      bool // a request is missing
	Key      uint64
	Number   uint64 // of the request that the data answer; 0: there are none
	Done     uint64 // number of the last request that was carried out
	NoWindow uint64 // bits of refused requests, as Outside
	Outside  uint64
}

// ErrDatagram reports bytes that are not a datagram of this package.
var ErrDatagram = errors.New("onesided: malformed datagram")

// Is reports whether a datagram is of this package and not of package mirror.
func Is(b []byte) bool { return len(b) >= 2 && binary.LittleEndian.Uint16(b) == magic }

// IsAnswer reports whether a datagram of this package is an answer, and not a request.
func IsAnswer(b []byte) bool { return Is(b) && len(b) >= AnswerSize && b[3] == byte(wire.RemoteReply) }

// Append appends the header of a request to b.
func (q *Request) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, magic)
	b = append(b, version, byte(q.Kind))
	b = le.AppendUint32(b, q.Source)
	b = le.AppendUint32(b, q.Target)
	b = append(b, q.Window, 0)
	b = le.AppendUint16(b, q.Length)
	b = le.AppendUint64(b, q.Key)
	b = le.AppendUint64(b, q.Number)
	return le.AppendUint64(b, q.Offset)
}

// head checks what both kinds of datagram have.
func head(b []byte, size int) error {
	if len(b) < size || len(b) > Most {
		return fmt.Errorf("%w: %d bytes", ErrDatagram, len(b))
	}
	if !Is(b) || b[2] != version {
		return fmt.Errorf("%w: it begins with %x", ErrDatagram, b[:4])
	}
	return nil
}

// ParseRequest reads a request, which may be anything. The data are a part of b.
func ParseRequest(b []byte) (q Request, data []byte, err error) {
	if err := head(b, RequestSize); err != nil {
		return q, nil, err
	}
	le := binary.LittleEndian
	q = Request{
		Kind: wire.RemoteKind(b[3]), Pair: Pair{le.Uint32(b[4:]), le.Uint32(b[8:])}, Window: b[12], Length: le.Uint16(b[14:]),
		Key: le.Uint64(b[16:]), Number: le.Uint64(b[24:]), Offset: le.Uint64(b[32:]),
	}
	data = b[RequestSize:]
	length, sound := int(q.Length), false
	switch q.Kind {
	case wire.RemotePut:
		sound = length == len(data) && length > 0 && length <= MaxData
	case wire.RemoteGet:
		sound = len(data) == 0 && length > 0 && length <= MaxData
	case wire.RemoteAdd:
		sound = length == len(data) && length == 8
	case wire.RemoteSwap:
		sound = length == len(data) && length == 16
	}
	if !sound || b[13] != 0 || q.Number == 0 {
		return q, nil, fmt.Errorf("%w: kind %d, number %d, %d bytes, %d of data", ErrDatagram, q.Kind, q.Number, q.Length, len(data))
	}
	return q, data, nil
}

// Append appends the answer to b.
func (a *Answer) Append(b, data []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, magic)
	b = append(b, version, byte(wire.RemoteReply))
	b = le.AppendUint32(b, a.Source)
	b = le.AppendUint32(b, a.Target)
	b = append(b, 0, 0)
	if a.Gap {
		b[len(b)-2] = flagGap
	}
	b = le.AppendUint16(b, uint16(len(data)))
	for _, word := range []uint64{a.Key, a.Number, a.Done, a.NoWindow, a.Outside} {
		b = le.AppendUint64(b, word)
	}
	return append(b, data...)
}

// ParseAnswer reads an answer, which may be anything. The data are a part of b.
func ParseAnswer(b []byte) (a Answer, data []byte, err error) {
	if err := head(b, AnswerSize); err != nil {
		return a, nil, err
	}
	le := binary.LittleEndian
	data = b[AnswerSize:]
	if wire.RemoteKind(b[3]) != wire.RemoteReply || b[12]&^flagGap != 0 || b[13] != 0 || int(le.Uint16(b[14:])) != len(data) {
		return a, nil, fmt.Errorf("%w: kind %d, flags %#x, %d bytes of data", ErrDatagram, b[3], b[12], len(data))
	}
	return Answer{
		Pair: Pair{le.Uint32(b[4:]), le.Uint32(b[8:])}, Gap: b[12] == flagGap, Key: le.Uint64(b[16:]), Number: le.Uint64(b[24:]),
		Done: le.Uint64(b[32:]), NoWindow: le.Uint64(b[40:]), Outside: le.Uint64(b[48:]),
	}, data, nil
}

// status returns how a request, of the last Outstanding that were carried out, went.
func (a *Answer) status(number uint64) wire.RemoteStatus {
	bit := uint64(1) << (number % 64)
	switch {
	case a.NoWindow&bit != 0:
		return wire.RemoteNoWindow
	case a.Outside&bit != 0:
		return wire.RemoteOutside
	}
	return wire.RemoteOK
}
