// Package datagram is the layout of the datagrams that nodes exchange (kernel/fabric/reliable has
// the protocol). A datagram is a header, up to two bitmaps, and units. All numbers are
// little-endian. datagram.h beside this file declares the same for C, where BPF programs and the
// library read it.
//
//	 0 u8  version, 1
//	 1 u8  kind: 1 frames between node kernels
//	 2 u16 flags: 1 sealed, 2 asks for an acknowledgement at once, 4 the source ends the connection,
//	       8 a bitmap of class user, 16 a bitmap of class system
//	 4 u32 source node
//	 8 u32 target node
//	12 u32 connection, a number that the target has chosen
//	16 u64 number of the datagram: from 1, no two datagrams of a source and connection share one
//	24 u64 echo: the largest number of a datagram with units, or with flag 2, that has arrived at
//	       the source; 0 none
//	32 u32 delay: microseconds between that arrival and the sending of this datagram
//	36 u16 number of units in this datagram
//	38 u16 zero
//	40 u64 next user unit: all units of the class before it have arrived, and it has not
//	48 u64 next system unit
//	56 u32 credit for user units: units from the next one on that the source has room for
//	60 u32 credit for system units
//	64 bitmap of 32 bytes for each flag that announces one, class user first: bit i of the
//	   little-endian words says that unit next+1+i has arrived
//
// Then the units, each at a multiple of 8 bytes. A message is one unit, or is cut into several: all
// but the last have Fragment bytes. So a message's length alone determines the numbers of its
// units, and a sender that starts again cuts the same messages into the same units.
//
//	 0 u64 number of the unit in its class, from 0
//	 8 u32 length of the whole message in bytes
//	12 u16 bytes of payload in this unit
//	14 u8  class: 0 user, 1 system
//	15 u8  flags: 1 first unit of its message, 2 last unit
//	16 u32 job
//	20 u32 source rank
//	24 u32 target rank
//	28 u16 handler
//	30 u16 zero
//	32 payload, filled up with zeroes to a multiple of 8
//
// Job, ranks and handler are zero in kind 1. They are the place where datagrams between ranks state
// what the system stamps.
//
// In a sealed datagram everything from offset 24 on is encrypted, and Overhead bytes follow, which
// authenticate the whole datagram.
package datagram

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Version is the version of this layout.
const Version = 1

// KindFrames is the kind of datagrams between node kernels.
const KindFrames = 1

// Sizes, in bytes.
const (
	HeaderSize  = 64
	ClearSize   = 24 // of the header, which are never encrypted
	BitmapSize  = 32
	UnitHeader  = 32
	Fragment    = 1232    // payload of each unit of a long message but the last
	MaxMessage  = 1 << 20 // the longest message
	Overhead    = 16      // added by sealing
	MaxSize     = 65507   // the longest payload of UDP over IPv4
	MinDatagram = HeaderSize + 2*BitmapSize + UnitHeader + Fragment + Overhead
)

// Window is the largest number of units that a class may have in flight: next and those that a
// bitmap covers.
const Window = 8 * BitmapSize

// Class is the urgency of a message.
type Class uint8

// The classes.
const (
	User    Class = 0
	System  Class = 1
	Classes       = 2 // how many there are
)

// Flags of a datagram.
const (
	FlagSealed       = 1
	FlagAsk          = 2 // asks for an acknowledgement at once
	FlagEnd          = 4 // the source ends the connection
	FlagUserBitmap   = 8
	FlagSystemBitmap = 16

	flagsKnown = 31
)

// Flags of a unit.
const (
	UnitFirst = 1
	UnitLast  = 2
)

// Places in the header.
const (
	offVersion    = 0
	offKind       = 1
	offFlags      = 2
	offSource     = 4
	offTarget     = 8
	offConnection = 12
	offNumber     = 16
	offEcho       = 24
	offDelay      = 32
	offUnits      = 36
	offZero       = 38
	offNext       = 40
	offCredit     = 56
)

// Places in a unit.
const (
	offUnitNumber  = 0
	offUnitMessage = 8
	offUnitSize    = 12
	offUnitClass   = 14
	offUnitFlags   = 15
	offUnitJob     = 16
	offUnitRank    = 20
	offUnitTarget  = 24
	offUnitHandler = 28
	offUnitZero    = 30
)

// Bitmap says which units behind the next one have arrived: bit i stands for unit next+1+i.
type Bitmap [BitmapSize / 8]uint64

