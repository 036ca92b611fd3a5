package verify_test

import (
	"testing"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// TestObvious tests accesses through r10 and r1 at the bounds of their memory, in
// programs that obvious accepts and in similar ones that need a prover.
func TestObvious(t *testing.T) {
	whole := verify.Context{Size: 16, Readable: true, Writable: true}
	for _, c := range []struct {
		name    string
		context verify.Context
		lines   []string
		proved  []bool // of the accesses
	}{
		{"stack", verify.Context{}, []string{"stxdw [r10-8], r0", "ldxb r1, [r10-512]", "exit"}, []bool{true, true}},
		{"under the stack", verify.Context{}, []string{"stxb [r10-513], r0", "exit"}, []bool{false}},
		{"over the stack", verify.Context{}, []string{"stxw [r10-3], r0", "exit"}, []bool{false}},
		{"context", whole, []string{"ldxdw r0, [r1+8]", "stxb [r1+15], r0", "atomic_add [r1+0], r0", "exit"}, []bool{true, true, true}},
		{"behind the context", whole, []string{"ldxdw r0, [r1+9]", "exit"}, []bool{false}},
		{"before the context", whole, []string{"ldxb r0, [r1-1]", "exit"}, []bool{false}},
		{"no promise", verify.Context{}, []string{"ldxb r0, [r1]", "exit"}, []bool{false}},
		{"read-only", verify.Context{Size: 16, Readable: true}, []string{"ldxb r0, [r1]", "stxb [r1], r0", "atomic_add [r1], r0", "exit"}, []bool{true, false, false}},
		{"write-only", verify.Context{Size: 16, Writable: true}, []string{"stxb [r1], r0", "ldxb r0, [r1]", "exit"}, []bool{true, false}},
		{"r1 loaded", whole, []string{"ldxdw r1, [r1]", "ldxb r0, [r1]", "exit"}, []bool{true, false}},
		{"r1 fetched", whole, []string{"atomic_fetch_add [r1], r1", "ldxb r0, [r1]", "exit"}, []bool{true, false}},
		{"r1 computed", whole, []string{"add r1, 16", "ldxb r0, [r1]", "exit"}, []bool{false}},
		{"r1 constant", whole, []string{"lddw r1, 5", "ldxb r0, [r1]", "exit"}, []bool{false}},
		{"r1 swapped", whole, []string{"be64 r1", "ldxb r0, [r1]", "exit"}, []bool{false}},
		{"through r2", whole, []string{"mov r2, r1", "ldxb r0, [r2]", "ldxb r0, [r10-1]", "exit"}, []bool{true, true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			spec := &object.Spec{}
			for _, line := range c.lines {
				i, err := isa.Parse(line)
				if err != nil {
					t.Fatal(err)
				}
				spec.Instructions = isa.Append(spec.Instructions, i)
			}
			p, err := verify.Verify(spec, verify.Config{Context: c.context})
			if err != nil {
				t.Fatal(err)
			}
			for slot := range p.Len() {
				i := p.At(slot)
				if i.Op.Size() == 0 {
					if i.Proved {
						t.Errorf("slot %d is no access", slot)
					}
					continue
				}
				if i.Proved != c.proved[0] {
					t.Errorf("slot %d: proved is %v", slot, i.Proved)
				}
				c.proved = c.proved[1:]
			}
		})
	}
}
