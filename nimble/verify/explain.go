package verify

import (
	"fmt"
	"slices"

	"margay/nimble/isa"
)

// Explain returns a text for every access of the program, by slot: its place if
// it was proved, or the reason why it was not. Other instructions have an empty
// text. It repeats the whole proof.
func (p *Program) Explain() []string {
	prover := p.prover(new(scratch))
	prover.code = slices.Clone(p.code)
	prover.explained = make([]string, len(p.code))
	prover.prove()
	for slot := range p.code {
		if p.code[slot].Op.Size() > 0 && prover.explained[slot] == "" {
			prover.explained[slot] = "it is never reached"
		}
	}
	return prover.explained
}

// explain describes an access for readers.
func (p *prover) explain(k *knowledge, v *value, i *Instruction, use uses, ok bool) string {
	register, off, size := i.Dst, int64(i.Off), int64(i.Op.Size())
	if i.Op.Form() == isa.FormLoad {
		register = i.Src
	}
	switch {
	case v.origin == elementOrNull:
		return fmt.Sprintf("r%d may be 0 or an element of map %q", register, p.maps[v.index].Name)
	case v.origin == contextLength || v.origin == plain:
		return fmt.Sprintf("r%d is not a known pointer but %v", register, k.number(v).Set)
	case v.origin == contextEnd:
		return fmt.Sprintf("r%d is at %v from the end of the context", register, v.Set)
	case !p.allowed(v, use) && v.origin == contextStart:
		return "nothing is promised of the context"
	case !p.allowed(v, use):
		return fmt.Sprintf("map %q is read-only", p.maps[v.index].Name)
	}
	where := fmt.Sprintf("%s%+d..%d", p.place(v), v.SignedMin()+off, v.SignedMax()+off+size-1)
	if v.SignedMin() < -small || v.SignedMax() > small {
		where = p.place(v) + " and any distance"
	}
	switch {
	case v.origin != contextStart:
		return fmt.Sprintf("%s of %d", where, p.length(v))
	case ok && v.SignedMax()+off+size > int64(k.size):
		return where + " and before its end"
	}
	return fmt.Sprintf("%s of at least %d", where, k.size)
}

// place names what v points into.
func (p *prover) place(v *value) string {
	switch v.origin {
	case frameEnd:
		return "stack"
	case contextStart:
		return "context"
	case element:
		return fmt.Sprintf("element of map %q", p.maps[v.index].Name)
	}
	return fmt.Sprintf("map %q", p.maps[v.index].Name)
}
