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
		starts = append(starts, code[slot].Target())
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
			v.program.functionOf(code[slot].Target()).Called = true
			v.program.repeats = true
		}
	}
	return nil
}

// ends reports whether execution cannot fall through.
func ends(op isa.Op) bool { return op == isa.Exit || op == isa.JA || op == isa.GotoL }

// target sets the Target of a jump, local call or code address, and checks that it
// is an instruction in [start, end).
func (v *verifier) target(slot, start, end int) error {
	code := v.program.code
	i := &code[slot]
	distance := int(i.Off)
	switch i.Op.Form() {
	case isa.FormJumpLong, isa.FormCallLocal, isa.FormWideCode:
		distance = int(i.Imm)
	}
	switch to := slot + 1 + distance; {
	case to < 0 || to >= len(code):
		return v.refuse(slot, "target %d is outside the program of %d slots", to, len(code))
	case to < start || to >= end:
		return v.refuse(slot, "target %d is outside the function from %d to %d", to, start, end-1)
	case code[to].Op == isa.Invalid:
		return v.refuse(slot, "target %d is the second half of a wide instruction", to)
	default:
		i.extra = int32(to)
	}
	return nil
}

// targets checks that every jump stays in its function, marks its target as a
// leader, and finds jumps that go back.
func (v *verifier) targets() error {
	functions := v.program.functions
	for _, slot := range v.jumps {
		for slot >= functions[0].End {
			functions = functions[1:]
		}
		if err := v.target(slot, functions[0].Start, functions[0].End); err != nil {
			return err
		}
		to := v.program.code[slot].Target()
		v.leader(to)
		if to <= slot {
			v.program.repeats = true
		}
	}
	return nil
}

// blocks sets the Cost of every leader to the cost of its block, and finds out
// which registers are used, which functions have a stack frame, and the slowest
// block.
func (v *verifier) blocks() {
	p := v.program
	p.slowest = Block{Cost: 1}
	for n := range p.functions {
		f := &p.functions[n]
		used := p.blocks(p.code[f.Start:f.End])
		f.Frame = used>>isa.FramePointer != 0
		p.registers |= used
	}
}

// blocks is the part of blocks for one function. It returns the registers that are
// used.
func (p *Program) blocks(code []Instruction) (used uint16) {
	sum := uint64(0) // of counts
	for slot := len(code) - 1; slot >= 0; slot-- {
		i := &code[slot]
		used |= 1<<(i.Dst&15) | 1<<(i.Src&15)
		sum += counts[i.Op]
		if i.Cost == 0 {
			continue
		}
		i.Cost = uint32(sum)
		if b := (Block{uint32(sum), uint32(sum >> 32)}); b.slower(&p.slowest) {
			p.slowest = b
		}
		sum = 0
	}
	return used
}

// counts holds what each instruction adds to a Block: to Cost in the lower half, to
// Slow in the upper one.
var counts = allCounts()

func allCounts() (all [256]uint64) {
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		if all[op] = 1; op.Size() > 0 || op.Divides() {
			all[op] |= 1 << 32
		}
	}
	return all
}
