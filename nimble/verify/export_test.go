package verify

import (
	"fmt"
	"slices"
)

// Place holds the addresses of the memory that a run works on.
type Place struct {
	Context, Length uint64
	Frame           uint64 // r10; 0: unknown
	Maps            []uint64
	Elements        [][]uint64 // of each map
}

// Known is the abstract state before an instruction.
type Known struct{ k knowledge }

// Knowledge returns the abstract states of a program with all registers, by slot.
// Slots that are never reached are missing.
func Knowledge(p *Program) map[int]*Known {
	known := make(map[int]*Known)
	prover := p.prover(new(scratch))
	prover.code, prover.relevant, prover.spilling = slices.Clone(p.code), allRegisters, true
	prover.watch = func(slot int, k *knowledge) {
		known[slot] = new(Known)
		known[slot].k.set(k, allRegisters)
	}
	prover.prove()
	return known
}

// Wrong describes a contradiction between known and the registers from first on,
// empty if there is none.
func (known *Known) Wrong(first int, registers []uint64, at *Place) string {
	k := &known.k
	if at.Length < k.size {
		return fmt.Sprintf("at least %d bytes of context", k.size)
	}
	offsets, compared := make([]uint64, len(registers)), make([]bool, len(registers))
	for n, r := range registers {
		v := &k.r[first+n]
		var ok bool
		if offsets[n], compared[n], ok = v.offset(r, at); !ok {
			return fmt.Sprintf("r%d is %#x, which is not in %+v", first+n, r, *v)
		}
		for m := range n {
			w := &k.r[first+m]
			if w.symbol == 0 || w.symbol != v.symbol || !compared[n] || !compared[m] {
				continue
			}
			if w.scale*(offsets[n]-v.delta) != v.scale*(offsets[m]-w.delta) {
				return fmt.Sprintf("r%d is %#x and r%d is %#x, not as in %+v and %+v", first+m, registers[m], first+n, r, *w, *v)
			}
		}
	}
	return ""
}

// offset returns the value r of a register relative to the origin of v; known says
// whether the origin's address is known, ok whether v allows r.
func (v *value) offset(r uint64, at *Place) (offset uint64, known, ok bool) {
	from := uint64(0)
	switch v.origin {
	case contextStart:
		from = at.Context
	case contextEnd:
		from = at.Context + at.Length
	case contextLength:
		from = at.Length
	case frameEnd:
		if from = at.Frame; from == 0 {
			return 0, false, true
		}
	case mapStart:
		from = at.Maps[v.index]
	case element, elementOrNull:
		ok = v.origin == elementOrNull && r == 0 ||
			slices.ContainsFunc(at.Elements[v.index], func(base uint64) bool { return v.Has(r - base) })
		return 0, false, ok
	}
	offset = r - from
	return offset, true, v.Has(offset) && (v.room == noRoom || int64(offset)+v.room <= int64(at.Length))
}
