package enginetest

import (
	"math/rand/v2"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// TestRegisters compares two engines on every instruction with every register, or
// pair of registers, that it can name; jumps go forwards and back to their own
// block. The random programs of TestAgreement mostly use the same few registers.
// With -short, it compares one pair in four, others each time.
func TestRegisters(t *testing.T, oracle, e engine.Engine) {
	r := Seeded(t)
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		dst, src := op.Bounds(isa.Dst), op.Bounds(isa.Src)
		if op.Row().Refused != "" || dst.Max == 0 || op == isa.LdVariable || op == isa.LdCode {
			continue // no registers, or not for this test
		}
		for d := dst.Min; d <= dst.Max; d++ {
			for s := src.Min; s <= src.Max; s++ {
				if testing.Short() && r.IntN(4) > 0 {
					continue
				}
				dst, src := isa.Register(d), isa.Register(s)
				agree(t, oracle, e, oneInstruction(r, op, dst, src, false), verify.Context{}, 200)
				if form := op.Form(); form == isa.FormCondImm || form == isa.FormCondSrc {
					agree(t, oracle, e, oneInstruction(r, op, dst, src, true), verify.Context{}, 200)
				}
				if t.Failed() {
					t.Fatalf("%s with dst r%d and src r%d", op, d, s)
				}
			}
		}
	}
}

// oneInstruction makes a program that sets registers to random values, and the
// base of an access to an address. It then executes one instruction. A jump skips
// the next instruction, or with back repeats its own block of two until a register
// has changed enough or the fuel is used up. The program ends by combining all
// registers into one number.
func oneInstruction(r *rand.Rand, op isa.Op, dst, src isa.Register, back bool) *object.Spec {
	var code []isa.Instruction
	for n := range isa.FramePointer {
		v := interesting(r)
		code = isa.Append(code, isa.Instruction{Code: isa.LdDW.Row().Code, Dst: n, Imm: int32(v), High: int32(v >> 32)})
	}
	bounded := func(f isa.Field, v int64) int64 { return max(op.Bounds(f).Min, min(op.Bounds(f).Max, v)) }
	i := isa.Instruction{Code: op.Row().Code, Dst: dst, Src: src, Off: int16(bounded(isa.Off, 1)), Imm: int32(bounded(isa.Imm, int64(int32(interesting(r)))))}
	switch form := op.Form(); form {
	case isa.FormWideIndex, isa.FormWideValue:
		i.Imm = 0 // the only map
	case isa.FormLoad, isa.FormStore, isa.FormStoreImm, isa.FormAtomic, isa.FormAtomicFetch:
		base := dst
		if form == isa.FormLoad {
			base = src
		}
		i.Off = int16(8 * r.IntN(4))
		if base == isa.FramePointer {
			i.Off -= 64
		} else {
			code = isa.Append(code, isa.Instruction{Code: isa.LdValue.Row().Code, Dst: base, Src: 6, High: 8})
		}
	}
	if back {
		i.Off = -2
		step := isa.Instruction{Code: isa.AddK.Row().Code, Dst: min(dst, isa.FramePointer-1), Imm: i.Imm/16 + 1}
		code = isa.Append(code, step)
	}
	code = append(isa.Append(code, i), isa.Instruction{Code: isa.XorK.Row().Code, Imm: 0x5555})
	for n := isa.Register(1); n < isa.FramePointer; n++ {
		code = append(code, isa.Instruction{Code: isa.MulK.Row().Code, Imm: 31}, isa.Instruction{Code: isa.AddX.Row().Code, Src: n})
	}
	code = append(code, isa.Instruction{Code: isa.Exit.Row().Code})
	return &object.Spec{
		Name:         "registers",
		Instructions: code,
		Maps:         []state.Spec{{Name: "array", ValueSize: 64, Entries: 1, Contents: []byte("0123456789abcdefghijklmnopqrstuvwxyz")}},
	}
}

// interesting returns a number of a kind at which operations differ: any, small,
// or near a power of two.
func interesting(r *rand.Rand) uint64 {
	switch r.IntN(3) {
	case 0:
		return r.Uint64()
	case 1:
		return uint64(r.IntN(5) - 2)
	}
	return uint64(1)<<r.IntN(64) - uint64(r.IntN(2))
}