// Set sets bit i, 0 <= i < Window.
func (m *Bitmap) Set(i uint64) { m[i/64] |= 1 << (i % 64) }

// Has reports whether bit i is set, 0 <= i < Window.
func (m *Bitmap) Has(i uint64) bool { return m[i/64]&(1<<(i%64)) != 0 }

// Ack is the state of a class at the source of a datagram.
type Ack struct {
	Next   uint64 // the first unit that has not arrived
	Credit uint32 // units from Next on that there is room for
	Gaps   Bitmap // units after Next that have arrived
}

// Unit is a message, or a part of one.
type Unit struct {
	Number  uint64
	Message uint32 // length of the whole message, bytes
	Class   Class
	First   bool
	Last    bool
	Payload []byte // at most Fragment bytes
}

// Datagram is a parsed datagram.
type Datagram struct {
	Flags      uint16
	Source     uint32
	Target     uint32
	Connection uint32
	Number     uint64
	Echo       uint64
	Delay      uint32 // microseconds
	Acks       [Classes]Ack
	Units      []Unit // their payloads are parts of the parsed bytes
}

// ErrMalformed reports bytes that are not a datagram of this version.
var ErrMalformed = errors.New("malformed datagram")

// Units returns how many units a message of so many bytes has.
func Units(size int) uint64 { return uint64(max(1, (size+Fragment-1)/Fragment)) }

// UnitSize returns the bytes that a unit takes in a datagram.
func UnitSize(payload int) int { return UnitHeader + (payload+7)&^7 }

// Connection reads the connection of a datagram that may be sealed. It reports false for anything
// that is not a datagram of this version and kind.
func Connection(b []byte) (connection uint32, ok bool) {
	if len(b) < HeaderSize || len(b) > MaxSize || b[offVersion] != Version || b[offKind] != KindFrames {
		return 0, false
	}
	return binary.LittleEndian.Uint32(b[offConnection:]), true
}

// Number reads the number of a datagram that may be sealed and that Connection has accepted.
func Number(b []byte) uint64 { return binary.LittleEndian.Uint64(b[offNumber:]) }

// Sealed reports whether a datagram that Connection has accepted is sealed.
func Sealed(b []byte) bool { return b[offFlags]&FlagSealed != 0 }

// MarkSealed sets FlagSealed in a datagram that Put has written.
func MarkSealed(b []byte) { b[offFlags] |= FlagSealed }

// HeaderWith returns the size of a header with the bitmaps that the flags announce.
func HeaderWith(flags uint16) int {
	size := HeaderSize
	for c := range Classes {
		if flags&(FlagUserBitmap<<c) != 0 {
			size += BitmapSize
		}
	}
	return size
}

// Put writes the header and bitmaps of a datagram to b, which has HeaderWith(d.Flags) bytes or
// more. The number of units is argument units, because AppendUnit has written them.
func (d *Datagram) Put(b []byte, units int) {
	le := binary.LittleEndian
	b[offVersion], b[offKind] = Version, KindFrames
	le.PutUint16(b[offFlags:], d.Flags)
	le.PutUint32(b[offSource:], d.Source)
	le.PutUint32(b[offTarget:], d.Target)
	le.PutUint32(b[offConnection:], d.Connection)
	le.PutUint64(b[offNumber:], d.Number)
	le.PutUint64(b[offEcho:], d.Echo)
	le.PutUint32(b[offDelay:], d.Delay)
	le.PutUint16(b[offUnits:], uint16(units))
	le.PutUint16(b[offZero:], 0)
	rest := b[HeaderSize:]
	for c := range Classes {
		le.PutUint64(b[offNext+8*c:], d.Acks[c].Next)
		le.PutUint32(b[offCredit+4*c:], d.Acks[c].Credit)
		if d.Flags&(FlagUserBitmap<<c) != 0 {
			for i, word := range d.Acks[c].Gaps {
				le.PutUint64(rest[8*i:], word)
			}
			rest = rest[BitmapSize:]
		}
	}
}

// AppendUnit appends a unit to a datagram, whose length is a multiple of 8.
func AppendUnit(b []byte, u *Unit) []byte {
	le := binary.LittleEndian
	var head [UnitHeader]byte
	le.PutUint64(head[offUnitNumber:], u.Number)
	le.PutUint32(head[offUnitMessage:], u.Message)
	le.PutUint16(head[offUnitSize:], uint16(len(u.Payload)))
	head[offUnitClass] = byte(u.Class)
	if u.First {
		head[offUnitFlags] |= UnitFirst
	}
	if u.Last {
		head[offUnitFlags] |= UnitLast
	}
	b = append(b, head[:]...)
	b = append(b, u.Payload...)
	var fill [8]byte
	return append(b, fill[:-len(u.Payload)&7]...)
}

