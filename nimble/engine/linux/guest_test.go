//go:build guest

package linux

import (
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"testing"

	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/engine/portable"
	"margay/nimble/object"
	"margay/nimble/state"
	"margay/nimble/verify"
)

func newEngine(t *testing.T) engine.Engine {
	t.Helper()
	e, err := New()
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestFacts compares the kernel with portable on the facts that it accepts, one of each form of a
// random half of the forms: loading a program takes an emulated kernel a tenth of a second. It
// leaves out those about fuel, which the kernel does not have: it follows their loops until its
// limit of a million instructions, which takes some seconds each. TestAllFacts has all facts.
func TestFacts(t *testing.T) {
	facts := slices.DeleteFunc(enginetest.OfEachForm(t, allFacts(t)), func(f enginetest.Fact) bool { return strings.HasPrefix(f.File, "fuel.txt:") })
	r := enginetest.Seeded(t)
	r.Shuffle(len(facts), func(i, j int) { facts[i], facts[j] = facts[j], facts[i] })
	testFacts(t, facts[:len(facts)/2], 100, 30)
}

func allFacts(t *testing.T) []enginetest.Fact {
	t.Helper()
	facts, err := enginetest.Facts()
	if err != nil {
		t.Fatal(err)
	}
	return facts
}

// testFacts demands that so many runs are at least accepted and refused.
func testFacts(t *testing.T, facts []enginetest.Fact, accepted, refused int) {
	t.Helper()
	a := enginetest.TestAccelerator(t, portable.New(), newEngine(t), facts, true)
	t.Logf("%d facts, %+v", len(facts), a)
	if a.Accepted < accepted || a.Refused < refused {
		t.Errorf("%+v", a)
	}
}

// TestRandom compares the kernel with portable on random programs.
func TestRandom(t *testing.T) { testRandom(t, 50) }

func testRandom(t *testing.T, programs int) {
	t.Helper()
	a := enginetest.TestAgreementProvable(t, portable.New(), newEngine(t), programs)
	t.Logf("%+v", a)
	if a.Accepted < programs*5/6 {
		t.Errorf("%+v", a)
	}
}

// TestHostile tests programs that would leave their regions or never end.
func TestHostile(t *testing.T) {
	for name, lines := range map[string][]string{
		"endless loop":              {"ja -1"},
		"endless loop with an exit": {"mov r1, 1", "jeq r1, 0, +1", "ja -2", "exit"},
		"recursion":                 {"call_local +1", "exit", "call_local -1", "exit"},
		"null":                      {"mov r1, 0", "ldxdw r0, [r1]", "exit"},
		"forged pointer":            {"lddw r1, 0xffff888000000000", "ldxdw r0, [r1]", "exit"},
		"stack upwards":             {"stb [r10], 1", "exit"},
		"stack downwards":           {"stb [r10-513], 1", "exit"},
		"unaligned atomic":          {"mov r1, 1", "atomic_add [r10-9], r1", "exit"},
		"another map":               {"lddw_value r1, 0, 0", "add r1, 4096", "ldxdw r0, [r1]", "exit"},
		"address as a number":       {"mov r0, r10", "exit"},
		"address in a map":          {"lddw_value r1, 0, 0", "stxdw [r1], r10", "exit"},
		"null key":                  {"lddw_map r1, 1", "mov r2, 0", "call_named 0", "exit"},
		"register of the caller":    {"mov r6, 1", "call_local +1", "exit", "mov r0, r6", "exit"},
	} {
		p := verified(t, []state.Spec{{Name: "array", ValueSize: 8, Entries: 1}, {Name: "keyed", ValueSize: 8, Entries: 1}}, lines...)
		var maps []*state.Map
		for _, spec := range p.Maps() {
			m, err := state.New(spec, state.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			maps = append(maps, m)
		}
		code, err := newEngine(t).Thread(p, maps)
		if err == nil {
			t.Errorf("%s: accepted", name)
			code.Close()
			continue
		}
		if reason := strings.TrimPrefix(err.Error(), "linux: the kernel "); len(reason) < 20 {
			t.Errorf("%s: refused without a reason: %v", name, err)
		}
		t.Logf("%s: %v", name, err)
	}
}

// TestExtension runs an extension with all kinds of maps on both engines in turn:
// its state moves with it.
func TestExtension(t *testing.T) {
	lines := `
		ldxdw r7, [r1]
		lddw_value r6, 0, 0
		ldxdw r0, [r6+8]
		add r0, r7
		stxdw [r6+8], r0
		lddw_value r8, 1, 0
		ldxdw r8, [r8+16]
		add r0, r8
		stxdw [r1+8], r0
		stw [r10-4], 1
		lddw_map r1, 2
		mov r2, r10
		add r2, -4
		call_named 0
		jeq r0, 0, +3
		ldxdw r1, [r0]
		add r1, 1
		stxdw [r0], r1
		mov r0, r7
		exit`
	p := verified(t, []state.Spec{
		{Name: "sums", ValueSize: 8, Entries: 2},
		{Name: "constants", ValueSize: 8, Entries: 3, ReadOnly: true, Contents: []byte{16: 100}},
		{Name: "keyed", ValueSize: 12, Entries: 2},
	}, strings.Split(strings.TrimSpace(lines), "\n")...)
	spec := &object.Spec{Name: "test", Maps: p.Maps(), Externs: []string{"map_lookup_elem"}}
	for slot := range p.Len() {
		spec.Instructions = append(spec.Instructions, p.At(slot).Encoded())
	}
	const size = 16
	promise := verify.Context{Size: size, Readable: true, Writable: true}
	var inserted []*nimble.Extension
	shared := make(map[string]nimble.MapOptions)
	for _, e := range []engine.Engine{portable.New(), newEngine(t)} {
		x, err := nimble.Insert(spec, nimble.Options{Engine: e, Services: enginetest.Services(), Context: promise, Maps: shared})
		if err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		for _, m := range p.Maps() {
			shared[m.Name] = nimble.MapOptions{Memory: x.Map(m.Name).Memory()}
		}
		inserted = append(inserted, x)
	}
	rig := enginetest.NewRig(t, portable.New(), verified(t, nil, "exit"), 1, size)
	sum := uint64(0)
	for run := range uint64(10) {
		x := inserted[run%2]
		binary.LittleEndian.PutUint64(rig.Context.Bytes(), run)
		r0, err := x.Run(&nimble.Event{Context: rig.Machine.Context()})
		sum += run
		answer := binary.LittleEndian.Uint64(rig.Context.Bytes()[8:])
		counted, _ := x.Map("keyed").Value(0, 1)
		if err != nil || r0 != run || answer != sum+100 || binary.LittleEndian.Uint64(counted) != run+1 {
			t.Errorf("run %d on %s: r0 %d, answer %d, counted %x: %v", run, x.Engine(), r0, answer, counted, err)
		}
	}
	if n := inserted[1].CodeSize(); n == 0 {
		t.Error("the kernel has made no machine code")
	}
	short, _ := rig.Machine.Context().Slice("short", 0, 8)
	if _, err := inserted[1].Run(&nimble.Event{Context: short}); !errors.Is(err, nimble.ErrContext) {
		t.Errorf("with a context that is too short: %v", err)
	}
}

// TestRepeat repeats a program that counts its runs.
func TestRepeat(t *testing.T) {
	p := verified(t, []state.Spec{{Name: "runs", ValueSize: 8, Entries: 1}},
		"lddw_value r1, 0, 0", "ldxdw r0, [r1]", "add r0, 1", "stxdw [r1], r0", "exit")
	rig := enginetest.NewRig(t, newEngine(t), p, 1, 0)
	for _, c := range []struct {
		runs int
		want uint64
	}{{1, 1}, {1000, 1001}} {
		if r0, err := rig.Code.(Repeater).Repeat(rig.Machine, c.runs); err != nil || r0 != c.want {
			t.Errorf("%d runs: %d, %v", c.runs, r0, err)
		}
	}
	value, _ := rig.Maps[0].Value(0, 0)
	if n := binary.LittleEndian.Uint64(value); n != 1001 {
		t.Errorf("the map has %d", n)
	}
}
