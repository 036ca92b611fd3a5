package verify

import (
	"slices"

	"margay/nimble/isa"
)

// functions finds where functions begin (the program, every target of a local
// call, every code address) and checks that none runs on into the next.
func (v *verifier) functions() error {
	code := v.program.code
	starts := []int{0}
	for slot := range code {
		i := &code[slot]
		switch i.Op {
		case isa.CallLocal, isa.LdCode:
			if err := v.target(slot, 0, len(code)); err != nil {
				return err
			}
			starts = append(starts, i.Target)
		}
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	for n, start := range starts {
		end := len(code)
		if n+1 < len(starts) {
			end = starts[n+1]
		}
		f := Function{Start: start, End: end}
		last := start
		for slot := start; slot < end; slot++ {
			if code[slot].Op == isa.Invalid {
				continue
			}
			last = slot
			f.Frame = f.Frame || code[slot].Dst == isa.FramePointer || code[slot].Src == isa.FramePointer
		}
		if !ends(code[last].Op) {
			return v.refuse(last, "the function from %d to %d falls off its end", start, end-1)
		}
		v.program.functions = append(v.program.functions, f)
		v.leaders[start] = true
	}
	return nil
}

// ends reports whether no instruction can follow.
func ends(op isa.Op) bool { return op == isa.Exit || op == isa.JA || op == isa.GotoL }

// target checks that a jump or call lands on an instruction in [start, end).
func (v *verifier) target(slot, start, end int) error {
	to := v.program.code[slot].Target
	switch {
	case to < 0 || to >= len(v.program.code):
		return v.refuse(slot, "target %d is outside the program of %d slots", to, len(v.program.code))
	case to < start || to >= end:
		return v.refuse(slot, "target %d is outside the function from %d to %d", to, start, end-1)
	case v.program.code[to].Op == isa.Invalid:
		return v.refuse(slot, "target %d is the second half of a wide instruction", to)
	}
	return nil
}

// jumps checks that every jump stays in its function, and marks the leaders:
// the targets of jumps and what follows a jump, a local call or an exit.
func (v *verifier) jumps() error {
	for _, f := range v.program.functions {
		for slot := f.Start; slot < f.End; slot++ {
			i := &v.program.code[slot]
			switch i.Op.Row().Form {
			case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc:
				if err := v.target(slot, f.Start, f.End); err != nil {
					return err
				}
				v.leaders[i.Target] = true
			default:
				if i.Op != isa.CallLocal && i.Op != isa.Exit {
					continue
				}
			}
			if slot+1 < f.End {
				v.leaders[slot+1] = true
			}
		}
	}
	return nil
}

// blocks gives the first instruction of every block the cost of the block.
func (v *verifier) blocks() {
	var first *Instruction
	for slot := range v.program.code {
		i := &v.program.code[slot]
		if v.leaders[slot] {
			first = i
		}
		if i.Op != isa.Invalid {
			first.Cost++
		}
	}
}
