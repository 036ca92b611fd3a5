// Package mirror keeps a channel between ranks of two nodes equal at both ends. Each node has a
// copy of its ring (package wire): the producer writes into one, datagrams carry the new bytes to
// the other, and the consumer reads them there. The two channels between a pair of ranks, one for
// each direction, share their datagrams, so that acknowledgements travel with data.
//
// End is the protocol of one end, as a state machine without I/O: datagrams and the time are passed
// in, and datagrams that are due come out. The ranks themselves run it, in Go or in C. The node
// kernel runs one for a moment when a rank has not called its library for a while: an End can go on
// from any state of the words in its channels.
//
// # Datagrams
//
// A datagram has a header of HeaderSize bytes, and whole records of the ring behind it or none. All
// numbers are little-endian. Positions count bytes since the beginning, as in package wire.
//
//	 0 u16 0x4d4d
//	 2 u8  version, 1
//	 3 u8  flags: 1 asks for an answer at once
//	 4 u32 number of the end, as the receiving rank knows it
//	 8 u64 key of the end
//	16 u64 position of the first byte of data in the ring to the receiver
//	24 u64 position up to which all bytes of the ring to the sender have arrived
//	32 u64 position of the sender's consumer: the receiver may fill the ring up to there again
//	40 data, a multiple of 8, not across the ring's end
//
// The receiver compares the source and the key with the end's before it passes a datagram to End.
// The data may be anything, as a channel's may.
//
// # Reliability
//
// The receiver takes data in order only; bytes below the position that has arrived are duplicates
// and change nothing. The sender sends again from the acknowledged position when a time-out ends or
// when three acknowledgements bring nothing, out of the ring. It has a window of datagrams on their
// way, which shrinks with time-outs. A node may cut records off a datagram (package border): the
// sender sends again at once, too, when an acknowledgement ends within one. An acknowledgement that
// has no data to travel with is sent after a short delay, after some datagrams, and at once when
// something is out of order. A rank that goes to sleep sends it at once, too, unless the last ones
// have travelled with data: one that is sent alone wakes the other rank for nothing.
package mirror

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes in bytes.
const (
	HeaderSize = 40

	// Least is the size of the smallest largest datagram: it has room for a record with
	// wire.MaxPayload bytes of payload. Producers write no record that is larger than a datagram.
	Least = HeaderSize + maxRecord
	// Most is the size of the largest datagram.
	Most = 9000
)

// Parts of the header.
const (
	magic   = 0x4d4d
	version = 1
	flagAsk = 1
)

// Header is the header of a datagram.
type Header struct {
	Number  uint32 // of the receiving end
	Key     uint64 // the same
	Ask     bool   // an answer must be sent at once
	Offset  uint64 // position of the data
	Arrived uint64 // position up to which the other ring has arrived
	Taken   uint64 // position of its consumer
}

// ErrDatagram reports bytes that are not a datagram of this package.
var ErrDatagram = errors.New("mirror: malformed datagram")

// append appends the header to b.
func (h *Header) append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint16(b, magic)
	b = append(b, version, 0)
	if h.Ask {
		b[len(b)-1] = flagAsk
	}
	b = le.AppendUint32(b, h.Number)
	b = le.AppendUint64(b, h.Key)
	b = le.AppendUint64(b, h.Offset)
	b = le.AppendUint64(b, h.Arrived)
	return le.AppendUint64(b, h.Taken)
}

// Parse reads a datagram, which may be anything. The data are a part of b.
func Parse(b []byte) (h Header, data []byte, err error) {
	if len(b) < HeaderSize || len(b)%8 != 0 {
		return h, nil, fmt.Errorf("%w: %d bytes", ErrDatagram, len(b))
	}
	le := binary.LittleEndian
	if le.Uint16(b) != magic || b[2] != version || b[3]&^flagAsk != 0 {
		return h, nil, fmt.Errorf("%w: it begins with %x", ErrDatagram, b[:4])
	}
	return Header{
		Ask: b[3] == flagAsk, Number: le.Uint32(b[4:]), Key: le.Uint64(b[8:]), Offset: le.Uint64(b[16:]),
		Arrived: le.Uint64(b[24:]), Taken: le.Uint64(b[32:]),
	}, b[HeaderSize:], nil
}
