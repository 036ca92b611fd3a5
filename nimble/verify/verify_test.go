package verify

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
)

// spec assembles lines of text.
func spec(t testing.TB, lines ...string) *object.Spec {
	t.Helper()
	s := &object.Spec{Name: "test"}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		s.Instructions = isa.Append(s.Instructions, i)
	}
	return s
}

func verified(t testing.TB, lines ...string) *Program {
	t.Helper()
	p, err := Verify(spec(t, lines...), Config{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// one is a table with a single service.
func one(t testing.TB) *service.Table {
	t.Helper()
	table, err := service.NewTable(service.Service{Number: 1, Name: "one", Func: func(*service.Call) (uint64, error) { return 0, nil }})
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// TestEveryRow verifies a program with each row of the table: the verifier accepts
// it or refuses it by name.
func TestEveryRow(t *testing.T) {
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		row := op.Row()
		i := isa.Instruction{Code: row.Code}
		switch row.Key.Field {
		case isa.Src:
			i.Src = isa.Register(row.Key.Value)
		case isa.Off:
			i.Off = int16(row.Key.Value)
		case isa.Imm:
			i.Imm = int32(row.Key.Value)
		}
		switch op {
		case isa.Call, isa.CallLocal:
			i.Imm = 1
		case isa.LdCode:
			i.Imm = 2
		}
		s := spec(t, "exit", "exit")
		s.Instructions = append(isa.Append(nil, i), s.Instructions...)
		s.Externs = []string{"one"}
		s.Maps = []state.Spec{{Name: "map", ValueSize: 8, Entries: 1}}
		p, err := Verify(s, Config{Services: one(t)})
		if row.Refused != "" || op == isa.LdVariable {
			if err == nil {
				t.Errorf("%s was accepted", op)
			}
			continue
		}
		if err != nil || p.At(0).Op != op {
			t.Errorf("%s: %v", op, err)
		}
	}
}

// TestBlocks checks that the first instruction of every block has its cost.
func TestBlocks(t *testing.T) {
	p := verified(t,
		"mov r0, 0",      // 0, a block of three
		"lddw r1, 5",     // 1 and 2
		"call_local +5",  // 3
		"add r0, 1",      // 4, the target of 5
		"jne r0, r1, -2", // 5
		"ja +1",          // 6
		"exit",           // 7
		"ja -2",          // 8
		"exit",           // 9, the function called
	)
	var costs []uint32
	for slot := range p.Len() {
		costs = append(costs, p.At(slot).Cost)
	}
	if want := []uint32{3, 0, 0, 0, 2, 0, 1, 1, 1, 1}; !reflect.DeepEqual(costs, want) {
		t.Errorf("costs %v, want %v", costs, want)
	}
	for slot, want := range map[int]int{3: 9, 5: 4, 6: 8, 8: 7} {
		if got := p.At(slot).Target(); got != want {
			t.Errorf("target of %d is %d, want %d", slot, got, want)
		}
	}
}

func TestFunctions(t *testing.T) {
	p := verified(t,
		"call_local +3", // 0
		"lddw_code r1, +4",
		"exit",           // 3
		"stb [r10-1], 0", // 4
		"exit",
		"mov r0, r10", // 6
		"exit")
	want := []Function{{0, 4, false, false}, {4, 6, true, true}, {6, 8, true, false}}
	if got := p.Functions(); !reflect.DeepEqual(got, want) {
		t.Errorf("functions %v, want %v", got, want)
	}
	for slot, n := range map[int]int{0: 0, 3: 0, 4: 1, 5: 1, 6: 2, 7: 2} {
		if got := p.Function(slot); got != want[n] {
			t.Errorf("slot %d is in %v, want %v", slot, got, want[n])
		}
	}
	if !verified(t, "call_local -1", "exit").Function(0).Called {
		t.Error("a function that calls itself is not called")
	}
}

// A program repeats instructions if a jump goes back, or it calls a function of its own.
func TestRepeats(t *testing.T) {
	for want, programs := range map[bool][][]string{
		false: {{"exit"}, {"jeq r1, 0, +1", "ja +0", "exit"}, {"lddw_code r1, +2", "exit", "exit"}},
		true:  {{"ja -1"}, {"add r0, 1", "jlt r0, 5, -2", "exit"}, {"call_local +1", "exit", "exit"}, {"exit", "ja -1"}},
	} {
		for _, lines := range programs {
			if got := verified(t, lines...).Repeats(); got != want {
				t.Errorf("%q: repeats %v, want %v", lines, got, want)
			}
		}
	}
}

// Registers includes every register that an instruction uses.
func TestRegisters(t *testing.T) {
	p := verified(t, "add r3, r7", "call_local +1", "exit", "stdw [r10-8], 1", "stxb [r9], r2", "exit")
	const want = 1<<3 | 1<<7 | 1<<10 | 1<<9 | 1<<2
	if got := p.Registers(); got&want != want || got>>11 != 0 {
		t.Errorf("registers %#b, want %#b", got, want)
	}
}

func TestProved(t *testing.T) {
	for text, want := range map[string]bool{
		"ldxb r0, [r10-1]":          true,
		"ldxb r0, [r10]":            false,
		"ldxb r0, [r10-512]":        true,
		"ldxb r0, [r10-513]":        false,
		"ldxdw r0, [r10-8]":         true,
		"ldxdw r0, [r10-7]":         false,
		"ldxdw r0, [r10-512]":       true,
		"ldxdw r0, [r1-8]":          false,
		"stdw [r10-8], 1":           true,
		"stxw [r10-4], r1":          true,
		"stxw [r10-3], r1":          false,
		"stxw [r1-8], r10":          false,
		"atomic_add32 [r10-4], r1":  true,
		"atomic_add [r10-4], r1":    false,
		"add r1, r10":               false,
		"ldxsh r0, [r10-32768]":     false,
		"atomic_cmpxchg [r1], r10":  false,
		"jeq r10, 0, +0":            false,
		"stxdw [r10-8], r10":        true,
		"atomic_xchg32 [r10-8], r1": true,
	} {
		if got := verified(t, text, "exit").At(0).Proved; got != want {
			t.Errorf("%s: proved %v, want %v", text, got, want)
		}
	}
}

// TestProofsGivenUp verifies programs whose proofs would take too long: they are
// accepted, with only the accesses proved that need no facts from other blocks.
func TestProofsGivenUp(t *testing.T) {
	long := slices.Repeat([]string{"mov r2, r10", "ldxb r0, [r2-1]", "ldxb r0, [r1]", "ja +0"}, maxProved/4+1)
	wide := []string{"mov r2, r1"}
	for range maxKept + 1 {
		wide = append(wide, "jeq r1, 1, "+fmt.Sprint(maxKept))
	}
	wide = append(wide, slices.Repeat([]string{"ldxb r0, [r2]"}, maxKept+1)...)
	var loops []string
	for range maxKept {
		loops = append(loops, "mov r2, r10", "ldxb r0, [r2-1]", "ldxb r0, [r1]", "jeq r1, 1, -4")
	}
	for name, c := range map[string]struct {
		lines  []string
		proved int
	}{
		"too long":       {long, maxProved/4 + 1},
		"too wide":       {wide, 0},
		"too many loops": {loops, maxKept},
		"not too long":   {long[8:], 2 * (maxProved/4 - 1)},
		"not so many":    {loops[:40], 20},
	} {
		p, err := Verify(spec(t, append(slices.Clone(c.lines), "exit")...), Config{Context: Context{Size: 1, Readable: true}})
		if err != nil {
			t.Fatal(err)
		}
		proved := 0
		for slot := range p.Len() {
			if p.At(slot).Proved {
				proved++
			}
		}
		if proved != c.proved {
			t.Errorf("%s: %d accesses are proved, want %d", name, proved, c.proved)
		}
	}
}

func wantRefusal(t *testing.T, s *object.Spec, c Config, slot int, reason string) *Refusal {
	t.Helper()
	_, err := Verify(s, c)
	var r *Refusal
	if !errors.As(err, &r) || r.Slot != slot || !strings.Contains(r.Reason, reason) {
		t.Fatalf("got %v, want a refusal of %d with %q", err, slot, reason)
	}
	return r
}

func TestLength(t *testing.T) {
	wantRefusal(t, &object.Spec{}, Config{}, 0, "empty")
	wantRefusal(t, spec(t, "mov r0, 1", "mov r0, 2", "exit"), Config{MaxInstructions: 2}, 2, "at most 2")
	long := &object.Spec{Instructions: make([]isa.Instruction, object.MaxInstructions+1)}
	mov := spec(t, "mov r0, 1").Instructions[0]
	for i := range long.Instructions {
		long.Instructions[i] = mov
	}
	long.Instructions[object.MaxInstructions-1] = isa.Instruction{Code: isa.Exit.Row().Code}
	wantRefusal(t, long, Config{}, object.MaxInstructions, "at most 1000000")
	wantRefusal(t, long, Config{MaxInstructions: 1 << 30}, object.MaxInstructions, "at most 1000000")
	long.Instructions = long.Instructions[:object.MaxInstructions]
	if p, err := Verify(long, Config{}); err != nil || p.At(0).Cost != object.MaxInstructions {
		t.Errorf("the longest program: %v", err)
	}
}

func TestSourceLine(t *testing.T) {
	s := spec(t, "mov r0, 1", "call 9", "exit")
	s.Lines = []object.Line{{Slot: 0, File: "a.c", Number: 7}, {Slot: 1, File: "a.c", Number: 8}}
	r := wantRefusal(t, s, Config{}, 1, "unknown service 9")
	if got, want := r.Error(), "insn=1: a.c:8: unknown service 9; there are none"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestImpossibleMap names a map that cannot be made: the instruction is refused.
func TestImpossibleMap(t *testing.T) {
	s := spec(t, "mov r0, 1", "lddw_map r1, 0", "exit")
	for _, m := range []state.Spec{
		{Name: "map", ValueSize: 8},
		{Name: "map", ValueSize: 1 << 31, Entries: 1 << 31},
		{Name: "map", ValueSize: 8, Entries: 1, Contents: make([]byte, 9)},
	} {
		s.Maps = []state.Spec{m}
		wantRefusal(t, s, Config{}, 1, `map "map": `)
	}
}

// TestBrokenWide verifies instructions that no decoder returns.
func TestBrokenWide(t *testing.T) {
	wide := spec(t, "lddw r0, 1").Instructions[0]
	exit := spec(t, "exit").Instructions[0]
	wantRefusal(t, &object.Spec{Instructions: []isa.Instruction{wide}}, Config{}, 0, "second half")
	wantRefusal(t, &object.Spec{Instructions: []isa.Instruction{wide, exit}}, Config{}, 0, "second half")
}

// TestProgramIsACopy checks that a Program does not follow changes of its Spec.
func TestProgramIsACopy(t *testing.T) {
	s := spec(t, "lddw_map r1, 0", "exit")
	s.Maps = []state.Spec{{Name: "map", ValueSize: 8, Entries: 1}}
	p, err := Verify(s, Config{Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	s.Instructions[0], s.Maps[0].Name = isa.Instruction{}, "changed"
	p.Maps()[0].Name = "changed"
	if p.At(0).Op != isa.LdMap || p.Maps()[0].Name != "map" || !p.Trusted() || p.Name() != "test" {
		t.Error("the program changed")
	}
}

// FuzzVerify verifies arbitrary bytes: an accepted program has the properties that
// engines rely on.
func FuzzVerify(f *testing.F) {
	f.Add(isa.Encode(spec(f, "mov r0, 1", "jeq r0, 1, -2", "call_local +1", "exit", "exit").Instructions))
	f.Add(isa.Encode(spec(f, "lddw_map r1, 0", "call 1", "gotol -4").Instructions))
	table := one(f)
	f.Fuzz(func(t *testing.T, code []byte) {
		s, err := object.Raw(code)
		if err != nil {
			return
		}
		s.Maps = []state.Spec{{Name: "map", ValueSize: 8, Entries: 1}}
		p, err := Verify(s, Config{Services: table})
		if err != nil {
			var r *Refusal
			if !errors.As(err, &r) || r.Slot < 0 || r.Slot > len(s.Instructions) {
				t.Fatalf("error %v", err)
			}
			return
		}
		var total uint32
		instructions := uint32(0)
		for slot := range p.Len() {
			i := p.At(slot)
			total += i.Cost
			if i.Op != isa.Invalid {
				instructions++
				encoded := i.Encoded()
				if _, err := encoded.Check(); err != nil || encoded != s.Instructions[slot] {
					t.Errorf("accepted %v as %v: %v", s.Instructions[slot], encoded, err)
				}
			}
			if called := i.Op == isa.Call || i.Op == isa.CallNamed; called {
				if i.Target() >= len(p.Services()) {
					t.Errorf("%v calls service %d", i.Encoded(), i.Target())
				}
			} else if i.Op.Distance() != isa.NoField && (i.Target() < 0 || i.Target() >= p.Len() || p.At(i.Target()).Op == isa.Invalid) {
				t.Errorf("%v goes to %d", i.Encoded(), i.Target())
			}
		}
		if total != instructions || p.At(0).Cost == 0 {
			t.Errorf("blocks cost %d for %d instructions", total, instructions)
		}
	})
}

// BenchmarkVerify verifies programs of about 1000 and 10,000 instructions, with
// and without proofs: a row of comparisons, and loops.
func BenchmarkVerify(b *testing.B) {
	row := []string{"ldxw r0, [r1]", "jle r0, r2, +1", "add r0, r2", "stxdw [r10-8], r0"}
	loop := []string{
		"mov r3, 0", "mov r4, r1", "ldxb r5, [r4]", "add r0, r5", "add r4, 1", "add r3, 1", "jlt r3, 40, -5",
		"and r0, 31", "mov r4, r1", "add r4, r0", "ldxb r0, [r4]",
	}
	for _, c := range []struct {
		name     string
		lines    []string
		times    int
		noProofs bool
	}{
		{"row/1000", row, 250, false},
		{"row/1000/unproved", row, 250, true},
		{"row/10000", row, 2500, false},
		{"loops/1000", loop, 91, false},
		{"loops/10000", loop, 910, false},
		{"loops/10000/unproved", loop, 910, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := spec(b, append(slices.Repeat(c.lines, c.times), "exit")...)
			config := Config{Context: Context{Size: 64, Readable: true}, NoProofs: c.noProofs}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := Verify(s, config); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
