package subroutine

import (
	"math"
	"slices"
	"testing"
	"unsafe"

	"golang.org/x/arch/x86/x86asm"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// TestOffsets checks the offsets that emitted code and assembly assume.
func TestOffsets(t *testing.T) {
	var k cpu
	var w engine.Window
	var f engine.Frame
	for name, c := range map[string]struct{ got, want uintptr }{
		"end":      {unsafe.Offsetof(k.end), 0},
		"reg":      {unsafe.Offsetof(k.reg), offReg},
		"addr":     {unsafe.Offsetof(k.addr), offAddr},
		"stray":    {unsafe.Offsetof(k.stray), offStray},
		"at":       {unsafe.Offsetof(k.at), offAt},
		"read":     {unsafe.Offsetof(k.read), offRead},
		"write":    {unsafe.Offsetof(k.write), offWrite},
		"atomic":   {unsafe.Offsetof(k.atomic), offAtomic},
		"spill":    {unsafe.Offsetof(k.spill), offSpill},
		"top":      {unsafe.Offsetof(k.top), offTop},
		"bp":       {unsafe.Offsetof(k.bp), offBP},
		"reads":    {unsafe.Offsetof(k.reads), offReads},
		"writes":   {unsafe.Offsetof(k.writes), offWrites},
		"frames":   {unsafe.Offsetof(k.frames), offFrames},
		"frame":    {unsafe.Offsetof(k.frame), offFrame},
		"stack":    {unsafe.Offsetof(k.stack), offStack},
		"code":     {unsafe.Offsetof(k.code), offCode},
		"of first": {unsafe.Offsetof(k.reads.first), offFirst},
		"of end":   {unsafe.Offsetof(k.reads.end), offEnd},
		"Window":   {unsafe.Sizeof(w), windowSize},
		"Return":   {unsafe.Offsetof(f.Return), offReturn},
		"Saved":    {unsafe.Offsetof(f.Saved), offSaved},
		"FP":       {unsafe.Offsetof(f.FP), offFP},
		"Frame":    {unsafe.Sizeof(f), frameSize},
		"Base":     {unsafe.Offsetof(w.Base), offBase},
		"Limit":    {unsafe.Offsetof(w.Limit), offLimit},
		"Limit n":  {unsafe.Sizeof(w.Limit[0]), 8},
		"reg n":    {unsafe.Sizeof(k.reg[0]), 8},
	} {
		if c.got != c.want {
			t.Errorf("%s is at %d, the code says %d", name, c.got, c.want)
		}
	}
	if room := unsafe.Sizeof(engine.Machine{}.Scratch); unsafe.Sizeof(k) > room {
		t.Errorf("a cpu of %d bytes in a room of %d", unsafe.Sizeof(k), room)
	}
}

// TestRegisters checks that no machine register has two uses.
func TestRegisters(t *testing.T) {
	seen := map[reg]bool{sp: true, r14: true, scratch: true, self: true, fuel: true}
	if len(seen) != 5 {
		t.Error("scratch, self and fuel are not three registers of their own")
	}
	for n, r := range machineRegister {
		if seen[r] {
			t.Errorf("r%d shares its register", n)
		}
		seen[r] = true
	}
}

// TestEmittedCode disassembles the code of random programs: every byte belongs to
// an instruction, jumps and calls go to instructions, and no instruction uses
// Go's registers or the stack pointer.
func TestEmittedCode(t *testing.T) {
	r := enginetest.Seeded(t)
	data := make([]byte, 400)
	seen := make(map[isa.Op]bool)
	for range 500 {
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		spec := enginetest.Generate(data)
		for _, trusted := range []bool{false, true} {
			p, err := verify.Verify(spec, verify.Config{Services: enginetest.Services(), Trusted: trusted})
			if err != nil {
				t.Fatal(err)
			}
			for slot := range p.Len() {
				seen[p.At(slot).Op] = true
			}
			for _, f := range []form{{}, formOf(p), {calls: true}} {
				disassemble(t, emit(t, p, f), f.calls)
			}
		}
	}
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		if !seen[op] && op.Row().Refused == "" && op != isa.LdVariable {
			t.Errorf("%s was never emitted", op)
		}
	}
}

