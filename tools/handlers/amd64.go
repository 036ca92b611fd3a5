package main

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"

	"margay/nimble/isa"
)

// machineRegister is where each register of an extension lives. r10 is not in a
// machine register, but as an operand in memory it serves nearly as well.
var machineRegister = [isa.Registers]string{"AX", "DI", "R12", "R8", "DX", "R9", "BX", "R10", "R11", "R15", "REG(10)"}

// amd64 writes handlers that are specialised for the registers in them. Where a
// handler for each pair of registers would be too much code, two handlers run in
// sequence: the first one loads the source register or the address of an access
// into CX, and the second one does the rest.
type amd64 struct{ *file }

func writeAMD64(f *file) {
	a := amd64{f}
	a.control("FINISH", "FALL", "LEAVE(const_%s)", "POP", "PUSH", "START", "RESUME")
	a.firsts()
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		if !refused(op) {
			a.instruction(op)
		}
	}
}

// firsts writes the first of two handlers.
func (a amd64) firsts() {
	a.fetches = family{a.count, 0, 1}
	for n, src := range machineRegister {
		a.handler(fmt.Sprintf("fetch_%d", n), "MOVQ "+src+", CX", "NEXT")
	}
	a.accesses[loads][checked] = a.addresses("load", 0, "CHECK(cpu_read, #)", "NEXT", "MISSED(cpu_read, missread#)")
	a.accesses[loads][unchecked] = a.addresses("load_unchecked", 0, "NOTE", "NEXT")
	a.accesses[loads][proved] = a.addresses("load_proved", 0, "NEXT")
	a.accesses[atomics][checked] = a.addresses("atomic", 2, "ALIGNED(#)", "CHECK(cpu_atomic, #)", "NEXT", "MISALIGNED", "MISSED(cpu_atomic, missatomic)")
	a.accesses[atomics][unchecked] = a.addresses("atomic_unchecked", 2, "ALIGNED(#)", "NOTE", "NEXT", "MISALIGNED")
	a.accesses[atomics][proved] = a.addresses("atomic_proved", 2, "ALIGNED(#)", "NEXT", "MISALIGNED")
}

// addresses writes handlers of accesses of 1<<n bytes, n from least to 3, by
// base register. The body is formatted with n.
func (a amd64) addresses(name string, least int, body ...string) family {
	of := family{a.count - least*isa.Registers, 1, isa.Registers}
	for n := least; n < 4; n++ {
		for r, base := range machineRegister {
			lines := []string{"ADDRESS(" + base + ")"}
			for _, line := range body {
				lines = append(lines, number(n, line)...)
			}
			a.handler(fmt.Sprintf("%s%d_%d", name, n, r), lines...)
		}
	}
	return of
}

func (a amd64) instruction(op isa.Op) {
	switch op.Form() {
	case isa.FormDst, isa.FormDstImm:
		a.whole(op, a.each(op.String()+"_k", isa.Registers-1, func(dst string) []string { return arithmetic(op, dst, "cell_operand(SI)") }))
	case isa.FormDstSrc:
		if simple(op) {
			a.whole(op, a.pairs(op.String(), isa.Registers-1, func(dst, src string) []string { return arithmetic(op, dst, src) }))
		} else {
			a.entries[op][second] = a.each(op.String(), isa.Registers-1, func(dst string) []string { return arithmetic(op, dst, "CX") })
		}
	case isa.FormJump, isa.FormJumpLong:
		a.whole(op, family{a.handler(op.String(), "JUMP"), 0, 0})
	case isa.FormCondImm:
		a.whole(op, a.each(op.String()+"_k", isa.Registers, func(dst string) []string { return conditional(op, dst, "cell_operand(SI)", "JUMP") }))
		a.entries[op][back] = a.each(op.String()+"_k_back", isa.Registers, func(dst string) []string { return conditional(op, dst, "cell_operand(SI)", "BACK") })
	case isa.FormCondSrc:
		a.compare(op)
	case isa.FormCall:
		a.whole(op, family{handleCall, 0, 0})
	case isa.FormCallLocal:
		a.whole(op, family{handleLocal, 0, 0})
	case isa.FormNone:
		a.whole(op, family{handleExit, 0, 0})
	case isa.FormLoad:
		a.load(op)
	case isa.FormStore, isa.FormStoreImm:
		a.store(op)
	case isa.FormAtomic, isa.FormAtomicFetch:
		a.atomic(op)
	default: // wide: the constant is in the cell
		a.whole(op, a.entries[isa.MovK][checked])
	}
}

