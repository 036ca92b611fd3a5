package verify

import (
	"slices"

	"margay/nimble/isa"
)

// functions finds where functions begin (the first slot, every target of a local
// call, every loaded code address) and checks that none falls through into the
// next.
func (v *verifier) functions() error {
	code := v.program.code
	starts := make([]int, 1, 1+len(v.entries))
	for _, slot := range v.entries {
		if err := v.target(slot, 0, len(code)); err != nil {
			return err
		}
		starts = append(starts, code[slot].Target)
	}
	slices.Sort(starts)
	starts = slices.Compact(starts)
	v.program.functions = make([]Function, len(starts))
	for n, start := range starts {
		end := len(code)
		if n+1 < len(starts) {
			end = starts[n+1]
		}
		last := end - 1
		if code[last].Op == isa.Invalid {
			last--
		}
		if !ends(code[last].Op) {
			return v.refuse(last, "the function from %d to %d falls off its end", start, end-1)
		}
		v.program.functions[n] = Function{Start: start, End: end}
		v.leader(start)
	}
	for _, slot := range v.entries {
		if code[slot].Op == isa.CallLocal {
			v.program.functionOf(code[slot].Target).Called = true
		}
	}
	return nil
}

// ends reports whether execution cannot fall through.
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

// targets checks that every jump stays in its function, and marks its target as a
// leader.
func (v *verifier) targets() error {
	functions := v.program.functions
	for _, slot := range v.jumps {
		for slot >= functions[0].End {
			functions = functions[1:]
		}
		if err := v.target(slot, functions[0].Start, functions[0].End); err != nil {
			return err
		}
		v.leader(v.program.code[slot].Target)
	}
	return nil
}

// blocks sets the Cost of every leader to the cost of its block, and finds out
// which registers are used, and which functions have a stack frame.
func (v *verifier) blocks() {
	code := v.program.code
	for n := range v.program.functions {
		f := &v.program.functions[n]
		cost, used := uint32(0), uint16(0)
		for slot := f.End - 1; slot >= f.Start; slot-- {
			i := &code[slot]
			used |= 1<<i.Dst | 1<<i.Src
			if i.Op != isa.Invalid {
				cost++
			}
			if i.Cost > 0 {
				i.Cost, cost = cost, 0
			}
		}
		f.Frame = used>>isa.FramePointer != 0
		v.program.registers |= used
	}
}
