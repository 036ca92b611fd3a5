package udp

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
)

// hello is one of the four messages of a meeting:
//
//	 0 u32 version of the protocol, 1
//	 4 u8  step: 1 question, 2 answer, 3 renewal, 4 agreement, 5 confirmation, 6 refusal
//	 5 u8  1: the sender seals its datagrams
//	 6 u16 UDP port of the sender
//	 8 u64 incarnation of the sender
//	16 u64 incarnation of the receiver that the sender is bound to, 0 if to none; in the question
//	24 u32 number of the connection in datagrams to the sender
//	28 u32 zero
//	32 key of the datagrams from the sender, 32 bytes
//
// All numbers are little-endian. Renewal is the answer that says that the two sides are not bound
// to each other, so that whichever is bound begins a new incarnation. Connection and key are zero
// in the question and in a refusal.
type hello struct {
	step        step
	sealed      bool
	port        uint16
	incarnation uint64
	bound       uint64
	connection  uint32
	key         [keySize]byte
}

type step uint8

const (
	question step = iota + 1
	answer
	renewal
	agreement
	confirmation
	refusal
)

const (
	meetingVersion = 1
	helloSize      = 32 + keySize
)

var errHello = errors.New("malformed hello")

func (h *hello) encode() []byte {
	b := make([]byte, helloSize)
	le := binary.LittleEndian
	le.PutUint32(b, meetingVersion)
	b[4] = byte(h.step)
	if h.sealed {
		b[5] = 1
	}
	le.PutUint16(b[6:], h.port)
	le.PutUint64(b[8:], h.incarnation)
	le.PutUint64(b[16:], h.bound)
	le.PutUint32(b[24:], h.connection)
	copy(b[32:], h.key[:])
	return b
}

// decode reads a hello, which may be anything.
func (h *hello) decode(b []byte) error {
	if len(b) != helloSize {
		return fmt.Errorf("%w: %d bytes", errHello, len(b))
	}
	le := binary.LittleEndian
	if v := le.Uint32(b); v != meetingVersion {
		return fmt.Errorf("%w: version %d, this node has %d: use one node image on all nodes", errHello, v, meetingVersion)
	}
	*h = hello{step: step(b[4]), sealed: b[5] == 1, port: le.Uint16(b[6:]), incarnation: le.Uint64(b[8:]), bound: le.Uint64(b[16:]),
		connection: le.Uint32(b[24:]), key: [keySize]byte(b[32:])}
	if h.step < question || h.step > refusal || b[5] > 1 || le.Uint32(b[28:]) != 0 || h.incarnation == 0 {
		return fmt.Errorf("%w: step %d of incarnation %d", errHello, h.step, h.incarnation)
	}
	return nil
}

// identity is an endpoint as the other side knows it. It is made once and never changes, so that
// meetings can be repeated.
type identity struct {
	incarnation uint64
	connection  uint32
	key         [keySize]byte
}

func newIdentity() (i identity) {
	var b [12]byte
	rand.Read(b[:]) // it never fails
	rand.Read(i.key[:])
	i.incarnation = max(1, binary.LittleEndian.Uint64(b[:]))
	i.connection = binary.LittleEndian.Uint32(b[8:])
	return i
}

// hello returns the hello that carries the identity.
func (i identity) hello(s step) hello {
	return hello{step: s, incarnation: i.incarnation, connection: i.connection, key: i.key}
}

// state is what decides how a side goes on: its incarnation, and the other side's that it is bound
// to, 0 if to none.
type state struct{ own, bound uint64 }

// compatible reports whether two sides can go on with their incarnations: each is bound to the
// other's, or to none yet. A side that is bound to none has neither accepted nor sent a datagram.
func compatible(a, b state) bool {
	return (a.bound == 0 || a.bound == b.own) && (b.bound == 0 || b.bound == a.own)
}
