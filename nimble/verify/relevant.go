package verify

import (
	"slices"

	"margay/nimble/isa"
	"margay/nimble/service"
)

// registers is a set of registers, a bit each.
type registers uint16

func (r registers) has(n isa.Register) bool { return r>>n&1 != 0 }

// allRegisters are followed at most: r10 never changes.
const allRegisters registers = 1<<isa.FramePointer - 1

// findRelevant finds the registers that can matter to an access anywhere in the
// program: those with its address, those that go into these, copies of them,
// what is compared with them, what loops count, and the length of the context.
// It is worth its time since what a program only computes is most of many
// programs. Whatever it leaves out is unknown, no more.
func (p *prover) findRelevant() {
	if p.context.promised() {
		p.lengths = 1 << 2
	}
	type found struct {
		relevant, lengths registers
		spilling          bool
	}
	for before := (found{}); ; {
		for slot := range p.code {
			p.relate(slot, &p.code[slot])
		}
		p.relevant &= allRegisters
		now := found{p.relevant, p.lengths, p.spilling}
		if now == before {
			return
		}
		before = now
	}
}

// relate adds what one instruction makes relevant.
func (p *prover) relate(slot int, i *Instruction) {
	dst, src := registers(1)<<i.Dst, registers(1)<<i.Src
	switch i.Op.Form() {
	case isa.FormDstSrc:
		copies := i.Op == isa.MovX || i.Op == isa.Mov32X
		if p.relevant&dst != 0 || copies && p.relevant&src != 0 {
			p.relevant |= dst | src
		}
		if copies && p.lengths&src != 0 {
			p.lengths |= dst
		}
	case isa.FormCondImm:
		if i.Target <= slot || p.lengths&dst != 0 {
			p.relevant |= dst
		}
	case isa.FormCondSrc:
		if i.Target <= slot || p.relevant&(dst|src) != 0 {
			p.relevant |= dst | src
		}
	case isa.FormLoad:
		if p.relevant |= src; i.Src == isa.FramePointer && (p.spilling || p.relevant&dst != 0) {
			p.relevant |= dst
			p.spilling = true
		}
	case isa.FormStore:
		if p.relevant |= dst; i.Dst == isa.FramePointer && (p.spilling || p.relevant&src != 0) {
			p.relevant |= src
			p.spilling = true
		}
	case isa.FormStoreImm, isa.FormAtomic, isa.FormAtomicFetch:
		p.relevant |= dst
	case isa.FormCall:
		if p.relevant&1 != 0 && i.Service.Element {
			p.relevant |= 2 << slices.Index(i.Service.Args, service.Handle)
		}
	}
}
