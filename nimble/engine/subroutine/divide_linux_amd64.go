package subroutine

import (
	"math/bits"

	"margay/nimble/verify"
)

// divide emits a division or a remainder. It treats the divisors 0 and, if
// signed, -1 separately, because the machine would fault (RFC 9669, section 4.1).
func (t *threader) divide(i *verify.Instruction, wide, fromRegister, remainder bool) {
	dst, src, signed := machineRegister[i.Dst], machineRegister[i.Src], i.Off == 1
	if !fromRegister {
		switch {
		case i.Imm == 0:
			t.divideByZero(dst, wide, remainder)
		case !signed && wide:
			t.divideByConstant(dst, wide, remainder, uint64(int64(i.Imm)))
		case !signed:
			t.divideByConstant(dst, wide, remainder, uint64(uint32(i.Imm)))
		case i.Imm == -1:
			t.divideByMinusOne(dst, wide, remainder)
		default:
			t.mem(true, 0xc7, 0, self, offSpill)
			t.imm32(i.Imm)
			t.quotient(dst, scratch, wide, signed, remainder)
		}
		return
	}
	ends := [2]int{t.unlessZero(dst, src, wide, remainder)}
	if signed {
		t.arithmetic(wide, 7, src, -1)
		other := t.skipIf(notEqual)
		t.divideByMinusOne(dst, wide, remainder)
		ends[1] = t.skip()
		t.land(other)
	}
	t.quotient(dst, src, wide, signed, remainder)
	t.land(ends[0])
	if signed {
		t.land(ends[1])
	}
}

// unlessZero emits the division by src for src 0, and a jump over the rest in
// this case. A remainder by 0 is the dividend, which needs no jump of its own.
func (t *threader) unlessZero(dst, src reg, wide, remainder bool) (end int) {
	if remainder {
		t.divideByZero(dst, wide, remainder)
		t.reg(wide, 0x85, src, src)
		return t.skipIf(equal)
	}
	t.reg(wide, 0x85, src, src)
	other := t.skipIf(notEqual)
	t.divideByZero(dst, wide, remainder)
	end = t.skip()
	t.land(other)
	return end
}

func (t *threader) divideByZero(dst reg, wide, remainder bool) {
	switch {
	case !remainder:
		t.zero(dst)
	case !wide:
		t.move(false, dst, dst)
	}
}

func (t *threader) divideByMinusOne(dst reg, wide, remainder bool) {
	if remainder {
		t.zero(dst)
	} else {
		t.reg(wide, 0xf7, 3, dst)
	}
}

// divideByConstant emits an unsigned division or remainder by d > 0: a shift or
// a mask for powers of two, else a multiplication with the inverse.
func (t *threader) divideByConstant(dst reg, wide, remainder bool, d uint64) {
	switch {
	case d&(d-1) != 0:
		t.multiplyByInverse(dst, wide, remainder, d)
	case remainder:
		t.arithmetic(false, group1[opAnd], dst, int32(d-1)) // d is at most 1<<31
	default:
		t.shiftConstant(wide, group2[opRsh], dst, int32(bits.TrailingZeros64(d)))
	}
}

// multiplyByInverse emits a division or remainder of x in dst by d, which must
// not be a power of two: DX becomes the high half of x times the inverse of d,
// and then the quotient. It spills AX.
func (t *threader) multiplyByInverse(dst reg, wide, remainder bool, d uint64) {
	if !wide {
		t.move(false, dst, dst)
	}
	t.mem(true, 0x89, ax, self, offSpill)
	inverse, shift, more := ^uint64(0)/d+1, 0, false
	if wide {
		inverse, shift, more = invert(d)
	}
	t.constant(ax, inverse)
	if dst == ax {
		t.mem(true, 0xf7, 4, self, offSpill)
	} else {
		t.reg(true, 0xf7, 4, dst)
	}
	if more { // x + high half does not fit: (x-high)/2 + high does
		if dst == ax {
			t.mem(true, 0x8b, ax, self, offSpill)
		} else {
			t.move(true, ax, dst)
		}
		t.reg(true, 0x29, scratch, ax)
		t.shiftConstant(true, group2[opRsh], ax, 1)
		t.reg(true, 0x01, ax, scratch)
		shift--
	}
	t.shiftConstant(true, group2[opRsh], scratch, int32(shift))
	t.divided(dst, wide, remainder, int32(uint32(d)))
}

// divided puts the quotient by d, which is in DX, or the remainder into dst. It
// restores AX, which may be dst and so the dividend.
func (t *threader) divided(dst reg, wide, remainder bool, d int32) {
	t.mem(true, 0x8b, ax, self, offSpill)
	if !remainder {
		t.move(true, dst, scratch)
		return
	}
	t.reg(wide, 0x69, scratch, scratch)
	t.imm32(d)
	t.reg(wide, 0x29, scratch, dst)
}

// invert returns the constants with which x/d is computed for any x of 64 bits:
// it is the high half of inverse*x, shifted right by shift. If more is set, the
// inverse has a 65th bit, so x must be added before the shift (Granlund and
// Montgomery, Division by Invariant Integers using Multiplication, 1994, section
// 4).
func invert(d uint64) (inverse uint64, shift int, more bool) {
	shift = bits.Len64(d) - 1
	inverse, rest := bits.Div64(1<<shift, 0, d)
	if d-rest <= 1<<shift {
		return inverse + 1, shift, false
	}
	twice := rest + rest
	inverse += inverse
	if twice >= d || twice < rest {
		inverse++
	}
	return inverse + 1, shift + 1, true
}

// quotient emits a division of dst by src, or by the spilled word if src is DX.
// The machine divides AX, so another dst is exchanged with AX.
func (t *threader) quotient(dst, src reg, wide, signed, remainder bool) {
	if dst != ax {
		t.reg(true, 0x87, dst, ax)
		switch src {
		case ax:
			src = dst
		case dst:
			src = ax
		}
	}
	extension := reg(6)
	if signed {
		extension = 7
		if wide {
			t.byte(0x48)
		}
		t.byte(0x99) // cdq or cqo
	} else {
		t.zero(dx)
	}
	if src == scratch {
		t.mem(wide, 0xf7, extension, self, offSpill)
	} else {
		t.reg(wide, 0xf7, extension, src)
	}
	switch {
	case dst == ax && remainder:
		t.move(true, ax, dx)
	case dst != ax && remainder:
		t.move(true, ax, dst)
		t.move(true, dst, dx)
	case dst != ax:
		t.reg(true, 0x87, dst, ax)
	}
}
