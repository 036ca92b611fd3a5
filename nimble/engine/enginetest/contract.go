package enginetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/verify"
)

// contract lists the tests that text facts cannot express.
var contract = []struct {
	name string
	test func(*testing.T, engine.Engine)
}{
	{"ThreadRefusesWhatIsNotVerified", testThreadRefuses},
	{"NothingIsStale", testNothingIsStale},
	{"TheContextIsOnlyThatOfTheRun", testContextChanges},
	{"NoAllocation", testNoAllocation},
	{"TimeLimit", testTimeLimit},
	{"TheWorldStops", testTheWorldStops},
	{"MachinesShareCode", testMachinesShareCode},
	{"AtomicsAreAtomic", testAtomics},
	{"ServicesSeeTheRun", testServices},
	{"FaultsSayWhere", testFaultsSayWhere},
	{"FaultsLeaveNoCallers", testFaultsLeaveNoCallers},
	{"TrustedStrayAccess", testTrustedStrayAccess},
	{"TrustedStrayAccessLater", testTrustedStrayAccessLater},
	{"PanicOfAService", testPanicOfAService},
	{"ServicesSpendFuel", testServicesSpendFuel},
	{"RandomPrograms", testRandomPrograms},
}

// assemble verifies a program of text lines.
func assemble(t testing.TB, trusted bool, lines ...string) *verify.Program {
	t.Helper()
	spec := &object.Spec{Name: "test"}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	for slot := range spec.Instructions {
		spec.Lines = append(spec.Lines, object.Line{Slot: slot, File: "test.c", Number: 100 + slot})
	}
	p, err := verify.Verify(spec, verify.Config{Services: Services(), Trusted: trusted})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// run runs a rig with fuel for small programs.
func (rig *Rig) run() (uint64, error) {
	rig.Machine.Fuel = defaultFuel
	return rig.Code.Run(rig.Machine)
}

// wantFault checks a run's error.
func wantFault(t *testing.T, err error, kind engine.Kind, pc int, addr uint64) *engine.Fault {
	t.Helper()
	var f *engine.Fault
	if !errors.As(err, &f) || f.Kind != kind || f.PC != pc || f.Addr != addr {
		t.Fatalf("got %v, want kind=%s pc=%d addr=%#x", err, kind, pc, addr)
	}
	return f
}

func testThreadRefuses(t *testing.T, e engine.Engine) {
	if _, err := e.Thread(&verify.Program{}, nil); err == nil {
		t.Error("a program that was not verified was threaded")
	}
	spec := Generate(nil)
	p, err := verify.Verify(spec, verify.Config{Services: Services()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Thread(p, nil); err == nil {
		t.Error("a program was threaded without its maps")
	}
}

// testNothingIsStale checks that a run sees nothing of the previous run in
// registers and on the stack.
func testNothingIsStale(t *testing.T, e engine.Engine) {
	rig := NewRig(t, e, assemble(t, false,
		"ldxdw r0, [r10-8]",
		"ldxdw r2, [r10-512]",
		"or r0, r2",
		"or r0, r5",
		"or r0, r6",
		"or r0, r9",
		"stdw [r10-8], -1",
		"stdw [r10-512], -1",
		"mov r5, -1",
		"mov r6, -1",
		"mov r9, -1",
		"exit"), 1, 0)
	for range 3 {
		if r0, err := rig.run(); err != nil || r0 != 0 {
			t.Fatalf("saw %#x, error %v", r0, err)
		}
	}
}

// testContextChanges gives each run another context: the previous one is
// inaccessible.
func testContextChanges(t *testing.T, e engine.Engine) {
	rig := NewRig(t, e, assemble(t, false, "ldxdw r0, [r1]", "ldxdw r0, [r2]", "exit"), 1, 16)
	first := rig.Machine.Context()
	rig.Machine.Args[1] = first.Base
	if _, err := rig.run(); err != nil {
		t.Fatal(err)
	}
	other, err := memory.Map("other", 16)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	rig.Machine.SetContext(other.Region(false))
	rig.Machine.Args[0] = rig.Machine.Context().Base
	_, err = rig.run()
	wantFault(t, err, engine.Memory, 1, first.Base)
	rig.Machine.SetContext(memory.Region{})
	_, err = rig.run()
	wantFault(t, err, engine.Memory, 0, other.Region(false).Base)
}

func testNoAllocation(t *testing.T, e engine.Engine) {
	for _, trusted := range []bool{false, true} {
		rig := NewRig(t, e, assemble(t, trusted,
			"stdw [r10-8], 1", "mov r6, r1", "call_local +2", "call 1", "exit", "ldxdw r0, [r1]", "exit"), 4, 8)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := rig.run(); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("trusted %v: %v allocations in a run", trusted, n)
		}
	}
}

func testTimeLimit(t *testing.T, e engine.Engine) {
	rig := NewRig(t, e, assemble(t, false, "add r0, 1", "ja -2"), 1, 0)
	rig.Machine.Fuel, rig.Machine.MaxTime = 1<<60, 20*time.Millisecond
	start := time.Now()
	_, err := rig.Code.Run(rig.Machine)
	f := wantFault(t, err, engine.Time, 0, 0)
	if f.Fuel == 0 || f.Fuel >= 1<<60 || f.Fuel != rig.Machine.Fuel {
		t.Errorf("fuel left is %d, of the machine %d", f.Fuel, rig.Machine.Fuel)
	}
	if took := time.Since(start); took > 20*time.Second {
		t.Errorf("stopped after %v", took)
	}
}

// testTheWorldStops stops the world repeatedly while an endless program runs. It
// logs how long that takes, and has no limit.
func testTheWorldStops(t *testing.T, e engine.Engine) {
	rig := NewRig(t, e, assemble(t, false, "add r0, 1", "ja -2"), 1, 0)
	rig.Machine.Fuel, rig.Machine.MaxTime = 1<<60, 500*time.Millisecond
	ended := make(chan error, 1)
	go func() {
		_, err := rig.Code.Run(rig.Machine)
		ended <- err
	}()
	var stops []time.Duration
	for {
		select {
		case err := <-ended:
			wantFault(t, err, engine.Time, 0, 0)
			if len(stops) == 0 {
				t.Fatal("the world was never stopped")
			}
			slices.Sort(stops)
			t.Logf("%d stops: median %v, 99 %% %v, longest %v", len(stops), stops[len(stops)/2], stops[len(stops)*99/100], stops[len(stops)-1])
			return
		default:
			var stats runtime.MemStats
			start := time.Now()
			runtime.ReadMemStats(&stats)
			stops = append(stops, time.Since(start))
		}
	}
}

func testMachinesShareCode(t *testing.T, e engine.Engine) {
	p := assemble(t, false,
		"stxdw [r10-8], r1", "call_local +5", "ldxdw r2, [r10-8]", "sub r0, r2", "add r1, -1", "jne r1, 0, -6", "exit",
		"mov r6, r1", "stxdw [r10-8], r6", "ldxdw r0, [r10-8]", "exit")
	rig := NewRig(t, e, p, 2, 0)
	var wait sync.WaitGroup
	for range 4 {
		m, err := engine.NewMachine(p, nil, 2)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		wait.Go(func() {
			for range 50 {
				m.Args[0], m.Fuel = 100, 1<<20
				if r0, err := rig.Code.Run(m); err != nil || r0 != 0 {
					t.Errorf("got %d, %v", r0, err)
				}
			}
		})
	}
	wait.Wait()
}

// testAtomics increments counters in shared memory from several machines.
func testAtomics(t *testing.T, e engine.Engine) {
	p := assemble(t, false,
		"mov r3, 1", "atomic_add [r1], r3", "mov r3, 1", "atomic_fetch_add32 [r1+8], r3",
		"mov r3, 1", "atomic_fetch_xor [r1+16], r3",
		"ldxdw r0, [r1+24]", "mov r3, r0", "add r3, 1", "mov r4, r0", "atomic_cmpxchg [r1+24], r3", "jne r0, r4, -5",
		"add r2, -1", "jne r2, 0, -14", "exit")
	const machines, rounds = 3, 2000
	rig := NewRig(t, e, p, 1, 32)
	var wait sync.WaitGroup
	for range machines {
		m, err := engine.NewMachine(p, nil, 1)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		m.SetContext(rig.Machine.Context())
		m.Args = [5]uint64{m.Context().Base, rounds}
		m.Fuel = 1 << 40
		wait.Go(func() {
			if _, err := rig.Code.Run(m); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
	b := rig.Context.Bytes()
	for at, want := range map[int]uint64{0: machines * rounds, 8: machines * rounds, 16: 0, 24: machines * rounds} {
		if got := binary.LittleEndian.Uint64(b[at:]); got != want {
			t.Errorf("the word at %d is %d, want %d", at, got, want)
		}
	}
}

func testServices(t *testing.T, e engine.Engine) {
	table, err := service.NewTable(service.Service{Number: 77, Args: make([]service.Kind, 5), Func: func(c *service.Call) (uint64, error) {
		if c.Core != 3 || c.Data != "data" || c.Args != [5]uint64{1, 2, 3, 4, 5} {
			t.Errorf("core %d, data %v, arguments %v", c.Core, c.Data, c.Args)
		}
		return 99, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	call, err := isa.Parse("call 77")
	if err != nil {
		t.Fatal(err)
	}
	p, err := verify.Verify(&object.Spec{Instructions: []isa.Instruction{call, {Code: isa.Exit.Row().Code}}}, verify.Config{Services: table})
	if err != nil {
		t.Fatal(err)
	}
	rig := NewRig(t, e, p, 1, 0)
	rig.Machine.Args = [5]uint64{1, 2, 3, 4, 5}
	rig.Machine.Call.Core, rig.Machine.Call.Data = 3, "data"
	if r0, err := rig.run(); err != nil || r0 != 99 {
		t.Errorf("got %d, %v", r0, err)
	}
	rig = NewRig(t, e, assemble(t, false, "call 9", "exit"), 1, 0)
	if _, err := rig.run(); !errors.Is(err, errFails) {
		t.Errorf("the service's error is not in %v", err)
	}
}

func testFaultsSayWhere(t *testing.T, e engine.Engine) {
	rig := NewRig(t, e, assemble(t, false, "mov r0, 1", "stb [r1+16], 1", "exit"), 1, 16)
	_, err := rig.run()
	f := wantFault(t, err, engine.Memory, 1, rig.Machine.Context().Base+16)
	if f.Region != "context" || f.Offset != 16 || f.Line.Number != 101 || f.Fuel != defaultFuel-3 {
		t.Errorf("got %+v", f)
	}
	for _, part := range []string{"pc=1", "addr=0x", "kind=memory", "fuel=9997", "region=context+16", "line=test.c:101"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %q", part, err)
		}
	}
	rig.Machine.Args[0] -= 18
	_, err = rig.run()
	if f := wantFault(t, err, engine.Memory, 1, rig.Machine.Context().Base-2); f.Region != "context" || f.Offset != -2 {
		t.Errorf("got %+v", f)
	}
	rig.Machine.Args[0] = 1 << 40
	_, err = rig.run()
	if f := wantFault(t, err, engine.Memory, 1, 1<<40+16); f.Region != "" {
		t.Errorf("got %+v", f)
	}
}

// testFaultsLeaveNoCallers stops a program repeatedly inside a local call: that
// does not reduce the call depth of the next run.
func testFaultsLeaveNoCallers(t *testing.T, e engine.Engine) {
	for _, first := range []string{"mov r1, 0", "stdw [r10-8], 1"} {
		rig := NewRig(t, e, assemble(t, false, "call_local +1", "exit", "call_local +1", "exit", first, "ldxb r0, [r1]", "exit"), 3, 0)
		for range 4 {
			_, err := rig.run()
			wantFault(t, err, engine.Memory, 5, 0)
		}
	}
}

// testTrustedStrayAccess lets trusted programs access unmapped memory: the program
// faults, and the next run succeeds.
func testTrustedStrayAccess(t *testing.T, e engine.Engine) {
	guard, err := memory.Map("guard", os.Getpagesize())
	if err != nil {
		t.Fatal(err)
	}
	defer guard.Close()
	end := guard.Region(true).Base + guard.Region(true).Length
	for _, text := range []string{
		"ldxb r0, [r1+0]", "ldxh r0, [r1+0]", "ldxw r0, [r1+0]", "ldxdw r0, [r1+0]",
		"ldxsb r0, [r1+0]", "stb [r1+0], 1", "stdw [r1+0], 1", "stxh [r1+0], r0", "stxdw [r1+0], r0",
		"atomic_add [r1+0], r0", "atomic_fetch_or32 [r1+0], r0", "atomic_cmpxchg [r1+0], r0",
	} {
		rig := NewRig(t, e, assemble(t, true, "mov r3, 5", text, "exit"), 1, 8)
		good := rig.Machine.Args[0]
		for _, addr := range []uint64{0, 8, 4096, end, 0xffff_8000_0000_0000, service.MapHandle(0), ^uint64(7)} {
			rig.Machine.Args[0] = addr
			_, err := rig.run()
			if f := wantFault(t, err, engine.Memory, 1, addr); f.Fuel != defaultFuel-3 {
				t.Errorf("%s at %#x: fuel left %d", text, addr, f.Fuel)
			}
			rig.Machine.Args[0] = good
			if _, err := rig.run(); err != nil {
				t.Errorf("%s: the run after a fault: %v", text, err)
			}
		}
	}
}

// testTrustedStrayAccessLater lets a trusted program use blocks, calls and
// services before it accesses unmapped memory: pc, address and fuel of the fault
// must match that access.
func testTrustedStrayAccessLater(t *testing.T, e engine.Engine) {
	rig := NewRig(t, e, assemble(t, true,
		"mov r6, r1",               // 0, a block of 5
		"stxdw [r6], r1",           // 1
		"atomic_fetch_or [r6], r6", // 2
		"call 5",                   // 3
		"call_local +8",            // 4
		"ldxdw r2, [r6]",           // 5, a block of 4
		"mov r1, 7",                // 6
		"call 5",                   // 7
		"jeq r0, 0, +3",            // 8
		"ldxw r2, [r6+4]",          // 9, a block of 3
		"atomic_add [r6], r2",      // 10
		"stxh [r0+1], r2",          // 11, at 8
		"exit",                     // 12
		"stxdw [r10-8], r6",        // 13, a block of 3
		"ldxdw r0, [r6]",           // 14
		"exit"), 2, 8)
	for range 2 {
		_, err := rig.run()
		if f := wantFault(t, err, engine.Memory, 11, 8); f.Fuel != defaultFuel-15 || f.Fuel != rig.Machine.Fuel {
			t.Errorf("fuel left %d, in the machine %d", f.Fuel, rig.Machine.Fuel)
		}
	}
}

// testPanicOfAService checks that a panic of a service does not become a fault of
// the extension that called it.
func testPanicOfAService(t *testing.T, e engine.Engine) {
	table, err := service.NewTable(service.Service{Number: 1, Func: func(*service.Call) (uint64, error) {
		var nobody *object.Spec
		return uint64(len(nobody.Name)), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	spec := &object.Spec{Instructions: []isa.Instruction{
		{Code: isa.LdXB.Row().Code, Src: 1}, {Code: isa.Call.Row().Code, Imm: 1}, {Code: isa.Exit.Row().Code}}}
	p, err := verify.Verify(spec, verify.Config{Services: table, Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	rig := NewRig(t, e, p, 1, 8)
	defer func() {
		if recover() == nil {
			t.Error("the panic of a service was swallowed")
		}
	}()
	_, _ = rig.run()
}

// testRandomPrograms runs random programs. Every region lies between guard pages,
// so that an access that escapes the checks ends the test.
func testRandomPrograms(t *testing.T, e engine.Engine) {
	r := Seeded(t)
	data := make([]byte, 400)
	for range 300 {
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		Exercise(t, e, data)
	}
}

// Exercise generates a program from bytes and runs it twice with little fuel:
// it must end, with the fuel accounted for, in the same way both times, and
// with read-only memory as it was.
func Exercise(t *testing.T, e engine.Engine, data []byte) {
	t.Helper()
	spec := Generate(data)
	p, err := verify.Verify(spec, verify.Config{Services: Services()})
	if err != nil {
		t.Fatalf("refused: %v\n%v", err, spec.Instructions)
	}
	const fuel, depth, size = 2000, 4, 64
	rig := NewRig(t, e, p, depth, size)
	var first map[string]string
	for round := range 2 {
		for i := range size {
			rig.Context.Bytes()[i] = byte(i)
		}
		clear(rig.Maps[0].Memory().Bytes())
		rig.Machine.Fuel, rig.Machine.MaxTime = fuel, time.Minute
		r0, err := rig.Code.Run(rig.Machine)
		got := outcome(rig, r0, err)
		if round == 0 {
			first = got
		}
		constants, _ := rig.Maps[1].Value(0, 0)
		switch {
		case rig.Machine.Fuel > fuel || got["fuel"] != fmt.Sprint(rig.Machine.Fuel):
			t.Fatalf("fuel left %d, error %v\n%v", rig.Machine.Fuel, err, spec.Instructions)
		case !bytes.Equal(constants[:4], []byte{1, 2, 3, 0}):
			t.Fatalf("read-only memory was changed to %x\n%v", constants, spec.Instructions)
		case !maps.Equal(first, got):
			t.Fatalf("first %v, then %v\n%v", first, got, spec.Instructions)
		}
	}
}

// testServicesSpendFuel calls a service that takes fuel of its caller: from the
// current slice, from beyond it, and all of it.
func testServicesSpendFuel(t *testing.T, e engine.Engine) {
	p := assemble(t, false, "mov r6, r1", "call_local +3", "mov r1, r6", "call 10", "exit", "mov r1, r6", "call 10", "exit")
	for _, tc := range []struct{ fuel, take, left uint64 }{
		{100, 0, 100 - 8},
		{100, 10, 100 - 8 - 20},
		{3 * engine.MaxSlice, 10, 3*engine.MaxSlice - 8 - 20},
		{3 * engine.MaxSlice, engine.MaxSlice, engine.MaxSlice - 8},
		{engine.MaxSlice + 100, 60, engine.MaxSlice + 100 - 8 - 120},
		{engine.MaxSlice + 8 + 2*engine.MaxSlice, engine.MaxSlice + engine.MaxSlice/2, 0},
	} {
		rig := NewRig(t, e, p, 4, 0)
		rig.Machine.Fuel, rig.Machine.Args[0] = tc.fuel, tc.take
		r0, err := rig.Code.Run(rig.Machine)
		if err != nil || rig.Machine.Fuel != tc.left || r0 != tc.left {
			t.Errorf("fuel %d, twice %d taken: %d left, the service saw %d, error %v; want %d left", tc.fuel, tc.take, rig.Machine.Fuel, r0, err, tc.left)
		}
	}
	rig := NewRig(t, e, p, 4, 0)
	rig.Machine.Fuel, rig.Machine.Args[0] = 100, 100-5
	_, err := rig.Code.Run(rig.Machine)
	if f := wantFault(t, err, engine.Fuel, 2, 0); f.Fuel != 0 || rig.Machine.Fuel != 0 {
		t.Errorf("all fuel taken: %v", f)
	}
}
