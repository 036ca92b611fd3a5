package verify_test

import (
	"fmt"

	"margay/nimble/asm"
	"margay/nimble/engine/enginetest"
	"margay/nimble/object"
)

// bounded makes a program from any bytes with the code that compilers emit before
// an access: masks, comparisons, counting loops, pointers kept on the stack. Its
// only exit returns one of its registers.
func bounded(data []byte) *object.Spec {
	w := &writer{data: data}
	for _, line := range []string{
		"mov r6, r1", "mov r8, r2", "lddw_value r7, 0, 0", "mov r9, r2", "add r9, r1",
		"stw [r10-4], " + w.one("0", "1", "3", "4", "-1"), "mov r2, r10", "add r2, -4", "lddw_map r1, 0", "call 1",
	} {
		w.line("%s", line)
	}
	if w.below(4) > 0 {
		w.line("jne r0, 0, found")
		w.line("mov r0, r7")
		w.line("found:")
	}
	for _, r := range []int{1, 2, 3, 4, 5} {
		w.line("ldx%s r%d, [r7+%d]", w.one("b", "b", "h", "w", "dw", "sb", "sw"), r, w.below(64))
	}
	w.body(4+w.below(24), 0)
	w.line("mov r0, %s", w.register())
	w.line("exit")
	if w.called {
		w.line("function:")
		w.body(2+w.below(6), 2)
		w.line("exit")
	}
	program, err := asm.Parse(w.text)
	if err != nil {
		panic("bounded: " + err.Error())
	}
	spec := enginetest.Generate(nil)
	spec.Instructions = program
	return spec
}

// body writes statements. deep is above 0 in loops and functions.
func (w *writer) body(statements, deep int) {
	open := w.open
	for ; statements > 0; statements-- {
		w.statement(open, deep)
	}
	for ; w.open > open; w.open-- {
		w.line("e%d:", w.labels[w.open-1])
	}
}

// writer makes decisions from bytes, and from zeros when they run out.
type writer struct {
	data   []byte
	text   string
	label  int
	probe  int
	called bool
	open   int // blocks that are skipped when a condition holds
	labels [8]int
}

func (w *writer) line(format string, args ...any) { w.text += fmt.Sprintf(format, args...) + "\n" }

func (w *writer) below(n int) int {
	if len(w.data) == 0 {
		return 0
	}
	b := w.data[0]
	w.data = w.data[1:]
	return int(b) % n
}

func (w *writer) one(of ...string) string { return of[w.below(len(of))] }

