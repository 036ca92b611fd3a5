package verify

import "margay/nimble/isa"

// obvious marks the accesses of a program if all of them are at constant offsets
// in the stack frame, or in the context through an r1 that never changes. It
// reports whether that is so; otherwise the program needs a prover. Many
// extensions are like that, and a prover takes ten times as long.
func (p *Program) obvious() bool {
	throughR1, changed := false, false
	for slot := range p.code {
		i := &p.code[slot]
		form := i.Op.Form()
		switch base, use, ok := i.accesses(form); {
		case !ok:
		case base == isa.FramePointer && i.Off >= -FrameSize && int(i.Off)+i.Op.Size() <= 0:
		case base == 1 && p.promises(i, use):
			throughR1 = true
		default:
			return false
		}
		changed = changed || i.changes(form, 1)
	}
	if throughR1 && changed {
		return false
	}
	for slot := range p.code {
		i := &p.code[slot]
		i.Proved = i.Op.Size() > 0
	}
	return true
}

// promises reports whether the promise about the context covers an access through
// its address.
func (p *Program) promises(i *Instruction, use uses) bool {
	return i.Off >= 0 && uint64(i.Off)+uint64(i.Op.Size()) <= p.context.Size &&
		(p.context.Readable || use&read == 0) && (p.context.Writable || use&write == 0)
}

// accesses returns the base register and the use of a memory access; ok is false
// for other instructions.
func (i *Instruction) accesses(form isa.Form) (base isa.Register, use uses, ok bool) {
	switch form {
	case isa.FormLoad:
		return i.Src, read, true
	case isa.FormStore, isa.FormStoreImm:
		return i.Dst, write, true
	case isa.FormAtomic, isa.FormAtomicFetch:
		return i.Dst, read | write, true
	}
	return 0, 0, false
}

// changes reports whether an instruction may change the register r, one of r1 to
// r5.
func (i *Instruction) changes(form isa.Form, r isa.Register) bool {
	switch form {
	case isa.FormStore, isa.FormStoreImm, isa.FormAtomic, isa.FormCondImm, isa.FormCondSrc, isa.FormJump, isa.FormJumpLong, isa.FormNone:
		return false
	case isa.FormAtomicFetch:
		return i.Src == r
	case isa.FormCall, isa.FormCallLocal:
		return true
	}
	return i.Dst == r
}
