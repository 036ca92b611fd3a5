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

// allRegisters are followed at most: r10 never changes.
const allRegisters registers = 1<<isa.FramePointer - 1

// relations are what the instructions of a program, wherever they are, say
// about which registers matter to an access.
type relations struct {
	services []*service.Service
	always   registers                // addresses, and what loops compare
	with     [isa.Registers]registers // those that matter if one does: what goes into it, copies of it, what it is compared with
	copies   [isa.Registers]registers // of each
	compared registers                // with constants
	stack    registers                // loaded from the stack frame, or stored there
	handles  registers                // of services that return elements of maps
}

// relate adds what one instruction says.
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
		if r.compared |= dst; i.Target <= slot {
			r.always |= dst
		}
	case isa.FormCondSrc:
		r.with[i.Dst] |= src
		if r.with[i.Src] |= dst; i.Target <= slot {
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
		if called := r.services[i.Target]; called.Element {
			r.handles |= 2 << slices.Index(called.Args, service.Handle)
		}
	}
}

// relevant returns the registers that can matter to an access anywhere in the
// program: those with its address, those that go into these, copies of them,
// what is compared with them, what loops count, and the length of the context,
// if that is in a register when the program starts. spilling says whether what
// is stored in the stack frame can matter. It is worth its time since what a
// program only computes is most of many programs. Whatever it leaves out is
// unknown, no more.
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

// closed adds to a set of registers all that come with one of them.
func closed(set registers, with *[isa.Registers]registers) registers {
	for todo := set; todo != 0; {
		more := with[bits.TrailingZeros16(uint16(todo))] &^ set
		set |= more
		todo = todo&(todo-1) | more
	}
	return set
}
