// Package numbers is arithmetic on sets of 64-bit numbers, the abstract domain in
// which package verify tracks registers.
//
// A Set is an arc of the circle of numbers modulo 2^64, together with the bits
// that may be one in any of its numbers. An arc has no signedness: a signed
// comparison with 5 leaves [2^63, 5], an unsigned one [0, 5], and sums and
// differences of arcs are exact where an interval would overflow (Gange et al.,
// Interval analysis and machine arithmetic, TOPLAS 37, 2014). The bits represent
// the effect of masks and shifts: multiples of 8, at most 0xfff.
//
// Every operation returns a Set with all results that the operation can have for
// numbers of its operands, and maybe more. The package imports the standard
// library only.
package numbers

import (
	"fmt"
	"math"
	"math/bits"
)

// Set holds the numbers Lo, Lo+1, ... Lo+Span modulo 2^64 that have no bit outside
// Ones. It is never empty. Different Sets may hold the same numbers.
type Set struct{ Lo, Span, Ones uint64 }

// All returns the set of all numbers.
func All() Set { return Set{Span: math.MaxUint64, Ones: math.MaxUint64} }

// Const returns the set of one number.
func Const(v uint64) Set { return Set{Lo: v, Ones: v} }

// Range returns the numbers [lo, hi], which wrap around at 2^64 if hi < lo.
func Range(lo, hi uint64) Set {
	s := Set{lo, hi - lo, math.MaxUint64}
	if lo <= hi {
		s.Ones = below(hi)
	}
	return s
}

// Signed returns the signed numbers [lo, hi], lo <= hi.
func Signed(lo, hi int64) Set { return Range(uint64(lo), uint64(hi)) }

// Bits returns the numbers of n bits, n in [1, 64].
func Bits(n int) Set { return Range(0, math.MaxUint64>>(64-n)) }

// below returns the bits that a number up to max can have.
func below(max uint64) uint64 { return 1<<bits.Len64(max) - 1 }

// String returns the number, the range, or "any number". Numbers are signed.
func (s Set) String() string {
	switch {
	case s.Span == 0:
		return fmt.Sprint(int64(s.Lo))
	case s.Max() <= math.MaxInt64:
		return fmt.Sprintf("%d..%d", s.Min(), s.Max())
	case s.Min() == 0 && s.Max() == math.MaxUint64 && s.SignedMin() == math.MinInt64 && s.SignedMax() == math.MaxInt64:
		return "any number"
	}
	return fmt.Sprintf("%d..%d", s.SignedMin(), s.SignedMax())
}

// Has reports whether v is in the set.
func (s Set) Has(v uint64) bool { return v-s.Lo <= s.Span && v&^s.Ones == 0 }

// wraps reports whether the arc wraps around at 2^64.
func (s Set) wraps() bool { return s.Lo+s.Span < s.Lo }

// Min returns a lower bound of the numbers, unsigned.
func (s Set) Min() uint64 {
	if s.wraps() {
		return 0
	}
	return s.Lo
}

// Max returns an upper bound of the numbers, unsigned.
func (s Set) Max() uint64 {
	if s.wraps() {
		return s.Ones
	}
	return min(s.Lo+s.Span, s.Ones)
}

// sign turns signed order into unsigned order.
const sign = 1 << 63

// SignedMin is Min in signed order.
func (s Set) SignedMin() int64 {
	if from := s.Lo ^ sign; from+s.Span < from {
		return math.MinInt64
	}
	return int64(s.Lo)
}

// SignedMax is Max in signed order.
func (s Set) SignedMax() int64 {
	if from := s.Lo ^ sign; from+s.Span < from {
		return math.MaxInt64
	}
	return int64(s.Lo + s.Span)
}

// In reports whether t surely has every number of the set. It may return false
// although t has them.
func (s Set) In(t Set) bool {
	if s.Ones&^t.Ones != 0 {
		return false
	}
	from := s.Lo - t.Lo
	return t.Span == math.MaxUint64 || from <= t.Span && s.Span <= t.Span-from
}

