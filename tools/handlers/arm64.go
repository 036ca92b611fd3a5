package main

import (
	"math/bits"

	"margay/nimble/isa"
)

// arm64 writes one handler for an instruction, whatever its registers are: they
// are in memory, and the cell says where.
type arm64 struct{ *file }

func writeARM64(f *file) {
	a := arm64{f}
	a.control("LEAVE(const_finished)", "FALL", "LEAVE(const_%s)", "LEAVE(const_exit)", "LEAVE(const_local)", "ENTER", "AGAIN")
	a.atomics("atomic", checked, "CHECK(cpu_atomic, #)", "NEXT", "MISALIGNED", "MISSED(missatomic, #)")
	a.atomics("atomic_unchecked", unchecked, "NOTE", "NEXT", "MISALIGNED")
	a.atomics("atomic_proved", proved, "NEXT", "MISALIGNED")
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		if !refused(op) {
			a.instruction(op)
		}
	}
}

// atomics writes the code before an atomic operation, which Go does.
func (a arm64) atomics(name string, mode int, body ...string) {
	a.accesses[atomics][mode] = family{a.count - 2, 0, 1}
	for _, n := range []int{2, 3} {
		lines := append([]string{"DST", "ADDRESS(R4)", "ALIGNED(#)"}, body...)
		a.handler(name+string(rune('0'+n)), number(n, lines...)...)
	}
}

func (a arm64) instruction(op isa.Op) {
	switch op.Form() {
	case isa.FormDst:
		a.one(op, "", "DST", a.arithmetic(op), "PUT")
	case isa.FormDstImm:
		a.one(op, "_k", "DST", "CONSTANT", a.arithmetic(op), "PUT")
	case isa.FormDstSrc:
		a.one(op, "", "DST", "SRC", a.arithmetic(op), "PUT")
	case isa.FormJump, isa.FormJumpLong:
		a.one(op, "", "JUMP")
	case isa.FormCondImm:
		a.one(op, "_k", "DST", "CONSTANT", a.compare(op), "JUMP", "fall: FALL")
	case isa.FormCondSrc:
		a.one(op, "", "DST", "SRC", a.compare(op), "JUMP", "fall: FALL")
	case isa.FormCall:
		a.whole(op, family{handleCall, 0, 0})
	case isa.FormCallLocal:
		a.whole(op, family{handleLocal, 0, 0})
	case isa.FormNone:
		a.whole(op, family{handleExit, 0, 0})
	case isa.FormLoad:
		a.access(op, "read", "SRC", "ADDRESS(R6)", "MOVHU cell_dst(R1), R3", a.load(op), "PUT")
	case isa.FormStore:
		a.access(op, "write", "DST", "ADDRESS(R4)", "SRC", a.store(op), "NEXT")
	case isa.FormStoreImm:
		a.access(op, "write", "DST", "ADDRESS(R4)", "MOVW cell_extra(R1), R6", a.store(op), "NEXT")
	case isa.FormAtomic, isa.FormAtomicFetch:
		a.entries[op][second] = family{handleModify, 0, 0}
	default: // wide: the constant is in the cell
		a.whole(op, a.entries[isa.MovK][checked])
	}
}

// one writes the only handler of an instruction.
func (a arm64) one(op isa.Op, suffix string, lines ...string) {
	a.whole(op, family{a.handler(op.String()+suffix, lines...), 0, 0})
}

// access writes the three handlers of a load or store: the operand that is the
// base, the address, the other operand, the access, and how it ends.
func (a arm64) access(op isa.Op, window, base, address, other, move, end string) {
	n := bits.TrailingZeros(uint(op.Size()))
	check := number(n, base, address, "CHECK(cpu_"+window+", #)", other, move, end, "MISSED(miss"+window+", #)")
	a.entries[op][checked] = family{a.handler(op.String(), check...), 0, 0}
	a.entries[op][unchecked] = family{a.handler(op.String()+"_unchecked", base, address, "NOTE", other, move, end), 0, 0}
	a.entries[op][proved] = family{a.handler(op.String()+"_proved", base, address, other, move, end), 0, 0}
}

// load returns the load itself: loads of 8 bytes or with a sign are plain.
func (a arm64) load(op isa.Op) string {
	size := "BHWD"[bits.TrailingZeros(uint(op.Size()))]
	signed := op.Row().Code>>5 == signExtending
	if signed || size == 'D' {
		return "MOV" + string(size) + " (R8), R4"
	}
	return "MOV" + string(size) + "U (R8), R4"
}

func (a arm64) store(op isa.Op) string {
	return "MOV" + string("BHWD"[bits.TrailingZeros(uint(op.Size()))]) + " R6, (R8)"
}

// width returns the suffix of instructions of 32 bits.
func width(wide bool) string {
	if wide {
		return ""
	}
	return "W"
}

// Instructions by the upper half of the opcode (RFC 9669, sections 4.1 and 4.3).
var (
	arithmeticARM64 = [16]string{0: "ADD", 1: "SUB", 2: "MUL", 4: "ORR", 5: "AND", 6: "LSL", 7: "LSR", 10: "EOR", 12: "ASR"}
	oppositesARM64  = [16]string{1: "NE", 2: "LS", 3: "LO", 4: "EQ", 5: "EQ", 6: "LE", 7: "LT", 10: "HS", 11: "HI", 12: "GE", 13: "GT"}
)

// arithmetic returns what an operation does. Division by zero and of the least
// number by -1 come out as RFC 9669 wants it, section 4.1; and an operation of
// 32 bits makes the upper half zero.
func (a arm64) arithmetic(op isa.Op) string {
	row := op.Row()
	operation, w := row.Code>>4, width(row.Code&7 == 7)
	divide := "UDIV" + w
	if row.Key.Value == 1 {
		divide = "SDIV" + w
	}
	switch operation {
	case opDiv:
		return divide + " R6, R4, R4"
	case opMod:
		return divide + " R6, R4, R7; MUL" + w + " R6, R7, R7; SUB" + w + " R7, R4, R4"
	case opNeg:
		return "NEG" + w + " R4, R4"
	case opMov:
		return a.move(row.Key.Value, w)
	case opSwap:
		return a.swap(op)
	}
	return arithmeticARM64[operation] + w + " R6, R4, R4"
}

// move returns a move with or without sign extension from some bits.
func (a arm64) move(from int64, w string) string {
	extend := map[int64]string{8: "MOVB", 16: "MOVH", 32: "MOVW"}[from]
	switch {
	case from == 0 && w == "":
		return "MOVD R6, R4"
	case from == 0:
		return "MOVWU R6, R4"
	case w == "":
		return extend + " R6, R4"
	}
	return extend + " R6, R4; MOVWU R4, R4"
}

// swap returns a byte swap on this little-endian machine.
func (a arm64) swap(op isa.Op) string {
	switch op {
	case isa.LE16:
		return "MOVHU R4, R4"
	case isa.LE32:
		return "MOVWU R4, R4"
	case isa.LE64:
		return "MOVD R4, R4"
	case isa.BE16, isa.BSwap16:
		return "REV16W R4, R4; MOVHU R4, R4"
	case isa.BE32, isa.BSwap32:
		return "REVW R4, R4"
	}
	return "REV R4, R4"
}

// compare returns a comparison and the jump of the opposite.
func (a arm64) compare(op isa.Op) string {
	row := op.Row()
	w, compare := width(row.Code&7 == 5), "CMP"
	if row.Code>>4 == jumpSet {
		compare = "TST"
	}
	return compare + w + " R6, R4; B" + oppositesARM64[row.Code>>4] + " fall"
}
