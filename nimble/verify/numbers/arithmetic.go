package numbers

import (
	"math"
	"math/bits"
)

// Add returns the sums.
func (s Set) Add(t Set) Set {
	span, carry := bits.Add64(s.Span, t.Span, 0)
	if carry != 0 {
		return All()
	}
	return Set{s.Lo + t.Lo, span, -steps(s.Ones | t.Ones)}.sure()
}

// steps returns the power of two that divides all numbers with these bits, 0 if
// there are no bits.
func steps(ones uint64) uint64 { return ones & -ones }

// Sub returns the differences.
func (s Set) Sub(t Set) Set { return s.Add(t.Neg()) }

// Neg returns the negated numbers, modulo 2^64.
func (s Set) Neg() Set {
	return Set{-(s.Lo + s.Span), s.Span, -steps(s.Ones)}.sure()
}

// Mul returns the products.
func (s Set) Mul(t Set) Set {
	switch {
	case t.Span == 0:
		return s.times(t.Lo)
	case s.Span == 0:
		return t.times(s.Lo)
	}
	over, hi := bits.Mul64(s.Max(), t.Max())
	if over != 0 {
		return All()
	}
	return Range(s.Min()*t.Min(), hi)
}

// times returns the products with one number.
func (s Set) times(k uint64) Set {
	factor := k
	if int64(k) < 0 {
		factor = -k
	}
	ones := -(steps(s.Ones) * steps(k))
	over, span := bits.Mul64(s.Span, factor)
	if over != 0 {
		return Set{0, math.MaxUint64, ones}.sure()
	}
	if k&(k-1) == 0 && s.Max() <= math.MaxUint64/max(k, 1) {
		ones = s.Ones * k
	}
	if int64(k) < 0 {
		return Set{(s.Lo + s.Span) * k, span, ones}.sure()
	}
	return Set{s.Lo * k, span, ones}.sure()
}

// Div returns the unsigned quotients, where a number divided by 0 is 0.
func (s Set) Div(t Set) Set {
	lo, hi := uint64(0), s.Max()
	if t.Min() > 0 {
		lo, hi = s.Min()/t.Max(), hi/t.Min()
	}
	return Range(lo, hi)
}

// Mod returns the unsigned remainders, where the remainder by 0 is the dividend.
func (s Set) Mod(t Set) Set {
	switch {
	case t.Min() > s.Max() || t.Max() == 0:
		return s
	case t.Min() == 0:
		return Range(0, s.Max())
	}
	return Range(0, min(s.Max(), t.Max()-1))
}

// SignedDiv is Div for signed numbers.
func (s Set) SignedDiv(t Set) Set {
	if s.Max() <= math.MaxInt64 && t.Max() <= math.MaxInt64 {
		return s.Div(t)
	}
	return All()
}

// SignedMod is Mod for signed numbers.
func (s Set) SignedMod(t Set) Set {
	switch {
	case s.Max() <= math.MaxInt64 && t.Max() <= math.MaxInt64:
		return s.Mod(t)
	case t.Span == 0 && t.Lo != 0 && t.Lo != sign:
		most := int64(t.Lo)
		if most < 0 {
			most = -most
		}
		return Signed(1-most, most-1)
	}
	return All()
}

// BitAnd returns the bitwise ands.
func (s Set) BitAnd(t Set) Set {
	return Set{0, min(s.Max(), t.Max()), s.Ones & t.Ones}.sure()
}

// BitOr returns the bitwise ors.
func (s Set) BitOr(t Set) Set {
	lo := max(s.Min(), t.Min())
	return Set{lo, below(max(s.Max(), t.Max())) - lo, s.Ones | t.Ones}.sure()
}

// BitXor returns the bitwise exclusive ors.
func (s Set) BitXor(t Set) Set {
	return Set{0, below(max(s.Max(), t.Max())), s.Ones | t.Ones}.sure()
}

// Lsh returns the numbers shifted left by the low 6 bits of numbers in t.
func (s Set) Lsh(t Set) Set {
	if t.Span == 0 {
		return s.times(1 << (t.Lo & 63))
	}
	if t.Max() > 63 || bits.LeadingZeros64(s.Max()) < int(t.Max()) {
		return All()
	}
	return Range(s.Min()<<t.Min(), s.Max()<<t.Max())
}

// Rsh returns the numbers shifted right by the low 6 bits of numbers in t.
func (s Set) Rsh(t Set) Set {
	if t.Span == 0 {
		n := t.Lo & 63
		return Set{s.Min() >> n, s.Max()>>n - s.Min()>>n, s.Ones >> n}.sure()
	}
	if t.Max() > 63 {
		return Range(0, s.Max())
	}
	return Range(s.Min()>>t.Max(), s.Max()>>t.Min())
}

// SignedRsh is Rsh for signed numbers.
func (s Set) SignedRsh(t Set) Set {
	if s.Max() <= math.MaxInt64 {
		return s.Rsh(t)
	}
	if t.Span == 0 {
		n := t.Lo & 63
		return Signed(s.SignedMin()>>n, s.SignedMax()>>n)
	}
	return Signed(min(s.SignedMin(), 0), max(s.SignedMax(), 0))
}

// Truncate returns the lowest n bits of the numbers, n in [1, 64].
func (s Set) Truncate(n int) Set {
	all := Bits(n)
	if s.Max() <= all.Span {
		return s
	}
	all.Ones &= s.Ones
	lo := s.Lo & all.Span
	if s.Span <= all.Span-lo {
		all.Lo, all.Span = lo, s.Span
	}
	return all.sure()
}

// Extend returns the lowest n bits of the numbers with the highest of them as
// the sign, n in [1, 64].
func (s Set) Extend(n int) Set {
	low, half := s.Truncate(n), uint64(1)<<(n-1)
	switch {
	case low.Max() < half:
		return low
	case low.Min() >= half:
		return Set{low.Lo - 2*half, low.Span, math.MaxUint64}
	}
	return Set{-half, 2*half - 1, math.MaxUint64}.sure()
}
