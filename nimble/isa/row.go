package isa

import (
	"fmt"
	"math"
)

// Field names a field of an instruction.
type Field uint8

// The fields in the order in which they are checked.
const (
	NoField Field = iota
	Dst
	Src
	Off
	Imm
	High
)

// String returns the field's name.
func (f Field) String() string {
	return [...]string{"none", "dst", "src", "off", "imm", "high"}[f]
}

// Group is a conformance group of RFC 9669, section 2.4.
type Group uint8

// The conformance groups. Unassigned marks what the RFC does not define.
const (
	Unassigned Group = iota
	Base32
	Base64
	DivMul32
	DivMul64
	Atomic32
	Atomic64
	Packet
)

// String returns the group's name as registered with IANA.
func (g Group) String() string {
	return [...]string{"unassigned", "base32", "base64", "divmul32", "divmul64", "atomic32", "atomic64", "packet"}[g]
}

// Key is the field, other than the opcode, that selects a row.
type Key struct {
	Field Field // NoField: the opcode alone selects it
	Value int64
}

// Row declares one instruction.
type Row struct {
	Code    uint8  // opcode byte
	Name    string // mnemonic; rows with the same one differ in their Form
	Form    Form   // operands, and with them the bounds of every field
	Group   Group  // conformance group
	Section string // section of RFC 9669
	Key     Key    // distinguishes it from other rows with this opcode byte
	Refused string // why Nimble refuses it; empty if it does not
}

// Bounds are the values a field may have, both ends included.
type Bounds struct{ Min, Max int64 }

func (b Bounds) has(v int64) bool { return b.Min <= v && v <= b.Max }

// String returns the bounds for an error message.
func (b Bounds) String() string {
	if b.Min == b.Max {
		return fmt.Sprint(b.Min)
	}
	return fmt.Sprintf("%d to %d", b.Min, b.Max)
}

// bounds holds the bounds of every field of every row: the range that its form allows, and for its
// key field the key. A field that an instruction does not use is reserved and must be zero.
var bounds = allBounds()

func allBounds() (all [Ops][High + 1]Bounds) {
	for op := range table {
		row := &table[op]
		all[op] = forms[row.Form].bounds
		if row.Key.Field != NoField {
			all[op][row.Key.Field] = Bounds{row.Key.Value, row.Key.Value}
		}
	}
	return all
}

// limits are the bounds of one row in the form in which Usual, which is part of
// every insertion, compares them fastest: how far registers may be above their
// least, and which bits of the other fields are fixed to which values. Those
// may have any value, one value, or any that is not negative.
type limits struct {
	accepted           bool // by Nimble
	dst, dstSpan       Register
	src, srcSpan       Register
	off, offFixed      int16
	consts, constFixed uint64 // Imm and High, as in Const
}

// have reports whether all fields of an instruction are in their bounds.
func (l *limits) have(i *Instruction) bool {
	return l.accepted && i.Dst-l.dst <= l.dstSpan && i.Src-l.src <= l.srcSpan &&
		(i.Off^l.off)&l.offFixed == 0 && (i.Const()^l.consts)&l.constFixed == 0
}

var ranges = allLimits()

func allLimits() (all [256]limits) {
	for op := Invalid + 1; int(op) < Ops; op++ {
		var least, fixed Instruction
		b := &bounds[op]
		for f := Dst; f <= High; f++ {
			least.setField(f, b[f].Min)
			fixed.setField(f, ^(b[f].Max - b[f].Min))
		}
		all[op] = limits{
			table[op].Refused == "", least.Dst, ^fixed.Dst, least.Src, ^fixed.Src,
			least.Off, fixed.Off, least.Const(), fixed.Const(),
		}
	}
	return all
}

// Bounds returns the values that an instruction allows in a field.
func (op Op) Bounds(f Field) Bounds { return bounds[op][f] }

// Row returns the declaration of an instruction.
func (op Op) Row() *Row { return &table[op] }

// Form returns the form of the instruction's row, without a look at the row.
func (op Op) Form() Form { return formOf[op] }

// formOf and sizeOf are what most passes over a program ask for, in little
// memory.
var formOf, sizeOf = allForms()

func allForms() (form [256]Form, size [256]uint8) {
	for op := range table {
		form[op] = table[op].Form
		switch form[op] {
		case FormLoad, FormStore, FormStoreImm, FormAtomic, FormAtomicFetch:
			size[op] = [...]uint8{4, 2, 1, 8}[table[op].Code>>3&3]
		}
	}
	return form, size
}

// String returns the mnemonic.
func (op Op) String() string {
	if op == Invalid || int(op) >= Ops {
		return "invalid"
	}
	return table[op].Name
}

// Size returns how many bytes of memory the instruction accesses, 0 if none.
func (op Op) Size() int { return int(sizeOf[op]) }

// Divides reports whether the instruction is a division or a remainder.
func (op Op) Divides() bool {
	return op >= DivK && op <= SDivX || op >= ModK && op <= SModX ||
		op >= Div32K && op <= SDiv32X || op >= Mod32K && op <= SMod32X
}

// Distance returns the field with the distance of a jump, a local call or the
// address of an instruction, NoField if there is none. It counts slots from the
// one that follows the instruction's first. In text it is the last operand.
func (op Op) Distance() Field {
	operands := forms[table[op].Form].operands
	if len(operands) == 0 {
		return NoField
	}
	switch operands[len(operands)-1] {
	case jumpOff:
		return Off
	case jumpImm:
		return Imm
	}
	return NoField
}

