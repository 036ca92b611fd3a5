package enginetest

import (
	"testing"

	"margay/nimble/isa"
)

// TestEveryRowHasAFact fails if a row of the instruction table occurs in no
// program that a fact runs, or, if Nimble refuses it, in none that a fact
// expects to be refused.
func TestEveryRowHasAFact(t *testing.T) {
	facts, err := Facts()
	if err != nil {
		t.Fatal(err)
	}
	ran, refused := make(map[isa.Op]bool), make(map[isa.Op]bool)
	for _, f := range facts {
		for _, r := range f.Runs {
			seen := ran
			if r.Want == "refused" {
				seen = refused
			}
			for _, i := range f.Spec.Instructions {
				seen[i.Op()] = true
			}
		}
	}
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		want := ran
		if op.Row().Refused != "" || op == isa.LdVariable {
			want = refused
		}
		if !want[op] {
			t.Errorf("no fact for %s (opcode %#02x)", op, op.Row().Code)
		}
	}
	names := make(map[string]string)
	for _, f := range facts {
		if at := names[f.Name]; at != "" {
			t.Errorf("%s and %s are both called %q", at, f.File, f.Name)
		}
		names[f.Name] = f.File
	}
}

func TestParseRefuses(t *testing.T) {
	for _, text := range []string{
		"exit",
		"fact x\nnonsense",
		"fact x\nexit\nrun",
		"fact x\nexit\nrun =>",
		"fact x\nexit\nrun r9=1 => 0",
		"fact x\nexit\nrun fuel=x => 0",
		"fact x\nexit\nrun => 0 fuel=1 fuel=2",
		"fact x\nhex 00zz",
		"fact x\nhex 00\nrun => 0",
		"fact x\nmap a array 1",
		"fact x\nmap a tree 1 1",
		"fact x\nmap a array x 1",
		"fact x\nmap a array 1 1 zz",
	} {
		if _, err := Parse("x", text); err == nil {
			t.Errorf("%q was accepted", text)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add("fact x\nmap a array 8 1\nadd r1, r2\nexit\nrun r1=1 mem=00 => 1 fuel=0")
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = Parse("fuzz", text)
	})
}
