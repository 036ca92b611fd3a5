package verify

import (
	"math"
	"math/bits"

	"margay/nimble/verify/numbers"
)

// origin is the reference point of a value.
type origin uint8

// The origins. All but plain have a Set of offsets, which wrap around like the
// addresses they make.
const (
	plain         origin = iota // a number
	contextStart                // a pointer, relative to the start of the context
	contextEnd                  // a pointer, relative to the end of the context
	contextLength               // a number, relative to the length of the context
	frameEnd                    // a pointer, relative to r10
	mapStart                    // a pointer, relative to the start of a map's memory
	element                     // a pointer, relative to an element that a service has returned
	elementOrNull               // a pointer to the element, or 0
)

// value is an abstract value: the facts about a register, or a stored register.
//
// The form relates values to each other: all values with one symbol are
// scale*symbol+delta for the same unknown number (modulo 2^64; the offset, except
// for plain). So a bound found for one of them bounds the others: a copy, a
// pointer and the number added to it, all counters of one loop.
//
// room bounds a number, or an offset from the start of the context, by the length
// of the context, which is not known: as a signed number it is at most
// length-room.
type value struct {
	numbers.Set
	origin origin
	index  int32 // of the map
	form
	room int64
}

// form is the linear form of a value. Symbol 0 means none.
type form struct {
	symbol       uint32
	scale, delta uint64
}

// noRoom is the room of a value that the length does not bound.
const noRoom = math.MinInt64

// small bounds numbers whose sums cannot overflow an int64.
const small = 2 * numbers.Far

// unknown is any value, unrelated to others.
var unknown = value{Set: numbers.All(), room: noRoom}

func constant(v uint64) value { return value{Set: numbers.Const(v), room: noRoom} }

// known reports whether a value is one number or offset.
func (v *value) known() bool { return v.Span == 0 && v.origin != elementOrNull }

// isSmall reports whether all numbers or offsets are in [-small, small].
func (v *value) isSmall() bool { return v.SignedMin() >= -small && v.SignedMax() <= small }

// roomIn returns the room of a value if the context has at least size bytes.
func (v *value) roomIn(size uint64) int64 {
	if v.origin > contextStart || !v.isSmall() {
		return noRoom
	}
	return max(v.room, int64(size)-v.SignedMax())
}

// less returns room-n, or noRoom if room is (almost) noRoom.
func less(room, n int64) int64 {
	if room < -small {
		return noRoom
	}
	return room - n
}

// express writes v in the form f, with u*symbol+t of v's symbol in the place of
// f's symbol. ok is false if that is not possible.
func (v *value) express(f form) (d dependence, ok bool) {
	if v.known() {
		d.t, ok = quotient(v.Lo-f.delta, f.scale)
		return d, ok
	}
	if v.symbol == 0 {
		return d, false
	}
	u, okU := quotient(v.scale, f.scale)
	t, okT := quotient(v.delta-f.delta, f.scale)
	return dependence{to: v.symbol, u: u, t: t}, okU && okT
}

// quotient returns a/b as signed numbers; ok is false if there is a remainder.
func quotient(a, b uint64) (q uint64, ok bool) {
	if b == 1 {
		return a, true
	}
	if b == 0 || int64(a)%int64(b) != 0 {
		return 0, false
	}
	return uint64(int64(a) / int64(b)), true
}

// dependence identifies the symbol of a joined state by its symbols in both
// states: values with equal dependences relate to each other in the same way in
// both states.
type dependence struct {
	from, to uint32
	u, t     uint64
	steps    bool // each state has a constant
}

// spill is a value in the function's stack frame.
type spill struct {
	at    int16 // offset from r10
	bytes int16
	value
}

// maxSpills bounds the values in memory that are tracked.
const maxSpills = 8

// knowledge is the abstract state before an instruction.
type knowledge struct {
	size    uint64 // least length of the context
	r       [10]value
	spills  int
	spilled [maxSpills]spill
}

// set makes k a copy of from, except for registers that are not followed.
func (k *knowledge) set(from *knowledge, followed registers) {
	k.size, k.spills = from.size, from.spills
	for ; followed != 0; followed &= followed - 1 {
		n := bits.TrailingZeros16(uint16(followed))
		k.r[n] = from.r[n]
	}
	copy(k.spilled[:k.spills], from.spilled[:])
}

// values calls f for every value until f returns false, and reports whether f
// never did.
func (k *knowledge) values(f func(*value) bool) bool {
	for n := range k.r {
		if !f(&k.r[n]) {
			return false
		}
	}
	for n := range k.spilled[:k.spills] {
		if !f(&k.spilled[n].value) {
			return false
		}
	}
	return true
}

// forget removes the spills that overlap n bytes at the offset at.
func (k *knowledge) forget(at, n int64) {
	kept := k.spilled[:0]
	for i := range k.spilled[:k.spills] {
		s := &k.spilled[i]
		if from := int64(s.at); from+int64(s.bytes) <= at || at+n <= from {
			kept = append(kept, *s)
		}
	}
	k.spills = len(kept)
}

// number returns a value as a number, which is unknown for a pointer.
func (k *knowledge) number(v *value) value {
	switch v.origin {
	case plain:
		return *v
	case contextLength:
		if v.SignedMin() >= -int64(k.size) && v.SignedMax() <= small {
			set := numbers.Signed(int64(k.size), numbers.Far).Add(v.Set)
			return value{Set: set, room: -v.SignedMax()}
		}
	}
	return unknown
}

// narrow restricts the value v, one of k's, to a set, and related values
// accordingly. It returns false if no value is left: the state is impossible.
func (k *knowledge) narrow(v *value, set numbers.Set) bool {
	both, ok := v.And(set)
	if !ok || both == v.Set {
		return ok
	}
	v.Set = both
	if v.symbol == 0 {
		return true
	}
	return k.values(func(w *value) bool {
		if w == v || w.symbol != v.symbol {
			return true
		}
		if w.form == v.form {
			w.Set, ok = w.And(both)
			return ok
		}
		if q, exact := quotient(w.scale, v.scale); exact {
			w.Set, ok = w.And(both.Sub(numbers.Const(v.delta)).Mul(numbers.Const(q)).Add(numbers.Const(w.delta)))
		}
		return ok
	})
}

// makeRoom raises the room of the value v, one of k's, and of related values. It
// returns false if no value is left: the state is impossible.
func (k *knowledge) makeRoom(v *value, room int64) bool {
	if v.origin > contextStart || !v.isSmall() || room <= v.room {
		return true
	}
	v.room = room
	if most := less(numbers.Far, room); v.SignedMax() > most && !k.narrow(v, numbers.Signed(math.MinInt64, most)) {
		return false
	}
	if from := v.SignedMin() + room; from > int64(k.size) {
		k.size = uint64(min(from, numbers.Far))
	}
	return v.symbol == 0 || k.values(func(w *value) bool {
		if w.symbol == v.symbol && w.scale == v.scale && w.origin <= contextStart && w.isSmall() {
			if apart := int64(w.delta - v.delta); apart >= -small && apart <= small {
				w.room = max(w.room, less(room, apart))
			}
		}
		return true
	})
}
