package subroutine

import (
	"margay/nimble/isa"
	"margay/nimble/verify"
)

// Arithmetic by the upper half of the opcode byte (RFC 9669, section 4.1).
const (
	opAdd = iota
	opSub
	opMul
	opDiv
	opOr
	opAnd
	opLsh
	opRsh
	opNeg
	opMod
	opXor
	opMov
	opArsh
	opEnd // byte swaps
)

// Extensions of opcodes: group 1 with an immediate, group 2, group 3.
var (
	group1 = [16]reg{opAdd: 0, opOr: 1, opAnd: 4, opSub: 5, opXor: 6}
	group2 = [16]reg{opLsh: 4, opRsh: 5, opArsh: 7}
)

// compute emits arithmetic, a move or a byte swap. An operation of 32 bits
// makes the upper half zero, in this machine as in that.
func (t *threader) compute(i *verify.Instruction) {
	wide, fromRegister := i.Code&7 == 7, i.Code&8 != 0
	dst, src := machineRegister[i.Dst], machineRegister[i.Src]
	switch operation := i.Code >> 4; operation {
	case opAdd, opSub, opOr, opAnd, opXor:
		if fromRegister {
			t.reg(wide, int(group1[operation])<<3|1, src, dst)
		} else {
			t.arithmetic(wide, group1[operation], dst, i.Imm)
		}
	case opMul:
		if fromRegister {
			t.reg(wide, 0x0faf, dst, src)
		} else {
			t.reg(wide, 0x69, dst, dst)
			t.imm32(i.Imm)
		}
	case opDiv, opMod:
		t.divide(i, wide, fromRegister, operation == opMod)
	case opLsh, opRsh, opArsh:
		if fromRegister {
			t.shift(wide, group2[operation], dst, src)
		} else {
			t.shiftConstant(wide, group2[operation], dst, i.Imm)
		}
	case opNeg:
		t.reg(wide, 0xf7, 3, dst)
	case opMov:
		t.mov(i, wide, fromRegister)
	case opEnd:
		t.swap(i.Op, dst)
	}
}

// mov emits a move with or without sign extension.
func (t *threader) mov(i *verify.Instruction, wide, fromRegister bool) {
	dst, src := machineRegister[i.Dst], machineRegister[i.Src]
	switch {
	case !fromRegister && wide:
		t.constant(dst, uint64(int64(i.Imm)))
	case !fromRegister:
		t.constant(dst, uint64(uint32(i.Imm)))
	case i.Off == 8:
		t.reg(wide, 0x0fbe, dst, src)
	case i.Off == 16:
		t.reg(wide, 0x0fbf, dst, src)
	case i.Off == 32:
		t.reg(true, 0x63, dst, src)
	default:
		t.move(wide, dst, src)
	}
}

// swap emits a byte swap on this little-endian machine.
func (t *threader) swap(op isa.Op, dst reg) {
	switch op {
	case isa.LE16:
		t.reg(false, 0x0fb7, dst, dst)
	case isa.LE32:
		t.move(false, dst, dst)
	case isa.BE16, isa.BSwap16:
		t.byte(0x66)
		t.reg(false, 0xc1, 1, dst) // rotates right by eight
		t.byte(8)
		t.reg(false, 0x0fb7, dst, dst)
	case isa.BE32, isa.BSwap32:
		t.short(false, 0x0fc8, dst)
	case isa.BE64, isa.BSwap64:
		t.short(true, 0x0fc8, dst)
	}
}

// shiftConstant emits a shift by what the low bits of an immediate say. One by
// nothing still cuts an operand of 32 bits.
func (t *threader) shiftConstant(wide bool, extension, dst reg, v int32) {
	if wide {
		v &= 63
	} else if v &= 31; v == 0 {
		t.move(false, dst, dst)
	}
	if v != 0 {
		t.reg(wide, 0xc1, extension, dst)
		t.byte(byte(v))
	}
}

// shift emits a shift by a register, which must be CX. DX keeps CX meanwhile,
// or is shifted in its place.
func (t *threader) shift(wide bool, extension, dst, src reg) {
	switch {
	case src == cx:
		t.reg(wide, 0xd3, extension, dst)
	case dst == cx:
		t.move(true, scratch, cx)
		t.move(false, cx, src)
		t.reg(wide, 0xd3, extension, scratch)
		t.move(true, cx, scratch)
	default:
		t.move(true, scratch, cx)
		t.move(false, cx, src)
		t.reg(wide, 0xd3, extension, dst)
		t.move(true, cx, scratch)
	}
}

// divide emits a division or a remainder, the divisors 0 and, of signed ones,
// -1 apart, at which the machine would fault (RFC 9669, section 4.1).
func (t *threader) divide(i *verify.Instruction, wide, fromRegister, remainder bool) {
	dst, src, signed := machineRegister[i.Dst], machineRegister[i.Src], i.Off == 1
	if !fromRegister {
		switch {
		case i.Imm == 0:
			t.divideByZero(dst, wide, remainder)
		case i.Imm == -1 && signed:
			t.divideByMinusOne(dst, wide, remainder)
		default:
			t.mem(true, 0xc7, 0, self, offSpill)
			t.imm32(i.Imm)
			t.quotient(dst, scratch, wide, signed, remainder)
		}
		return
	}
	var ends []int
	t.reg(wide, 0x85, src, src)
	other := t.skipIf(notEqual)
	t.divideByZero(dst, wide, remainder)
	ends = append(ends, t.skip())
	t.land(other)
	if signed {
		t.arithmetic(wide, 7, src, -1)
		other = t.skipIf(notEqual)
		t.divideByMinusOne(dst, wide, remainder)
		ends = append(ends, t.skip())
		t.land(other)
	}
	t.quotient(dst, src, wide, signed, remainder)
	t.land(ends...)
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

// quotient divides dst by src, or by what is spilled if src is DX. The
// machine divides AX, so if dst is another register, it changes places with AX.
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
		t.byte(0x99) // sign of AX into DX
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
