//go:build amd64 || arm64

package direct

import (
	"math/bits"
	"slices"
	"sync"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// family is a consecutive group of handlers with one purpose, for different
// registers: number first + dst*byDst + src*bySrc is for dst and src. The zero
// family is empty.
type family struct {
	first        uint16
	byDst, bySrc uint8
}

// number returns the number of a handler.
func (f family) number(dst, src int) int {
	return int(f.first) + dst*int(f.byDst) + src*int(f.bySrc)
}

// entry lists the handlers of an instruction: one handler for all of it, chosen
// by whether its access is checked, unchecked or proved; or else a first one that
// depends on its form, and a second. A jump to the beginning of its own block may
// have a handler of its own.
type entry [5]family

// Indices of an entry and of accesses.
const (
	checked = iota
	unchecked
	proved
	second
	back

	loads   = 0
	atomics = 1
)

// Numbers of handlers that are not in entries, in the order of tools/handlers.
// Number 0 means none in a family.
const (
	handleFinish = iota
	handleBlock
	handleExit
	_ // a call of a service
	handleLocal
	_ // an atomic operation
	handlePlainExit
	handlePlainLocal
	handleStart // pays for the block of its cell
	handleEnter
)

// threader makes the cells of one program.
type threader struct {
	program  *verify.Program
	maps     []*state.Map
	handlers *[handlerCount]uintptr
	cells    []cell
	slots    []int32 // slot of each cell
	at       []int32 // cell of each slot, after one that pays for a block
	jumps    []jump
	start    int   // first slot of the block
	block    int32 // its first cell
	trusted  bool
	guarded  bool // there are unchecked accesses
}

// jump is the cell of a jump, whose extra is the target's slot until link, and
// the first cell of its block.
type jump struct{ cell, block int32 }

// threaders recycles the memory of threaders.
var threaders = sync.Pool{New: func() any { return new(threader) }}

// recycle ends the use of a threader.
func (t *threader) recycle() {
	*t = threader{at: t.at, jumps: t.jumps[:0]}
	threaders.Put(t)
}

// thread makes the code of a program.
func thread(p *verify.Program, maps []*state.Map) engine.Code {
	room := 1 + p.Len() + p.Len()/4 // with cells that enter blocks and second cells
	t := threaders.Get().(*threader)
	defer t.recycle()
	t.program, t.maps, t.handlers, t.trusted = p, maps, handlers(), p.Trusted()
	t.cells, t.slots = make([]cell, 0, room), make([]int32, 0, room)
	t.at = slices.Grow(t.at[:0], p.Len())[:p.Len()]
	paid := true // start pays for the first block
	for slot := range t.at {
		i := p.At(slot)
		if i.Op == isa.Invalid {
			continue
		}
		if i.Cost > 0 && !paid {
			t.add(slot, handleBlock)
		}
		n := int32(len(t.cells))
		t.at[slot] = n
		if i.Cost > 0 {
			t.start, t.block = slot, n
		}
		paid = t.instruction(slot, i)
	}
	t.link()
	c := &code{program: p, cells: t.cells, slots: t.slots, services: p.Services(), frame: p.Function(0).Frame}
	if t.guarded {
		return guarded{c}
	}
	return c
}

// add appends a cell for a slot and returns it. The pointer is valid until the
// next call.
func (t *threader) add(slot, number int) *cell {
	t.slots = append(t.slots, int32(slot))
	t.cells = append(t.cells, cell{}) // filled in place, since a copy would wait for the handler
	c := &t.cells[len(t.cells)-1]
	c.handler = t.handlers[number]
	return c
}

// link resolves jumps to cells.
func (t *threader) link() {
	for _, each := range t.jumps {
		c := &t.cells[each.cell]
		target := t.at[c.extra]
		c.extra = (target - each.cell) * int32(cellSize)
		t.cells[each.block].ahead = (target - each.block) * int32(cellSize)
	}
}

// instruction makes the cells of an instruction. It reports whether execution
// cannot fall through, so that only jumps, which pay, reach the next slot.
func (t *threader) instruction(slot int, i *verify.Instruction) (ends bool) {
	form := i.Op.Form()
	of, mode := &entries[i.Op], checked
	switch {
	case i.Proved:
		mode = proved
	case t.trusted:
		mode = unchecked
		t.guarded = t.guarded || i.Op.Size() > 0
	}
	handler := of[mode]
	if handler.first == 0 {
		t.fill(t.add(slot, first(i, form, mode)), i, form)
		handler = of[second]
	}
	number := handler.number(int(i.Dst), int(i.Src))
	switch form {
	case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc:
		ends = true
		t.jumps = append(t.jumps, jump{int32(len(t.cells)), t.block})
		if i.Target() == t.start && of[back].first != 0 {
			number = of[back].number(int(i.Dst), int(i.Src))
		}
	case isa.FormCallLocal:
		ends = true
		t.jumps = append(t.jumps, jump{int32(len(t.cells)), t.block})
		if !t.program.Function(i.Target()).Frame {
			number = handlePlainLocal
		}
	case isa.FormNone:
		ends = true
		switch f := t.program.Function(slot); {
		case f.Start == 0 && !f.Called:
			number = handleFinish
		case f.Start > 0 && !f.Frame:
			number = handlePlainExit
		}
	}
	t.fill(t.add(slot, number), i, form)
	return ends
}

// first returns the number of the first handler of an instruction with two.
func first(i *verify.Instruction, form isa.Form, mode int) int {
	size := bits.TrailingZeros(uint(i.Op.Size()))
	switch form {
	case isa.FormLoad:
		return accesses[loads][mode].number(int(i.Src), size)
	case isa.FormAtomic, isa.FormAtomicFetch:
		return accesses[atomics][mode].number(int(i.Dst), size)
	}
	return fetches.number(0, int(i.Src))
}

// fill sets the constants and registers of a cell.
func (t *threader) fill(c *cell, i *verify.Instruction, form isa.Form) {
	c.cost, c.dst, c.src = i.Cost, registerOffset(i.Dst), registerOffset(i.Src)
	switch form {
	default:
		c.operand = uint64(int64(i.Imm))
	case isa.FormLoad, isa.FormStore, isa.FormAtomic, isa.FormAtomicFetch:
		c.operand = uint64(int64(i.Off))
	case isa.FormStoreImm:
		c.operand, c.extra = uint64(int64(i.Off)), i.Imm
	case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc, isa.FormCallLocal:
		c.operand, c.extra = uint64(int64(i.Imm)), int32(i.Target())
	case isa.FormCall:
		c.operand = uint64(i.Target())
	case isa.FormWide:
		c.operand = i.Const()
	case isa.FormWideIndex:
		c.operand = service.MapHandle(int(i.Imm))
	case isa.FormWideValue:
		c.operand = t.maps[i.Imm].Region().Base + uint64(i.High())
	case isa.FormWideCode:
		c.operand = service.CodeAddress(i.Target())
	}
}