// each writes a handler for each register dst below a number.
func (a amd64) each(name string, below int, body func(dst string) []string) family {
	of := family{a.count, 1, 0}
	for n, dst := range machineRegister[:below] {
		a.handler(fmt.Sprintf("%s_%d", name, n), body(dst)...)
	}
	return of
}

// pairs is each for two registers.
func (a amd64) pairs(name string, below int, body func(dst, src string) []string) family {
	of := family{a.count, isa.Registers, 1}
	for n, dst := range machineRegister[:below] {
		for m, src := range machineRegister {
			a.handler(fmt.Sprintf("%s_%d_%d", name, n, m), body(dst, src)...)
		}
	}
	return of
}

// The operations of arithmetic and of jumps by the upper half of the opcode
// (RFC 9669, sections 4.1 and 4.3). Operations that are missing here need
// more than one instruction of the machine.
var (
	operations = [16]string{0: "ADD", 1: "SUB", 2: "IMUL", 4: "OR", 5: "AND", 6: "SHL", 7: "SHR", 8: "NEG", 10: "XOR", 11: "MOV", 12: "SAR"}
	opposites  = [16]string{1: "NE", 2: "LS", 3: "CS", 4: "EQ", 5: "EQ", 6: "LE", 7: "LT", 10: "CC", 11: "HI", 12: "GE", 13: "GT"}
)

const (
	opDiv  = 3
	opNeg  = 8
	opMod  = 9
	opMov  = 11
	opSwap = 13

	jumpSet = 4 // tests bits where the others compare

	signExtending = 4 // the mode of a load (section 5.2)
)

// mirrored are the comparisons that are another one with its operands swapped.
var mirrored = map[isa.Op]isa.Op{
	isa.JLTX: isa.JGTX, isa.JLEX: isa.JGEX, isa.JSLTX: isa.JSGTX, isa.JSLEX: isa.JSGEX,
	isa.JLT32X: isa.JGT32X, isa.JLE32X: isa.JGE32X, isa.JSLT32X: isa.JSGT32X, isa.JSLE32X: isa.JSGE32X,
}

// simple reports whether an operation on two registers is one instruction of
// the machine that takes any two.
func simple(op isa.Op) bool {
	row := op.Row()
	switch operation := row.Code >> 4; operation {
	case opMov:
		return row.Key.Value == 0
	default:
		return operations[operation] != "" && operations[operation][:1] != "S" || operations[operation] == "SUB"
	}
}

// suffix returns the suffix of instructions of 64 or 32 bits.
func suffix(wide bool) string {
	if wide {
		return "Q"
	}
	return "L"
}

// arithmetic returns what an operation does with dst and an operand. One of 32
// bits makes the upper half zero, in this machine as in that.
func arithmetic(op isa.Op, dst, operand string) []string {
	row := op.Row()
	operation, size := row.Code>>4, suffix(row.Code&7 == 7)
	var toCX []string
	if operand != "CX" {
		toCX = []string{fmt.Sprintf("MOVQ %s, CX", operand)}
	}
	switch {
	case operation == opSwap:
		return append(swap(op, dst), "NEXT")
	case operation == opNeg:
		return []string{"NEG" + size + " " + dst, "NEXT"}
	case operation == opDiv || operation == opMod:
		return append(toCX, divide(dst, size, row.Key.Value == 1, operation == opMod)...)
	case operation == opMov && row.Key.Value != 0:
		return []string{fmt.Sprintf("MOV%c%sSX CX, %s", map[int64]rune{8: 'B', 16: 'W', 32: 'L'}[row.Key.Value], size, dst), "NEXT"}
	case simple(op):
		return []string{fmt.Sprintf("%s%s %s, %s", operations[operation], size, operand, dst), "NEXT"}
	}
	return append(toCX, fmt.Sprintf("%s%s CX, %s", operations[operation], size, dst), "NEXT")
}

// swap returns a byte swap on this little-endian machine.
func swap(op isa.Op, dst string) []string {
	switch op {
	case isa.LE16:
		return []string{"MOVWLZX " + dst + ", " + dst}
	case isa.LE32:
		return []string{"MOVL " + dst + ", " + dst}
	case isa.LE64:
		return nil
	case isa.BE16, isa.BSwap16:
		return []string{"ROLW $8, " + dst, "MOVWLZX " + dst + ", " + dst}
	case isa.BE32, isa.BSwap32:
		return []string{"BSWAPL " + dst}
	}
	return []string{"BSWAPQ " + dst}
}

