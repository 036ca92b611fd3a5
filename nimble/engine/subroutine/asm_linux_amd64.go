package subroutine

import "encoding/binary"

// reg is a machine register by its number in encodings.
type reg uint8

const (
	ax reg = iota
	cx
	dx
	bx
	sp
	bp
	si
	di
	r8
	r9
	r10
	r11
	r12
	r13
	r14
	r15
)

// Conditions of jumps by their number in encodings: below and above are unsigned,
// less and greater signed.
const (
	below        = 0x2
	aboveOrEqual = 0x3
	equal        = 0x4
	notEqual     = 0x5
	belowOrEqual = 0x6
	above        = 0x7
	less         = 0xc
	greaterEqual = 0xd
	lessOrEqual  = 0xe
	greater      = 0xf
)

// asm encodes instructions. Opcodes are as in the Intel manual; an opcode above
// 0xff begins with the byte 0x0f.
//
// Because emitting dominates the time of insertion, an instruction is composed in
// a word that is stored whole, also beyond the instruction's end. The buffer must
// have space for that: see reserve.
type asm struct {
	code    []byte
	written int // bytes
}

// room is how many bytes may be written after a call of reserve.
const room = 512

// reserve makes room for the code of one instruction of an extension.
func (a *asm) reserve() { a.reserveMore(0) }

// reserveMore makes room for so many bytes, and then the code of one instruction.
func (a *asm) reserveMore(bytes int) {
	if len(a.code)-a.written < bytes+room {
		a.code = append(a.code, make([]byte, bytes+room+len(a.code))...)
	}
}

func (a *asm) here() int { return a.written }

// put writes the n low bytes of a word.
func (a *asm) put(word uint64, n int) {
	binary.LittleEndian.PutUint64(a.code[a.written:], word)
	a.written += n
}

func (a *asm) byte(b byte) { a.put(uint64(b), 1) }

func (a *asm) imm32(v int32) { a.put(uint64(uint32(v)), 4) }

// begin composes REX, if needed, and the opcode. Opcodes that take the low byte
// of a register need REX so that numbers 4 to 7 do not mean AH to BH.
func begin(wide bool, opcode int, r, b reg) (word uint64, n int) {
	rex := uint64(0x40) | uint64(r>>3)<<2 | uint64(b>>3)
	if wide {
		rex |= 8
	}
	if rex != 0x40 || opcode == 0x88 || opcode == 0x0fbe {
		word, n = rex, 1
	}
	if opcode > 0xff {
		return word | uint64(opcode>>8|opcode&0xff<<8)<<(8*n), n + 2
	}
	return word | uint64(opcode)<<(8*n), n + 1
}

// registers composes an instruction with two registers, r in the reg field and b
// in the r/m field. An opcode extension takes the place of r.
func registers(wide bool, opcode int, r, b reg) (word uint64, n int) {
	word, n = begin(wide, opcode, r, b)
	return word | uint64(0xc0|(r&7)<<3|b&7)<<(8*n), n + 1
}

// reg writes an instruction that registers composes, without calling it.
func (a *asm) reg(wide bool, opcode int, r, b reg) {
	word, n := begin(wide, opcode, r, b)
	a.put(word|uint64(0xc0|(r&7)<<3|b&7)<<(8*n), n+1)
}

// mem writes an instruction with the register r and the memory at b+disp. b is
// neither SP nor R12.
func (a *asm) mem(wide bool, opcode int, r, b reg, disp int32) {
	word, n := begin(wide, opcode, r, b)
	mode, size := uint64(0x80), 4
	switch {
	case disp == 0 && b&7 != bp:
		mode, size = 0, 0
	case disp == int32(int8(disp)):
		mode, size = 0x40, 1
	}
	word |= (mode | uint64((r&7)<<3|b&7)) << (8 * n)
	a.put(word|uint64(uint32(disp))<<(8*n+8), n+1+size)
}

// immediate composes add (0), or (1), and (4), sub (5), xor (6) or cmp (7) with
// an immediate.
func immediate(wide bool, extension, b reg, v int32) (word uint64, n int) {
	if v == int32(int8(v)) {
		word, n = registers(wide, 0x83, extension, b)
		return word | uint64(uint8(v))<<(8*n), n + 1
	}
	word, n = registers(wide, 0x81, extension, b)
	return word | uint64(uint32(v))<<(8*n), n + 4
}

// arithmetic writes an instruction that immediate composes.
func (a *asm) arithmetic(wide bool, extension, b reg, v int32) {
	a.put(immediate(wide, extension, b, v))
}

// move copies a register.
func (a *asm) move(wide bool, to, from reg) { a.reg(wide, 0x89, from, to) }

// zero makes a register 0. It changes the flags.
func (a *asm) zero(r reg) { a.reg(false, 0x31, r, r) }

// constant loads a 64-bit constant in the shortest way.
func (a *asm) constant(r reg, v uint64) {
	switch {
	case v == 0:
		a.zero(r)
	case v == uint64(uint32(v)):
		a.short(false, 0xb8, r)
		a.imm32(int32(uint32(v)))
	case v == uint64(int64(int32(v))):
		a.reg(true, 0xc7, 0, r)
		a.imm32(int32(v))
	default:
		a.short(true, 0xb8, r)
		a.put(v, 8)
	}
}

// short writes an instruction with the register in the opcode's last bits.
func (a *asm) short(wide bool, opcode int, r reg) {
	a.put(begin(wide, opcode|int(r&7), 0, r))
}

// address puts b+disp into a register.
func (a *asm) address(r, b reg, disp int32) {
	if disp == 0 {
		a.move(true, r, b)
		return
	}
	a.mem(true, 0x8d, r, b, disp)
}

// jump writes a jump to code that was written before.
func (a *asm) jump(to int) {
	if distance := to - a.here() - 2; distance >= -128 {
		a.put(0xeb|uint64(byte(distance))<<8, 2)
		return
	}
	a.patch(a.jumpAhead(), to)
}

// jumpIf is jump under a condition.
func (a *asm) jumpIf(condition byte, to int) {
	if distance := to - a.here() - 2; distance >= -128 {
		a.put(0x70|uint64(condition)|uint64(byte(distance))<<8, 2)
		return
	}
	a.patch(a.jumpIfAhead(condition), to)
}

// jumpAhead writes a jump whose target patch fills in.
func (a *asm) jumpAhead() (hole int) {
	a.put(0xe9, 5)
	return a.here()
}

// jumpIfAhead is jumpAhead under a condition.
func (a *asm) jumpIfAhead(condition byte) (hole int) {
	a.put(0x800f|uint64(condition)<<8, 6)
	return a.here()
}

// patch sets the target of the jump that ends at hole to an offset in the code.
func (a *asm) patch(hole, to int) {
	binary.LittleEndian.PutUint32(a.code[hole-4:], uint32(int32(to-hole)))
}

// skipIf writes a short jump under a condition, whose target land fills in.
func (a *asm) skipIf(condition byte) (hole int) {
	a.put(0x70|uint64(condition), 2)
	return a.here()
}

// skip is skipIf without a condition.
func (a *asm) skip() (hole int) {
	a.put(0xeb, 2)
	return a.here()
}

// land makes this place the target of short jumps.
func (a *asm) land(holes ...int) {
	for _, hole := range holes {
		a.code[hole-1] = byte(a.here() - hole)
	}
}