// tidy tightens the arc by the bits and the bits by the arc. ok is false if no
// number is left.
func (s Set) tidy() (t Set, ok bool) {
	if s.wraps() {
		if s.Ones >= s.Span {
			return s, true
		}
		s.Lo, s.Span = 0, s.Ones
	}
	hi := min(s.Lo+s.Span, s.Ones)
	if s.Ones != 0 {
		step := s.Ones & -s.Ones // all are multiples of it
		hi &^= step - 1
		if up := (s.Lo + step - 1) &^ (step - 1); up >= s.Lo {
			s.Lo = up
		}
	}
	if s.Lo > hi {
		return s, false
	}
	s.Span = hi - s.Lo
	if s.Ones &= below(hi); s.Span == 0 {
		ok = s.Lo&^s.Ones == 0
		s.Ones = s.Lo
		return s, ok
	}
	return s, true
}

// sure is tidy for a set that is not empty.
func (s Set) sure() Set {
	if t, ok := s.tidy(); ok {
		return t
	}
	return s
}

// And returns the numbers that are in both sets; ok is false if there is none.
// Where two arcs would be left it returns the shorter of the operands' arcs.
func (s Set) And(t Set) (both Set, ok bool) {
	both = Set{s.Lo, s.Span, s.Ones & t.Ones}
	inS, inT := t.Lo-s.Lo, s.Lo-t.Lo // where one begins in the other
	switch startsInS, startsInT := inS <= s.Span, inT <= t.Span; {
	case s.Span == math.MaxUint64:
		both.Lo, both.Span = t.Lo, t.Span
	case t.Span == math.MaxUint64:
	case startsInS && startsInT:
		if t.Span < s.Span {
			both.Lo, both.Span = t.Lo, t.Span
		}
	case startsInS:
		both.Lo, both.Span = t.Lo, min(t.Span, s.Span-inS)
	case startsInT:
		both.Span = min(s.Span, t.Span-inT)
	default:
		return both, false
	}
	return both.tidy()
}

// Or returns a set with the numbers of both, by the shorter arc around them.
func (s Set) Or(t Set) Set {
	if s == t {
		return s
	}
	spanS, okS := s.around(t)
	spanT, okT := t.around(s)
	ones := s.Ones | t.Ones
	switch {
	case okS && (!okT || spanS <= spanT):
		return Set{s.Lo, spanS, ones}
	case okT:
		return Set{t.Lo, spanT, ones}
	}
	return Set{0, math.MaxUint64, ones}
}

// around returns the span from the start of s that covers both; ok is false if it
// exceeds the circle.
func (s Set) around(t Set) (span uint64, ok bool) {
	span, carry := bits.Add64(t.Lo-s.Lo, t.Span, 0)
	return max(span, s.Span), carry == 0
}

// Far is the last bound that widening tries before it gives a bound up: more than
// any length or offset in memory.
const Far = 1 << 56

// Widen returns a set with the numbers of s and t. Repeated widening reaches a
// fixed point after few steps. The stops are bounds that it tries first.
func (s Set) Widen(t Set, stops []int64) Set {
	if t.In(s) {
		return s
	}
	all := s.Or(t)
	ones := s.Ones
	if all.Ones != ones {
		ones = -(all.Ones & -all.Ones) // keeps the power of two that divides them
	}
	lo, hi := all.SignedMin(), all.SignedMax()
	if from := all.Lo ^ sign; from+all.Span < from {
		return Set{0, math.MaxUint64, ones}
	}
	if lo < s.SignedMin() {
		lo = floor(lo, stops)
	}
	if hi > s.SignedMax() {
		hi = ceiling(hi, stops)
	}
	return Set{uint64(lo), uint64(hi) - uint64(lo), ones}.sure()
}

// floor returns the largest stop up to v.
func floor(v int64, stops []int64) int64 {
	best := int64(math.MinInt64)
	for _, stop := range append(stops, 0, -Far) {
		if stop <= v {
			best = max(best, stop)
		}
	}
	return best
}

// ceiling returns the smallest stop from v on.
func ceiling(v int64, stops []int64) int64 {
	best := int64(math.MaxInt64)
	for _, stop := range append(stops, Far) {
		if stop >= v {
			best = min(best, stop)
		}
	}
	return best
}
