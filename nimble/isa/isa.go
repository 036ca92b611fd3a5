// Package isa is the instruction set of Nimble: the whole of RFC 9669 (BPF
// Instruction Set Architecture), little-endian.
//
// One table (table.go) declares each instruction: opcode byte, mnemonic, operand form, the field
// that distinguishes it from others of the same opcode, conformance group and section. The decoder,
// the printer, the parser and the validity of fields derive from it, so that an instruction exists
// in exactly one place:
//
//	table + forms -> bounds (for errors) -> ranges        Check, Usual
//	table -> byCode (for Op, Check) -> usual (first row)  Usual
//	table -> byName                                       Named, Parse
//
// A program is a slice of Instructions indexed by slot, a slot being 8 bytes.
// Jump distances, program counters and every index in an error count slots. A
// wide instruction takes two slots: its second one holds the zero Instruction,
// and its 64-bit constant is in Imm and High of the first.
//
// The package imports the standard library only. Its values are immutable or
// plain, so everything in it is safe for concurrent use.
package isa

import "fmt"

// SlotSize is the size of one slot in bytes (RFC 9669, section 3.1).
const SlotSize = 8

// Registers is the number of registers, r0 to r10. FramePointer is read-only.
const (
	Registers    = 11
	FramePointer = Register(10)
)

// Register is a register number, 0 to 10 in a valid instruction.
type Register uint8

// String returns the register's name in text, such as r3.
func (r Register) String() string { return fmt.Sprintf("r%d", uint8(r)) }

// Instruction is one instruction as encoded: its fields, not yet checked.
type Instruction struct {
	Code uint8    // opcode byte
	Dst  Register // destination register field
	Src  Register // source register field, or the subtype of a call or wide instruction
	Off  int16    // offset field
	Imm  int32    // immediate field
	High int32    // second immediate, of wide instructions only
}

// wideCode is the opcode byte of all wide instructions (RFC 9669, section 5.4).
const wideCode = 0x18

// Wide reports whether the instruction takes two slots.
func (i Instruction) Wide() bool { return i.Code == wideCode }

// Const returns the 64-bit constant of a wide instruction.
func (i Instruction) Const() uint64 {
	return uint64(uint32(i.High))<<32 | uint64(uint32(i.Imm))
}

// Append adds an instruction to a program, with its second slot if it is wide.
func Append(program []Instruction, i Instruction) []Instruction {
	program = append(program, i)
	if i.Wide() {
		program = append(program, Instruction{})
	}
	return program
}

// Op returns the instruction's row, or Invalid if its opcode and key field
// select none. The other fields may still be out of bounds: see Check.
func (i Instruction) Op() Op { return i.op() }

// op is Op without a copy, which costs more than the rest.
func (i *Instruction) op() Op {
	for _, op := range byCode[i.Code] {
		if k := table[op].Key; k.Field == NoField || i.field(k.Field) == k.Value {
			return op
		}
	}
	return Invalid
}

// Usual returns the first row of the opcode; ok is false if a field is not in that
// row's bounds, and then Check may find another row. It is Check for most
// instructions, and short enough to be inlined.
func (i *Instruction) Usual() (op Op, ok bool) {
	op = usual[i.Code]
	return op, ranges[op].have(i)
}

// Check returns the instruction's row after comparing every field with the
// row's bounds. The error says which field has which value, or names an
// instruction that Nimble refuses.
func (i *Instruction) Check() (Op, error) {
	op := i.op()
	switch {
	case op == Invalid:
		return Invalid, i.unknown()
	case ranges[op].have(i):
		return op, nil
	}
	return Invalid, i.outside(op)
}

// outside explains why an instruction is not accepted.
func (i *Instruction) outside(op Op) error {
	row, b := &table[op], &bounds[op]
	if row.Refused != "" {
		return fmt.Errorf("%s is refused: %s", row.Name, row.Refused)
	}
	f := Dst
	for b[f].has(i.field(f)) {
		f++
	}
	return fmt.Errorf("%s: field %s is %d, must be %s", row.Name, f, i.field(f), b[f])
}

// unknown explains why no row fits.
func (i *Instruction) unknown() error {
	ops := byCode[i.Code]
	if len(ops) == 0 {
		return fmt.Errorf("unknown opcode 0x%02x", i.Code)
	}
	f := table[ops[0]].Key.Field
	return fmt.Errorf("opcode 0x%02x: field %s is %d, which selects no instruction", i.Code, f, i.field(f))
}

// field returns the value of one field.
func (i *Instruction) field(f Field) int64 {
	switch f {
	case Dst:
		return int64(i.Dst)
	case Src:
		return int64(i.Src)
	case Off:
		return int64(i.Off)
	case Imm:
		return int64(i.Imm)
	default:
		return int64(i.High)
	}
}

// setField sets one field; the caller has checked that v fits.
func (i *Instruction) setField(f Field, v int64) {
	switch f {
	case Dst:
		i.Dst = Register(v)
	case Src:
		i.Src = Register(v)
	case Off:
		i.Off = int16(v)
	case Imm:
		i.Imm = int32(v)
	default:
		i.High = int32(v)
	}
}
