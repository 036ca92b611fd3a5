package portable

import (
	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// thread makes the cells of a program, then resolves its jumps.
func thread(p *verify.Program, maps []*state.Map) *code {
	room := p.Len() + p.Len()/4 // with cells that enter blocks
	c := &code{
		cells:    make([]cell, 0, room),
		slots:    make([]int32, 0, room),
		services: p.Services(),
		trusted:  p.Trusted(),
		frame:    p.Function(0).Frame,
	}
	at := make([]int, p.Len()) // cell of each slot
	for slot := range p.Len() {
		i := p.At(slot)
		if i.Op == isa.Invalid {
			continue
		}
		if i.Cost > 0 && slot > 0 && fallsThrough(p, slot) {
			c.add(slot, cell{op: enterBlock})
		}
		at[slot] = len(c.cells)
		op := i.Op
		if op >= isa.LdXB && op <= isa.StXDW {
			switch {
			case i.Proved:
				op += proved
			case c.trusted:
				op += unchecked
			}
		}
		c.add(slot, cell{op: op, dst: uint8(i.Dst), src: uint8(i.Src), cost: i.Cost, imm: operand(i, maps)})
	}
	for n := range c.cells {
		i := p.At(int(c.slots[n]))
		switch each := &c.cells[n]; {
		case each.op == enterBlock:
		case i.Op == isa.CallLocal:
			each.imm, each.src = uint64(at[i.Target()]), 0
			if p.Function(i.Target()).Frame {
				each.src = 1
			}
		case isJump(i.Op):
			each.imm |= uint64(at[i.Target()]) << 32
		}
	}
	return c
}

func (c *code) add(slot int, each cell) {
	c.cells = append(c.cells, each)
	c.slots = append(c.slots, int32(slot))
}

// fallsThrough reports whether execution can reach a slot from the one before it
// without having paid for the block.
func fallsThrough(p *verify.Program, slot int) bool {
	before := p.At(slot - 1)
	if before.Op == isa.Invalid {
		return true // a wide instruction
	}
	return !isJump(before.Op) && before.Op != isa.Exit && before.Op != isa.CallLocal
}

func isJump(op isa.Op) bool {
	switch op.Form() {
	case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc:
		return true
	}
	return false
}

// operand packs an instruction's constants for its cell: the 64-bit value of the
// immediate; the offset of a load or register store; for an immediate store, the
// value in the lower half and the offset in the upper. A jump has its immediate
// in the lower half; thread puts the target into the upper.
func operand(i *verify.Instruction, maps []*state.Map) uint64 {
	imm, off := uint64(int64(i.Imm)), uint64(int64(i.Off))
	switch i.Op {
	case isa.LdDW:
		return i.Const()
	case isa.LdMap, isa.LdMapFD:
		return service.MapHandle(int(i.Imm))
	case isa.LdValue, isa.LdValueFD:
		return maps[i.Imm].Region().Base + uint64(i.High())
	case isa.LdCode:
		return service.CodeAddress(i.Target())
	case isa.Call, isa.CallNamed:
		return uint64(i.Target())
	}
	switch i.Op.Form() {
	case isa.FormLoad, isa.FormStore, isa.FormAtomic, isa.FormAtomicFetch:
		return off
	case isa.FormStoreImm:
		return uint64(uint32(i.Imm)) | off<<32
	case isa.FormCondImm:
		return uint64(uint32(i.Imm))
	case isa.FormJump, isa.FormJumpLong, isa.FormCondSrc:
		return 0
	}
	return imm
}