// index picks a register that mostly holds a number; register picks any.
func (w *writer) index() string { return w.one("r1", "r2", "r3", "r4", "r5") }
func (w *writer) register() string {
	return w.one("r0", "r1", "r2", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10")
}

// pointer picks a register that mostly holds a pointer.
func (w *writer) pointer() string {
	return w.one("r6", "r6", "r7", "r0", "r10", "r1", "r2", "r3", "r4", "r5", "r9")
}

func (w *writer) number() string {
	return w.one("0", "1", "2", "3", "4", "7", "8", "15", "16", "23", "24", "31", "32", "40", "56", "63", "64", "95", "96", "-1", "-8", "-2147483648",
		"2147483647", "255", "65535", "-64")
}

func (w *writer) condition() string {
	return w.one("jeq", "jne", "jlt", "jle", "jgt", "jge", "jslt", "jsle", "jsgt", "jsge", "jset") + w.one("", "", "32")
}

func (w *writer) size() string { return w.one("b", "h", "w", "dw") }

// statement writes one or a few instructions. Blocks before open stay open.
func (w *writer) statement(open, deep int) {
	switch w.below(23) {
	case 0, 1:
		w.line("%s%s %s, %s", w.one("and", "and", "mod", "rsh", "lsh", "arsh", "mul", "div", "or", "xor"), w.one("", "32"), w.index(), w.number())
	case 2:
		w.line("%s%s %s, %s", w.one("add", "sub", "mul", "and", "or", "xor", "mod", "rsh", "lsh", "arsh", "div", "smod", "sdiv"), w.one("", "32"), w.index(), w.index())
	case 3:
		w.line("%s %s", w.one("neg", "neg32", "be16", "be32", "bswap64", "le16", "le32", "bswap16"), w.index())
	case 4:
		w.line("%s %s, %s", w.one("mov", "mov", "mov32", "movsx8", "movsx32", "mov32sx16"), w.index(), w.register())
	case 5:
		w.line("%s %s, %s", w.one("add", "sub"), w.one("r1", "r2", "r3", "r6", "r0"), w.register())
	case 6, 7:
		w.line("add%s %s, %s", w.one("", "", "32"), w.one("r1", "r2", "r3", "r4", "r5", "r6"), w.number())
	case 8, 9:
		w.skip()
	case 10:
		if w.open > open {
			w.open--
			w.line("e%d:", w.labels[w.open])
		}
	case 11:
		if deep < 2 {
			w.loop(deep)
		}
	case 12:
		w.line("stx%s [r10%s], %s", w.one("dw", "dw", "w", "h"), w.one("-8", "-16", "-12"), w.register())
	case 15, 16:
		w.line("ldx%s %s, [r10%s]", w.one("dw", "dw", "w"), w.index(), w.one("-8", "-16", "-12"))
	case 17:
		if w.probe < probes {
			w.line("call %d", firstProbe+w.probe)
			w.probe++
		}
	case 18:
		w.leave(deep)
	case 19, 20:
		w.packet()
	case 21:
		w.overwrite()
	case 13:
		w.line("stx%s [%s%+d], %s", w.size(), w.pointer(), w.below(80)-8, w.register())
	case 14:
		w.line("%s [%s%+d], %s", w.one("atomic_fetch_add", "atomic_add32", "atomic_cmpxchg32", "atomic_xchg"), w.pointer(), w.below(8)*8-8, w.index())
	default:
		w.reach()
	}
}

// skip opens a block that is skipped when a condition holds.
func (w *writer) skip() {
	if w.open == len(w.labels) {
		return
	}
	w.labels[w.open] = w.label
	w.line("%s %s, %s, e%d", w.condition(), w.register(), w.one(w.number(), w.register(), "r8", "r9", w.number()), w.label)
	w.open++
	w.label++
}

// packet compares a pointer or an index with the end of the context.
func (w *writer) packet() {
	r, label := w.one("r1", "r2"), w.label
	w.label++
	if w.below(2) > 0 {
		w.line("and %s, %s", r, w.one("63", "31", "255"))
	}
	w.line("mov r3, r6")
	w.line("add r3, %s", w.one("0", "1", "5", "60", r, r, r))
	w.line("mov r4, %s", w.one("r3", "r3", r))
	w.line("add r4, %s", w.one("0", "1", "2", "4", "8"))
	w.line("%s r4, %s, o%d", w.one("jgt", "jge", "jgt", "jge", "jsgt", "jlt", "jgt32", "jsge"), w.one("r9", "r9", "r8"), label)
	w.line("ldx%s r5, [r3%+d]", w.size(), w.below(6)-1)
	w.line("stb [r3%+d], 1", w.below(6)-1)
	w.line("o%d:", label)
}

// overwrite stores to an unknown place of the stack frame, between a store and a
// load of a known place.
func (w *writer) overwrite() {
	w.line("stxdw [r10-8], %s", w.register())
	w.line("mov r5, r10")
	w.line("ldxsb r4, [r7+%d]", w.below(90))
	if w.below(2) > 0 {
		w.line("and r4, %s", w.one("7", "-8", "15"))
	}
	w.line("add r5, r4")
	w.line("st%s [r5%+d], 7", w.size(), w.below(24)-20)
	w.line("ldxdw %s, [r10-8]", w.index())
}

// leave calls a function, or a service that writes.
func (w *writer) leave(deep int) {
	if deep < 2 && w.below(2) > 0 {
		w.called = true
		w.line("call_local function")
		return
	}
	w.line("mov r1, %s", w.one("r10", "r6", "r7"))
	w.line("add r1, %s", w.one("-8", "-16", "-24", "0"))
	w.line("mov r2, %s", w.one("4", "8", "16", "0"))
	w.line("call 20")
}

// loop counts a register up or down, and maybe moves a pointer with it.
func (w *writer) loop(deep int) {
	label, r := w.label, w.index()
	w.label++
	if w.below(2) > 0 {
		w.line("mov %s, %s", r, w.number())
	}
	p := w.one("r1", "r2", "r3", "r4", "r5")
	if w.below(2) > 0 {
		w.line("mov %s, %s", p, w.one("r6", "r7", r))
	}
	w.line("b%d:", label)
	w.line("ldx%s %s, [%s%+d]", w.size(), w.index(), w.one(p, "r6", "r7"), w.below(24)-4)
	w.body(w.below(4), deep+1)
	w.line("add %s, %s", p, w.one("1", "2", "4", "8", "-1"))
	w.line("add %s, %s", r, w.one("1", "1", "2", "8", "-1"))
	w.line("%s %s, %s, b%d", w.condition(), w.one(r, r, p), w.one(w.number(), w.number(), "r8", "r9", w.index()), label)
}

// reach adds an index to a pointer, maybe after a check, and accesses it.
func (w *writer) reach() {
	r, p := w.index(), w.index()
	label := w.label
	w.label++
	switch w.below(4) {
	case 0:
		w.line("and %s, %s", r, w.number())
	case 1:
		w.line("%s %s, %s, o%d", w.condition(), r, w.one(w.number(), "r8"), label)
	case 2:
		w.line("%s %s, %s, o%d", w.condition(), r, w.number(), label)
		w.line("%s %s, %s, o%d", w.condition(), r, w.number(), label)
	}
	if p != r {
		w.line("mov %s, %s", p, w.one("r6", "r7", "r0", "r10"))
		w.line("add %s, %s", p, r)
		if w.below(3) == 0 {
			w.line("mov r5, %s", p)
			w.line("add r5, %s", w.number())
			w.line("%s r5, r9, o%d", w.condition(), label)
		}
		w.line("ldx%s %s, [%s%+d]", w.size(), w.index(), p, w.below(12)-4)
		w.line("st%s [%s%+d], 1", w.size(), p, w.below(12)-4)
	}
	w.line("o%d:", label)
}