// divide returns a division by CX or its remainder, the divisors 0 and, of
// signed ones, -1 apart, at which the machine would fault (RFC 9669, section
// 4.1). The machine divides DX:AX, so DX and AX are saved in X0 and X1.
func divide(dst, size string, signed, remainder bool) []string {
	lines := []string{"TEST" + size + " CX, CX", "JEQ zero"}
	if signed {
		lines = append(lines, "CMP"+size+" CX, $-1", "JEQ minus")
	}
	var after []string
	if dst != "AX" {
		lines = append(lines, "MOVQ AX, X0", "MOVQ "+dst+", AX")
		after = append(after, "MOVQ X0, AX")
	}
	if dst != "DX" {
		lines = append(lines, "MOVQ DX, X1")
		after = append(after, "MOVQ X1, DX")
	}
	switch {
	case !signed:
		lines = append(lines, "XORL DX, DX", "DIV"+size+" CX")
	case size == "Q":
		lines = append(lines, "CQO", "IDIVQ CX")
	default:
		lines = append(lines, "CDQ", "IDIVL CX")
	}
	result := "AX"
	if remainder {
		result = "DX"
	}
	if dst != result {
		lines = append(lines, "MOV"+size+" "+result+", "+dst)
	}
	lines = append(append(lines, after...), "NEXT")
	switch {
	case !remainder:
		lines = append(lines, "zero: XORL "+dst+", "+dst, "NEXT")
	case size == "Q":
		lines = append(lines, "zero: NEXT")
	default:
		lines = append(lines, "zero: MOVL "+dst+", "+dst, "NEXT")
	}
	switch {
	case signed && remainder:
		lines = append(lines, "minus: XORL "+dst+", "+dst, "NEXT")
	case signed:
		lines = append(lines, "minus: NEG"+size+" "+dst, "NEXT")
	}
	return lines
}

// compare writes comparisons of two registers.
func (a amd64) compare(op isa.Op) {
	other, swapped := mirrored[op]
	switch {
	case swapped:
		of := a.entries[other][checked]
		a.whole(op, family{of.first, of.Src, of.Dst})
		of = a.entries[other][back]
		a.entries[op][back] = family{of.first, of.Src, of.Dst}
	case op.Row().Code>>4 == jumpSet:
		a.entries[op][second] = a.each(op.String(), isa.Registers, func(dst string) []string { return conditional(op, dst, "CX", "JUMP") })
	default:
		a.whole(op, a.pairs(op.String(), isa.Registers, func(dst, src string) []string { return conditional(op, dst, src, "JUMP") }))
		a.entries[op][back] = a.pairs(op.String()+"_back", isa.Registers, func(dst, src string) []string { return conditional(op, dst, src, "BACK") })
	}
}

// conditional returns a comparison and both continuations. A jump that is taken
// continues with JUMP or BACK.
func conditional(op isa.Op, dst, operand, taken string) (lines []string) {
	row := op.Row()
	operation, size := row.Code>>4, suffix(row.Code&7 == 5)
	if dst == machineRegister[isa.FramePointer] && operand != "CX" {
		lines, dst = []string{"MOVQ " + dst + ", CX"}, "CX"
	}
	switch {
	case operation == jumpSet && operand == "CX":
		lines = append(lines, "TEST"+size+" CX, "+dst)
	case operation == jumpSet:
		lines = append(lines, "TEST"+size+" "+dst+", "+operand)
	default:
		lines = append(lines, "CMP"+size+" "+dst+", "+operand)
	}
	return append(lines, "J"+opposites[operation]+" fall", taken, "fall: FALL")
}

// load writes loads. Those that extend the sign are done in two, since there
// are few of them.
func (a amd64) load(op isa.Op) {
	size := op.Size()
	n := bits.TrailingZeros(uint(size))
	signed := op.Row().Code>>5 == signExtending
	if signed {
		move := [...]string{"MOVBQSX", "MOVWQSX", "MOVLQSX"}[n]
		a.entries[op][second] = a.each(op.String(), isa.Registers-1, func(dst string) []string { return []string{move + " (CX), " + dst, "NEXT"} })
		return
	}
	move := [...]string{"MOVBLZX", "MOVWLZX", "MOVL", "MOVQ"}[n]
	a.entries[op][checked] = a.pairs(op.String(), isa.Registers-1, func(dst, src string) []string {
		if dst == src {
			return number(n, "ADDRESS("+src+")", "CHECK(cpu_read, #)", move+" (CX), "+dst, "NEXT", "MISSED(cpu_read, missread#)")
		}
		return number(n, "ADDRESS("+src+")", "CHECKWITH("+dst+", cpu_read, #)", move+" (CX), "+dst, "NEXT", "miss: JMP missread#<>(SB)")
	})
	a.entries[op][unchecked] = a.pairs(op.String()+"_unchecked", isa.Registers-1, func(dst, src string) []string {
		return []string{"ADDRESS(" + src + ")", "NOTE", move + " (CX), " + dst, "NEXT"}
	})
	a.entries[op][proved] = a.pairs(op.String()+"_proved", isa.Registers-1, func(dst, src string) []string {
		set, at := operand(src)
		return []string{set, move + " " + at + ", " + dst, "NEXT"}
	})
}

