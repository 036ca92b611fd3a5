// Package enginetest is the suite that every engine must pass.
//
// Conformance facts are text files under testdata. A fact is a program and its
// runs, each with its expected outcome:
//
//	fact NAME
//	map NAME array|percore VALUESIZE ENTRIES [readonly] [HEX]   its maps, by index
//	extern NAME                                                 services called by name
//	trusted                                                     verified and run as trusted
//	add r1, r2                                                  instructions as package isa prints them
//	hex 9500000000000000                                        or their bytes
//	run [r1=V ...] [mem=HEX|rom=HEX] [fuel=N] [depth=N] [core=N] => OUTCOME
//
// mem is a writable context and rom a read-only one; r1 is its address and r2
// its length unless they are given. Everything after # is a comment. OUTCOME is
// one of
//
//	V [mem=HEX] [fuel=N] [map.NAME=HEX]           r0, then memory, fuel left, the start of a map
//	fault KIND [pc=N] [addr=V] [fuel=N] [mem=HEX] the fault
//	refused insn=N TEXT                           by the verifier, with TEXT in the reason
//
// A value V is a number, or mem, stack (the end of it) or map.NAME with an
// offset: mem+8, stack-512. Function Services has the services.
//
// Every run that does not end in a memory fault is repeated with the program
// verified as trusted.
//
// Test also runs tests that text cannot express. TestAgreement compares an engine
// with another one on random programs, and Benchmark measures them side by side.
package enginetest

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/memory"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// Test runs the whole suite on an engine.
func Test(t *testing.T, e engine.Engine) {
	facts, err := Facts()
	if err != nil {
		t.Fatal(err)
	}
	t.Run("Facts", func(t *testing.T) {
		for _, f := range facts {
			t.Run(f.Name, func(t *testing.T) { testFact(t, e, &f) })
		}
	})
	for _, c := range contract {
		t.Run(c.name, func(t *testing.T) { c.test(t, e) })
	}
}

// Services returns the services that facts may call: 5 returns its first
// argument; 1 xors memory (pointer, length) with 42; 6 is for the trusted; 9
// fails; sum adds five arguments; and the map services of Linux by name.
func Services() *service.Table {
	scalar := service.Scalar
	list := []service.Service{
		{Number: 1, Args: []service.Kind{service.Writable, service.Length}, Func: memfrob},
		{Number: 5, Args: []service.Kind{scalar}, Func: func(c *service.Call) (uint64, error) { return c.Args[0], nil }},
		{Number: 6, Trusted: true, Func: func(*service.Call) (uint64, error) { return 6, nil }},
		{Number: 9, Func: func(*service.Call) (uint64, error) { return 0, errFails }},
		{Number: 10, Args: []service.Kind{scalar}, Func: spend},
		{Name: "sum", Args: []service.Kind{scalar, scalar, scalar, scalar, scalar}, Func: sum},
	}
	for _, s := range service.Linux() {
		s.Number = 0
		list = append(list, s)
	}
	table, err := service.NewTable(list...)
	if err != nil {
		panic("enginetest: " + err.Error())
	}
	return table
}

var errFails = errors.New("this service fails")

func memfrob(c *service.Call) (uint64, error) {
	for i := range c.Bytes(0) {
		c.Bytes(0)[i] ^= 42
	}
	return 0, nil
}

// spend takes fuel of its caller and returns the rest.
func spend(c *service.Call) (uint64, error) {
	c.Budget.Take(c.Args[0])
	return c.Budget.Left(), nil
}

func sum(c *service.Call) (total uint64, err error) {
	for _, v := range c.Args {
		total += v
	}
	return total, nil
}

// cores is the number of cores of per-core maps in facts.
const cores = 2

// testFact checks every run of a fact. A run without a memory fault must have the
// same outcome when the program is trusted.
func testFact(t *testing.T, e engine.Engine, f *Fact) {
	if len(f.Runs) == 0 {
		t.Fatalf("%s: a fact without runs", f.File)
	}
	p, err := verify.Verify(f.Spec, verify.Config{Services: Services(), Trusted: f.Trusted})
	trusted, _ := verify.Verify(f.Spec, verify.Config{Services: Services(), Trusted: true})
	for _, r := range f.Runs {
		switch {
		case r.Want == "refused":
			checkRefusal(t, &r, err)
		case err != nil:
			t.Errorf("%s: %s: refused: %v", f.File, r.Line, err)
		default:
			testRun(t, e, p, f, &r)
			if !f.Trusted && r.Details["kind"] != string(engine.Memory) {
				testRun(t, e, trusted, f, &r)
			}
		}
	}
}

func checkRefusal(t *testing.T, r *Run, err error) {
	var refusal *verify.Refusal
	if !errors.As(err, &refusal) {
		t.Errorf("%s: got %v", r.Line, err)
		return
	}
	if strconv.Itoa(refusal.Slot) != r.Details["insn"] || !strings.Contains(refusal.Reason, r.Text) {
		t.Errorf("%s: got %v", r.Line, err)
	}
}

// place holds the addresses that a value may name.
type place map[string]uint64

