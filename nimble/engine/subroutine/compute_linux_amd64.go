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
// zeroes the upper half, in eBPF as on amd64.
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

// shiftConstant emits a shift by the low 5 or 6 bits of v. A 32-bit shift by 0
// still zeroes the upper half.
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

// shift emits a shift by a register. The machine shifts by CX, so DX saves CX, or
// is shifted in its place if CX is dst.
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