// operand returns how a proved access finds its memory, in a register and in the
// access itself.
func operand(base string) (set, at string) {
	if strings.Contains(base, "(") {
		return "ADDRESS(" + base + ")", "(CX)"
	}
	return "MOVQ cell_operand(SI), CX", "(CX)(" + base + "*1)"
}

// number puts a number into lines.
func number(n int, lines ...string) []string {
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], "#", strconv.Itoa(n))
	}
	return lines
}

// store writes stores of a register or of a constant.
func (a amd64) store(op isa.Op) {
	n := bits.TrailingZeros(uint(op.Size()))
	move := "MOV" + "BWLQ"[n:n+1] + " "
	put := func(src string) []string { return throughR15(src, move+"%s, (CX)") }
	check := func(dst, src string) []string {
		body := append(number(n, "ADDRESS("+dst+")", "CHECK(cpu_write, #)"), put(src)...)
		return append(append(body, "NEXT"), number(n, "MISSED(cpu_write, misswrite#)")...)
	}
	note := func(dst, src string) []string {
		return append(append([]string{"ADDRESS(" + dst + ")", "NOTE"}, put(src)...), "NEXT")
	}
	plain := func(dst, src string) []string {
		return append(append([]string{"ADDRESS(" + dst + ")"}, put(src)...), "NEXT")
	}
	for mode, body := range [...]func(dst, src string) []string{check, note, plain} {
		name := op.String() + [...]string{"", "_unchecked", "_proved"}[mode]
		if op.Form() == isa.FormStore {
			a.entries[op][mode] = a.pairs(name, isa.Registers, body)
		} else {
			a.entries[op][mode] = a.each(name, isa.Registers, func(dst string) []string { return body(dst, "cell_extra(SI)") })
		}
	}
}

// throughR15 returns an instruction that needs its source, the %s in it, in a
// register. An operand in memory goes through R15, which
// is saved in X0.
func throughR15(src, instruction string) []string {
	if !strings.Contains(src, "(") {
		return []string{fmt.Sprintf(instruction, src)}
	}
	load := "MOVQ "
	if strings.HasPrefix(src, "cell") {
		load = "MOVLQSX "
	}
	return []string{"MOVQ R15, X0", load + src + ", R15", fmt.Sprintf(instruction, "R15"), "MOVQ X0, R15"}
}

// atomic writes the second half of atomic operations. The machine has no
// instruction for those that fetch what they change bit by bit: Go does them.
func (a amd64) atomic(op isa.Op) {
	size := suffix(op.Size() == 8)
	instruction := ""
	var after []string
	switch op {
	case isa.AtomicAdd, isa.AtomicAdd32:
		instruction = "ADD"
	case isa.AtomicOr, isa.AtomicOr32:
		instruction = "OR"
	case isa.AtomicAnd, isa.AtomicAnd32:
		instruction = "AND"
	case isa.AtomicXor, isa.AtomicXor32:
		instruction = "XOR"
	case isa.AtomicFetchAdd, isa.AtomicFetchAdd32:
		instruction = "XADD"
	case isa.AtomicXchg, isa.AtomicXchg32:
		instruction = "XCHG"
	case isa.AtomicCmpXchg:
		instruction = "CMPXCHG"
	case isa.AtomicCmpXchg32:
		instruction, after = "CMPXCHG", []string{"MOVL AX, AX"} // is not written if the values were equal
	default:
		a.entries[op][second] = family{handleModify, 0, 0}
		return
	}
	of := family{a.count, 0, 1}
	for n, src := range machineRegister[:op.Bounds(isa.Src).Max+1] {
		body := append(throughR15(src, "LOCK; "+instruction+size+" %s, (CX)"), after...)
		a.handler(fmt.Sprintf("%s_%d", op, n), append(body, "NEXT")...)
	}
	a.entries[op][second] = of
}
