package subroutine

import (
	"margay/nimble/isa"
	"margay/nimble/verify"
)

// place emits an instruction in its place: its code, or a call of the subroutine
// with its code. Jumps, calls and exits are never in a subroutine.
func (t *threader) place(slot int, i *verify.Instruction) {
	form := i.Op.Form()
	if form == isa.FormNone || form == isa.FormCall || form == isa.FormCallLocal || form == isa.FormJump || form == isa.FormJumpLong {
		t.instruction(slot, i)
		return
	}
	t.put(0xe8, 5)
	t.bodies = append(t.bodies, forward{int32(t.here()), int32(slot)})
	if form == isa.FormCondImm || form == isa.FormCondSrc {
		t.branch(slot, i, 0, 0)
	}
}

// writeBodies emits the subroutines that are called. Equal instructions share
// one, except memory accesses, whose faults name their slot, and isa.LdCode.
func (t *threader) writeBodies() {
	if !t.calls {
		return
	}
	known := make(map[isa.Instruction]int)
	for _, each := range t.bodies {
		i := t.program.At(int(each.slot))
		form := i.Op.Form()
		jumps := form == isa.FormCondImm || form == isa.FormCondSrc
		key := i.Encoded()
		if jumps {
			key.Off = 0
		}
		at, ok := known[key]
		if !ok || i.Op.Size() > 0 || i.Op == isa.LdCode {
			t.reserve()
			at = t.here()
			known[key] = at
			if jumps {
				t.put(comparison(i))
			} else {
				t.instruction(int(each.slot), i)
			}
			t.byte(0xc3)
		}
		t.patch(int(each.hole), at)
	}
}

// dropReturn emits the removal of the return address of a subroutine that will
// not return.
func (t *threader) dropReturn() {
	if t.body {
		t.arithmetic(true, 0, sp, 8)
	}
}
