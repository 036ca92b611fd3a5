package verify

import "margay/nimble/isa"

// accesses is what the pass over the instructions finds out about the memory accesses of a program.
// They are obvious if all of them are at constant offsets in the stack frame, or in the context
// through an r1 that never changes. Many extensions are like that; the others need a prover, which
// takes ten times as long.
type accesses struct {
	other     bool // an access is neither
	throughR1 bool // one is through r1
	changesR1 bool // an instruction may change r1
}

// obvious reports whether none of the accesses can leave its memory. It is false if that needs a
// proof.
func (a *accesses) obvious() bool { return !a.other && !(a.throughR1 && a.changesR1) }

// access adds an access through a base register. It marks the access as proved,
// which holds only if all of them are obvious.
func (a *accesses) access(i *Instruction, base isa.Register, use uses, c *Context) {
	switch end := int(i.Off) + i.Op.Size(); {
	case base == isa.FramePointer && i.Off >= -FrameSize && end <= 0:
		i.Proved = true
	case base == 1 && c.promises(int(i.Off), end, use):
		i.Proved, a.throughR1 = true, true
	default:
		a.other = true
	}
}

// doubt takes the marks of accesses back.
func (p *Program) doubt() {
	for slot := range p.code {
		p.code[slot].Proved = false
	}
}

// change adds an instruction that changes a register.
func (a *accesses) change(r isa.Register) {
	if r == 1 {
		a.changesR1 = true
	}
}

// promises reports whether the promise about the context covers an access to [start, end).
func (c *Context) promises(start, end int, use uses) bool {
	return start >= 0 && uint64(end) <= c.Size && (c.Readable || use&read == 0) && (c.Writable || use&write == 0)
}