// emit threads a program and returns its code.
func emit(t *testing.T, p *verify.Program, f form) []byte {
	t.Helper()
	var maps []*state.Map
	for _, spec := range p.Maps() {
		m, err := state.New(spec, state.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		maps = append(maps, m)
	}
	emitted := thread(p, maps, f)
	defer emitted.recycle()
	return slices.Clone(emitted.code[:emitted.written])
}

func disassemble(t *testing.T, code []byte, calls bool) {
	t.Helper()
	starts := make(map[int]bool)
	var targets []int
	for at := 0; at < len(code); {
		i, err := x86asm.Decode(code[at:], 64)
		if err != nil {
			t.Fatalf("at %d of %d: %v: % x", at, len(code), err, code[at:min(at+16, len(code))])
		}
		starts[at] = true
		at += i.Len
		if calls && usesStack(i) {
			continue
		}
		switch i.Op {
		case x86asm.CALL:
			if _, near := i.Args[0].(x86asm.Rel); !near {
				t.Errorf("%v in emitted code", i)
			}
		case x86asm.PUSH, x86asm.POP, x86asm.SYSCALL, x86asm.INT, x86asm.LEAVE:
			t.Errorf("%v in emitted code", i)
		}
		for _, arg := range i.Args {
			switch arg := arg.(type) {
			case x86asm.Rel:
				targets = append(targets, at+int(arg))
			case x86asm.Reg:
				if forbidden(arg) {
					t.Errorf("%v uses a register that is not ours", i)
				}
			case x86asm.Mem:
				if forbidden(arg.Base) || arg.Index != 0 || arg.Segment != 0 {
					t.Errorf("%v has an address that nobody emits", i)
				}
			}
		}
	}
	for _, target := range targets {
		if !starts[target] {
			t.Errorf("a jump goes to %d, in the middle of an instruction", target)
		}
	}
}

// usesStack reports whether an instruction is one with which subroutine-calls
// hides a return address, restores it and drops it.
func usesStack(i x86asm.Inst) bool {
	_, inMemory := i.Args[0].(x86asm.Mem)
	switch i.Op {
	case x86asm.PUSH, x86asm.POP:
		return inMemory
	case x86asm.ADD:
		return i.Args[0] == x86asm.RSP && i.Args[1] == x86asm.Imm(8)
	}
	return false
}

// forbidden reports whether a register is Go's or the stack pointer.
func forbidden(r x86asm.Reg) bool {
	switch r {
	case x86asm.R14, x86asm.R14L, x86asm.R14W, x86asm.R14B, x86asm.RSP, x86asm.ESP, x86asm.SP, x86asm.SPB, x86asm.AH, x86asm.CH, x86asm.DH, x86asm.BH:
		return true
	}
	return r >= x86asm.X0 && r <= x86asm.X15
}

// TestConstantDivisors divides by constants, in AX and elsewhere.
func TestConstantDivisors(t *testing.T) {
	r := enginetest.Seeded(t)
	divisors := []int32{1, 2, 3, 5, 6, 7, 10, 64, 97, 641, 1 << 20, 1 << 30, math.MaxInt32, math.MinInt32, math.MinInt32 + 1, -1, -2, -3, -97}
	dividends := []uint64{0, 1, 2, 96, 97, 98, 1<<31 - 1, 1 << 31, 1<<32 - 1, 1 << 32, 1<<63 - 1, 1 << 63, 1<<64 - 2, 1<<64 - 1}
	for range 200 {
		divisors = append(divisors, int32(r.Uint32())>>r.IntN(31))
		dividends = append(dividends, r.Uint64()>>r.IntN(64))
	}
	for _, d := range divisors {
		if d == 0 {
			continue
		}
		for _, dst := range []isa.Register{0, 3} {
			testDivisor(t, dst, d, dividends)
		}
	}
}

// testDivisor divides by d in one register, in the four ways: each dividend, its
// multiple by d, and the neighbours of the multiple.
func testDivisor(t *testing.T, dst isa.Register, d int32, dividends []uint64) {
	t.Helper()
	wide, narrow := uint64(int64(d)), uint64(uint32(d))
	for _, c := range []struct {
		op   isa.Op
		want func(x uint64) uint64
	}{
		{isa.DivK, func(x uint64) uint64 { return x / wide }},
		{isa.ModK, func(x uint64) uint64 { return x % wide }},
		{isa.Div32K, func(x uint64) uint64 { return uint64(uint32(x)) / narrow }},
		{isa.Mod32K, func(x uint64) uint64 { return uint64(uint32(x)) % narrow }},
	} {
		p, err := verify.Verify(&object.Spec{Instructions: []isa.Instruction{
			{Code: isa.MovX.Row().Code, Dst: dst, Src: 1},
			{Code: c.op.Row().Code, Dst: dst, Imm: d},
			{Code: isa.MovX.Row().Code, Dst: 0, Src: dst},
			{Code: isa.Exit.Row().Code},
		}}, verify.Config{})
		if err != nil {
			t.Fatal(err)
		}
		rig := enginetest.NewRig(t, subroutine{}, p, 1, 0)
		for _, x := range dividends {
			for _, x := range []uint64{x, x * wide, x*wide - 1, x * narrow, x*narrow - 1} {
				rig.Machine.Args[0], rig.Machine.Fuel = x, 4
				if got, err := rig.Code.Run(rig.Machine); err != nil || got != c.want(x) {
					t.Fatalf("%v r%d, %d of %#x: got %#x, %v, want %#x", c.op, dst, d, x, got, err, c.want(x))
				}
			}
		}
	}
}