// Parse reads b, which may be anything but must not be sealed any more, into d. The units of d
// refer to b; the slice is used again by the next call. Each unit has a valid length for its place
// in its message; whether units fit together is the protocol's matter.
func (d *Datagram) Parse(b []byte) error {
	connection, ok := Connection(b)
	if !ok {
		return fmt.Errorf("%w: %d bytes without a header of version %d", ErrMalformed, len(b), Version)
	}
	le := binary.LittleEndian
	d.Flags = le.Uint16(b[offFlags:])
	d.Connection = connection
	d.Source, d.Target = le.Uint32(b[offSource:]), le.Uint32(b[offTarget:])
	d.Number, d.Echo, d.Delay = Number(b), le.Uint64(b[offEcho:]), le.Uint32(b[offDelay:])
	units := int(le.Uint16(b[offUnits:]))
	if d.Flags&^flagsKnown != 0 || le.Uint16(b[offZero:]) != 0 || d.Number == 0 || len(b) < HeaderWith(d.Flags) {
		return fmt.Errorf("%w: header with flags %#x, number %d, in %d bytes", ErrMalformed, d.Flags, d.Number, len(b))
	}
	rest := b[HeaderSize:]
	for c := range Classes {
		a := &d.Acks[c]
		*a = Ack{Next: le.Uint64(b[offNext+8*c:]), Credit: le.Uint32(b[offCredit+4*c:])}
		if d.Flags&(FlagUserBitmap<<c) != 0 {
			for i := range a.Gaps {
				a.Gaps[i] = le.Uint64(rest[8*i:])
			}
			rest = rest[BitmapSize:]
		}
	}
	return d.parseUnits(rest, units)
}

func (d *Datagram) parseUnits(b []byte, n int) error {
	d.Units = d.Units[:0]
	for range n {
		u, size, err := parseUnit(b)
		if err != nil {
			return err
		}
		d.Units = append(d.Units, u)
		b = b[size:]
	}
	if len(b) != 0 {
		return fmt.Errorf("%w: %d bytes behind the last unit", ErrMalformed, len(b))
	}
	return nil
}

// parseUnit reads the unit at the beginning of b and returns its size there.
func parseUnit(b []byte) (u Unit, size int, err error) {
	if len(b) < UnitHeader {
		return u, 0, fmt.Errorf("%w: unit of %d bytes has no header", ErrMalformed, len(b))
	}
	le := binary.LittleEndian
	payload := int(le.Uint16(b[offUnitSize:]))
	if size = UnitSize(payload); payload > Fragment || size > len(b) {
		return u, 0, fmt.Errorf("%w: payload of %d bytes in a rest of %d", ErrMalformed, payload, len(b))
	}
	flags := b[offUnitFlags]
	u = Unit{
		Number:  le.Uint64(b[offUnitNumber:]),
		Message: le.Uint32(b[offUnitMessage:]),
		Class:   Class(b[offUnitClass]),
		First:   flags&UnitFirst != 0,
		Last:    flags&UnitLast != 0,
		Payload: b[UnitHeader : UnitHeader+payload : UnitHeader+payload],
	}
	switch {
	case u.Class >= Classes || flags&^(UnitFirst|UnitLast) != 0:
		err = fmt.Errorf("%w: unit of class %d with flags %#x", ErrMalformed, u.Class, flags)
	case !zero(b[offUnitJob:UnitHeader]) || !zero(b[UnitHeader+payload:size]):
		err = fmt.Errorf("%w: unit with data where zeroes belong", ErrMalformed)
	case !u.plausible():
		err = fmt.Errorf("%w: unit of %d bytes in a message of %d, first %t, last %t", ErrMalformed, payload, u.Message, u.First, u.Last)
	}
	return u, size, err
}

// plausible reports whether the unit's length fits its place in its message.
func (u *Unit) plausible() bool {
	size := uint32(len(u.Payload))
	switch {
	case u.Message > MaxMessage || u.First && u.Last != (u.Message <= Fragment):
		return false
	case u.First && u.Last:
		return size == u.Message
	case !u.Last:
		return size == Fragment && u.Message > Fragment
	}
	return u.Message > Fragment && size == u.Message-uint32(Units(int(u.Message))-1)*Fragment
}

func zero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}
