package verify

import (
	"math/bits"
	"slices"

	"margay/nimble/isa"
	"margay/nimble/service"
)

// registers is a set of registers, a bit each.
type registers uint16

func (r registers) has(n isa.Register) bool { return r>>n&1 != 0 }

// allRegisters holds all registers that may be followed: r10 never changes.
const allRegisters registers = 1<<isa.FramePointer - 1

// relations collects from all instructions of a program, in any order, which
// registers can matter to a memory access.
type relations struct {
	services []*service.Service
	always   registers                // addresses, and registers that loops compare
	with     [isa.Registers]registers // by register: its inputs, its copies and registers compared with it, which matter if it does
	copies   [isa.Registers]registers // by register: its copies
	compared registers                // with constants
	stack    registers                // loaded from the stack frame, or stored there
	handles  registers                // of services that return elements of maps
}

// relate adds the relations of one instruction.
func (r *relations) relate(slot int, i *Instruction) {
	dst, src := registers(1)<<i.Dst, registers(1)<<i.Src
	switch i.Op.Form() {
	case isa.FormDstSrc:
		r.with[i.Dst] |= src
		if i.Op == isa.MovX || i.Op == isa.Mov32X {
			r.with[i.Src] |= dst
			r.copies[i.Src] |= dst
		}
	case isa.FormCondImm:
		if r.compared |= dst; i.Target() <= slot {
			r.always |= dst
		}
	case isa.FormCondSrc:
		r.with[i.Dst] |= src
		if r.with[i.Src] |= dst; i.Target() <= slot {
			r.always |= dst | src
		}
	case isa.FormLoad:
		if r.always |= src; i.Src == isa.FramePointer {
			r.stack |= dst
		}
	case isa.FormStore:
		if r.always |= dst; i.Dst == isa.FramePointer {
			r.stack |= src
		}
	case isa.FormStoreImm, isa.FormAtomic, isa.FormAtomicFetch:
		r.always |= dst
	case isa.FormCall:
		if called := r.services[i.Target()]; called.Element {
			r.handles |= 2 << slices.Index(called.Args, service.Handle)
		}
	}
}

// relevant returns the registers that can matter to an access anywhere in the
// program: registers with its address, their inputs and copies, registers compared
// with them, counters of loops, and the length of the context if a register has it
// at the start. spilling says whether values stored in the stack frame can matter.
// It pays off because most instructions of many programs only compute. A register
// that it omits is unknown, which is safe.
func (r *relations) relevant(lengths registers) (relevant registers, spilling bool) {
	relevant = 1<<isa.FramePointer | r.always | closed(lengths, &r.copies)&r.compared
	for before := registers(0); relevant != before; {
		before = relevant
		relevant = closed(relevant, &r.with)
		if spilling = relevant&r.stack != 0; spilling {
			relevant |= r.stack
		}
		if relevant.has(0) {
			relevant |= r.handles
		}
	}
	return relevant & allRegisters, spilling
}

// closed returns the closure of a set of registers under with.
func closed(set registers, with *[isa.Registers]registers) registers {
	for todo := set; todo != 0; {
		more := with[bits.TrailingZeros16(uint16(todo))] &^ set
		set |= more
		todo = todo&(todo-1) | more
	}
	return set
}