// Form is the shape of an instruction's operands.
type Form uint8

// The forms, each with its operands in text.
const (
	FormNone        Form = iota // no operands
	FormDst                     // r1
	FormDstImm                  // r1, 5
	FormDstSrc                  // r1, r2
	FormJump                    // +5
	FormJumpLong                // +5, in the immediate
	FormCondImm                 // r1, 5, +3
	FormCondSrc                 // r1, r2, +3
	FormCall                    // 5
	FormCallLocal               // +5
	FormLoad                    // r1, [r2+8]
	FormStore                   // [r1+8], r2
	FormStoreImm                // [r1+8], 5
	FormAtomic                  // [r1+8], r2
	FormAtomicFetch             // [r1+8], r2 where r2 receives the old value
	FormWide                    // r1, 0x1122334455667788
	FormWideIndex               // r1, 2
	FormWideValue               // r1, 2, 16
	FormWideCode                // r1, +5
	FormAbs                     // 5
	FormInd                     // r1, 5
)

// operand is how one operand is written.
type operand uint8

const (
	dst     operand = iota // register
	src                    // register
	imm                    // integer
	high                   // integer, the second immediate
	wide                   // 64-bit integer
	jumpOff                // signed distance in the offset field
	jumpImm                // signed distance in the immediate field
	memDst                 // [dst+off]
	memSrc                 // [src+off]
)

// form holds what follows from the shape: the text and the bounds.
type form struct {
	operands []operand
	bounds   [High + 1]Bounds
}

var (
	writable = Bounds{0, int64(FramePointer) - 1}
	readable = Bounds{0, int64(FramePointer)}
	any16    = Bounds{math.MinInt16, math.MaxInt16}
	any32    = Bounds{math.MinInt32, math.MaxInt32}
	index    = Bounds{0, math.MaxInt32}
)

var forms = [...]form{
	FormNone:        {},
	FormDst:         {[]operand{dst}, [...]Bounds{Dst: writable, High: {}}},
	FormDstImm:      {[]operand{dst, imm}, [...]Bounds{Dst: writable, Imm: any32, High: {}}},
	FormDstSrc:      {[]operand{dst, src}, [...]Bounds{Dst: writable, Src: readable, High: {}}},
	FormJump:        {[]operand{jumpOff}, [...]Bounds{Off: any16, High: {}}},
	FormJumpLong:    {[]operand{jumpImm}, [...]Bounds{Imm: any32, High: {}}},
	FormCondImm:     {[]operand{dst, imm, jumpOff}, [...]Bounds{Dst: readable, Off: any16, Imm: any32, High: {}}},
	FormCondSrc:     {[]operand{dst, src, jumpOff}, [...]Bounds{Dst: readable, Src: readable, Off: any16, High: {}}},
	FormCall:        {[]operand{imm}, [...]Bounds{Imm: index, High: {}}},
	FormCallLocal:   {[]operand{jumpImm}, [...]Bounds{Imm: any32, High: {}}},
	FormLoad:        {[]operand{dst, memSrc}, [...]Bounds{Dst: writable, Src: readable, Off: any16, High: {}}},
	FormStore:       {[]operand{memDst, src}, [...]Bounds{Dst: readable, Src: readable, Off: any16, High: {}}},
	FormStoreImm:    {[]operand{memDst, imm}, [...]Bounds{Dst: readable, Off: any16, Imm: any32, High: {}}},
	FormAtomic:      {[]operand{memDst, src}, [...]Bounds{Dst: readable, Src: readable, Off: any16, High: {}}},
	FormAtomicFetch: {[]operand{memDst, src}, [...]Bounds{Dst: readable, Src: writable, Off: any16, High: {}}},
	FormWide:        {[]operand{dst, wide}, [...]Bounds{Dst: writable, Imm: any32, High: any32}},
	FormWideIndex:   {[]operand{dst, imm}, [...]Bounds{Dst: writable, Imm: index, High: {}}},
	FormWideValue:   {[]operand{dst, imm, high}, [...]Bounds{Dst: writable, Imm: index, High: index}},
	FormWideCode:    {[]operand{dst, jumpImm}, [...]Bounds{Dst: writable, Imm: any32, High: {}}},
	FormAbs:         {[]operand{imm}, [...]Bounds{Imm: any32, High: {}}},
	FormInd:         {[]operand{src, imm}, [...]Bounds{Src: readable, Imm: any32, High: {}}},
}

// byCode lists the rows of each opcode byte, byName the rows of each mnemonic.
var byCode, byName = indexTable()

func indexTable() (codes [256][]Op, names map[string][]Op) {
	names = make(map[string][]Op)
	for i := range table[Invalid+1:] {
		op := Op(i + 1)
		codes[table[op].Code] = append(codes[table[op].Code], op)
		names[table[op].Name] = append(names[table[op].Name], op)
	}
	return codes, names
}

// usual is the first row of each opcode byte: the only one, or the one with the
// lowest key.
var usual = firstRows()

func firstRows() (all [256]Op) {
	for code, ops := range byCode {
		if len(ops) > 0 {
			all[code] = ops[0]
		}
	}
	return all
}
