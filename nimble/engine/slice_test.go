package engine_test

import (
	"testing"

	"margay/nimble/asm"
	"margay/nimble/engine"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// TestSlice weighs programs by their heaviest block.
func TestSlice(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       uint64
	}{
		{"simple", "mov r0, 1\nadd r0, 2\nexit", engine.MaxSlice},
		{"wide", "lddw r0, 1\nexit", engine.MaxSlice},
		{"division among much else", "mov r0, 8\nmov r1, 2\nmov r2, 3\nmov r3, 4\nmov r4, 5\nadd r1, 1\nadd r1, 1\n" +
			"add r1, 1\nadd r1, 1\nadd r1, 1\nadd r1, 1\nadd r1, 1\nadd r1, 1\nadd r1, 1\ndiv r0, r1\nexit", engine.MaxSlice},
		{"divisions", "div r0, r1\nsdiv32 r0, r1\nexit", 20_000 * 3 / 33},
		{"remainder in one of two blocks", "add r0, 1\njeq r0, 0, next\nmod r0, 3\nnext:\nexit", 20_000 / 16},
		{"load and atomic operation", "ldxb r0, [r1]\natomic_add [r1], r0\nexit", 20_000 * 3 / 33},
		{"function behind the first", "call_local f\nexit\nf:\nsmod r0, r1\nexit", 20_000 * 2 / 17},
	} {
		program, err := asm.Parse(c.text)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		p, err := verify.Verify(&object.Spec{Instructions: program}, verify.Config{})
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if got := engine.Slice(p); got != c.want || got < engine.MinSlice {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