// value resolves a number or a name with an offset.
func (p place) value(text string) (uint64, error) {
	if n, err := strconv.ParseUint(text, 0, 64); err == nil {
		return n, nil
	}
	if n, err := strconv.ParseInt(text, 0, 64); err == nil {
		return uint64(n), nil
	}
	name, offset := text, "0"
	if at := strings.LastIndexAny(text, "+-"); at > 0 {
		name, offset = text[:at], text[at:]
	}
	base, ok := p[name]
	n, err := strconv.ParseInt(offset, 0, 64)
	if !ok || err != nil {
		return 0, fmt.Errorf("value %q", text)
	}
	return base + uint64(n), nil
}

// Rig is a threaded program with its maps, a machine and a context, for tests.
type Rig struct {
	Program *verify.Program
	Maps    []*state.Map
	Code    engine.Code
	Machine *engine.Machine
	Context *memory.Memory // nil: none
}

// NewRig threads a program on an engine. The context is size bytes, or none.
// Everything is released at the end of the test.
func NewRig(t testing.TB, e engine.Engine, p *verify.Program, depth, size int) *Rig {
	t.Helper()
	rig, err := tryRig(t, e, p, depth, size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rig.close)
	return rig
}

// tryRig is NewRig for an engine that may refuse the program. The caller closes
// the rig.
func tryRig(t testing.TB, e engine.Engine, p *verify.Program, depth, size int) (*Rig, error) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	rig := &Rig{Program: p}
	for _, spec := range p.Maps() {
		m, err := state.New(spec, state.Options{Cores: cores})
		must(err)
		rig.Maps = append(rig.Maps, m)
	}
	var err error
	if rig.Code, err = e.Thread(p, rig.Maps); err != nil {
		rig.close()
		return nil, err
	}
	rig.Machine, err = engine.NewMachine(p, rig.Maps, depth)
	must(err)
	if size > 0 {
		rig.Context, err = memory.Map("context", size)
		must(err)
		rig.Machine.SetContext(rig.Context.Region(true))
		rig.Machine.Args = [5]uint64{rig.Machine.Context().Base, rig.Machine.Context().Length}
	}
	return rig, nil
}

// close releases a rig, also one that is only partly made.
func (rig *Rig) close() {
	if rig.Context != nil {
		rig.Context.Close()
	}
	if rig.Machine != nil {
		rig.Machine.Close()
	}
	if rig.Code != nil {
		rig.Code.Close()
	}
	for _, m := range rig.Maps {
		m.Close()
	}
}

// testRun runs a fact once and compares the outcome.
func testRun(t *testing.T, e engine.Engine, p *verify.Program, f *Fact, r *Run) {
	t.Helper()
	rig := NewRig(t, e, p, r.Depth, len(r.Memory))
	places, err := rig.give(r)
	if err != nil {
		t.Fatalf("%s: %v", r.Line, err)
	}
	r0, err := rig.Code.Run(rig.Machine)
	got := outcome(rig, r0, err)
	for _, problem := range compare(places, r, got) {
		t.Errorf("%s: %s: trusted %v: %s (r0 %#x, error %v)", f.File, r.Line, p.Trusted(), problem, r0, err)
	}
}

// give sets up the inputs of a run, and returns the addresses that values name.
func (rig *Rig) give(r *Run) (place, error) {
	m := rig.Machine
	places := place{"stack": m.SP}
	if rig.Context != nil {
		copy(rig.Context.Bytes(), r.Memory)
		m.SetContext(rig.Context.Region(!r.ROM))
		places["mem"] = m.Context().Base
	}
	for _, each := range rig.Maps {
		places["map."+each.Spec().Name] = each.Region().Base
	}
	for name, text := range r.Args {
		v, err := places.value(text)
		if err != nil {
			return places, err
		}
		m.Args[name[1]-'1'] = v
	}
	m.Fuel, m.Call.Core = r.Fuel, r.Core
	return places, nil
}

// outcome describes the result of a run in the words of a fact.
func outcome(rig *Rig, r0 uint64, err error) map[string]string {
	got := map[string]string{"r0": fmt.Sprint(r0), "fuel": fmt.Sprint(rig.Machine.Fuel)}
	if rig.Context != nil {
		got["mem"] = hex.EncodeToString(rig.Context.Bytes())
	}
	for _, each := range rig.Maps {
		got["map."+each.Spec().Name] = hex.EncodeToString(memory.View(each.Region().Base, each.Region().Length))
	}
	var fault *engine.Fault
	if errors.As(err, &fault) {
		got["kind"], got["pc"], got["addr"] = string(fault.Kind), fmt.Sprint(fault.PC), fmt.Sprint(fault.Addr)
		if fault.Fuel != rig.Machine.Fuel {
			got["fuel"] = "not the same in fault and machine"
		}
	}
	return got
}

// compare returns the differences from the expected outcome.
func compare(places place, r *Run, got map[string]string) (problems []string) {
	if _, faulted := got["kind"]; faulted != (r.Want == "fault") {
		return []string{"wrong outcome"}
	}
	want := make(map[string]string)
	for name, text := range r.Details {
		want[name] = text
	}
	if r.Want != "fault" {
		want["r0"] = r.Want
	}
	for name, text := range want {
		if name == "r0" || name == "addr" {
			v, err := places.value(text)
			if err != nil {
				problems = append(problems, err.Error())
			}
			text = fmt.Sprint(v)
		}
		if have := got[name]; have != text && (!strings.HasPrefix(name, "map.") || !strings.HasPrefix(have, text)) {
			problems = append(problems, fmt.Sprintf("%s is %s, want %s", name, have, text))
		}
	}
	return problems
}
