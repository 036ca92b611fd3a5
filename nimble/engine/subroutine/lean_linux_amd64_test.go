package subroutine

import (
	"errors"
	"fmt"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// promised is the size of the contexts of assembled programs, in bytes.
const promised = 16

// assembled verifies lines of text.
func assembled(t *testing.T, config verify.Config, lines ...string) *verify.Program {
	t.Helper()
	spec := &object.Spec{}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	config.Services = enginetest.Services()
	config.Context = verify.Context{Size: promised, Readable: true, Writable: true}
	p, err := verify.Verify(spec, config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// forms are programs with the forms that they have, checked and trusted.
var forms = []struct {
	name             string
	checked, trusted string
	lines            []string
}{
	{"alone", "plain", "plain", []string{"exit"}},
	{"skipped", "plain", "plain", []string{"ldxw r0, [r1]", "jeq r0, 0, +2", "mov r0, 1", "mov r0, 2", "exit"}},
	{"two ways", "plain", "plain", []string{
		"ldxw r2, [r1]", "jne r2, 0, +3", "mov r0, 1", "add r0, 2", "ja +1", "mov r0, 5", "mul r0, 3", "exit"}},
	{"four ways to one place", "plain", "plain", []string{
		"ldxw r2, [r1]", "jeq r2, 0, +7", "mov r0, 1", "jeq r2, 1, +5", "add r0, 2", "add r0, 3", "jeq r2, 2, +2", "add r0, 4", "add r0, 5", "exit"}},
	{"many ends", "plain", "plain", []string{
		"ldxw r2, [r1]", "jeq r2, 0, +3", "jeq r2, 1, +3", "mov r0, 7", "exit", "exit", "stxw [r1+4], r2", "exit"}},
	{"behind an exit", "plain", "plain", []string{"ja +2", "mov r0, 1", "exit", "mov r0, 2", "exit"}},
	{"wide", "plain", "plain", []string{"lddw r0, 0x1234567890", "jeq r1, 0, +2", "lddw r2, 0x1234567890", "exit"}},
	{"stack", "lean", "lean", []string{"stxdw [r10-8], r1", "jeq r1, 0, +1", "ldxdw r0, [r10-8]", "exit"}},
	{"misses", "lean", "lean", []string{"ldxdw r2, [r1+8]", "jeq r1, 0, +1", "ldxb r0, [r2]", "ldxb r0, [r2+1]", "exit"}},
	{"division", "lean", "lean", []string{"ldxw r2, [r1]", "mov r0, 100", "jeq r2, 0, +1", "div r0, r2", "exit"}},
	{"proved atomic", "lean", "lean", []string{"jeq r2, 0, +1", "mov r3, 5", "atomic_fetch_add [r1+8], r3", "mov r0, r3", "exit"}},
	{"misaligned", "lean", "lean", []string{"jeq r2, 0, +1", "mov r3, 5", "atomic_add [r1+4], r3", "exit"}},
	{"atomic", "exact", "lean", []string{"mov r3, r1", "ldxdw r2, [r1+8]", "add r3, r2", "atomic_add [r3], r2", "ldxdw r0, [r1]", "exit"}},
	{"service", "exact", "exact", []string{"call 5", "exit"}},
	{"loop", "exact", "exact", []string{"add r0, 1", "jlt r0, 5, -2", "exit"}},
	{"call", "exact", "exact", []string{"call_local +1", "exit", "exit"}},
	{"addressed", "exact", "exact", []string{"lddw_code r0, +2", "exit", "exit"}},
}

// TestForms checks the form of each of forms, and runs it with different memory and
// every amount of fuel: it ends as its exact form does.
func TestForms(t *testing.T) {
	for _, c := range forms {
		t.Run(c.name, func(t *testing.T) {
			for _, trusted := range []bool{false, true} {
				want := c.checked
				if trusted {
					want = c.trusted
				}
				testForm(t, assembled(t, verify.Config{Trusted: trusted}, c.lines...), want)
			}
		})
	}
}

func testForm(t *testing.T, p *verify.Program, want string) {
	t.Helper()
	rig := enginetest.NewRig(t, subroutine{}, p, 2, promised)
	got := "exact"
	switch c := rig.Code.(*code); {
	case c.plain != nil:
		got = "plain"
	case c.lean:
		got = "lean"
	}
	if got != want {
		t.Errorf("the code is %s, want %s", got, want)
	}
	exact, err := compile(p, nil, form{})
	if err != nil {
		t.Fatal(err)
	}
	defer exact.Close()
	for first := range byte(4) {
		for fuel := range uint64(p.Len() + 2) {
			want := ending(rig, exact, fuel, first)
			for range 2 {
				if got := ending(rig, rig.Code, fuel, first); got != want {
					t.Errorf("memory %d, fuel %d: %s, want %s", first, fuel, got, want)
				}
			}
		}
	}
}

// ending runs code and describes its end.
func ending(rig *enginetest.Rig, c engine.Code, fuel uint64, first byte) string {
	clear(rig.Context.Bytes())
	rig.Context.Bytes()[0] = first
	rig.Machine.Fuel = fuel
	r0, err := c.Run(rig.Machine)
	if f, ok := errors.AsType[*engine.Fault](err); ok && f.Fuel != rig.Machine.Fuel {
		return fmt.Sprintf("a fault with fuel %d, %d in the machine", f.Fuel, rig.Machine.Fuel)
	}
	return fmt.Sprintf("r0 %#x, fuel %d, memory %x, %v", r0, rig.Machine.Fuel, rig.Context.Bytes(), err)
}

// TestCodeOfLittleFuel checks that the code that tests the fuel is made once for
// many runs with little of it, and is removed with the lean code.
func TestCodeOfLittleFuel(t *testing.T) {
	p := assembled(t, verify.Config{}, forms[1].lines...)
	c, err := compile(p, nil, formOf(p))
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.NewMachine(p, nil, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	var exact *code
	for range 3 {
		m.Fuel = 1
		if _, err := c.Run(m); err == nil || err.Error() != "pc=0 addr=0x0 kind=fuel fuel=1" {
			t.Fatalf("got %v", err)
		}
		if exact == nil {
			exact = c.exact.code.Load()
		}
		if exact == nil || exact != c.exact.code.Load() || exact.memory == nil {
			t.Fatal("the code was not made once")
		}
	}
	if got, want := c.Size(), len(c.memory)+len(exact.memory); got != want {
		t.Errorf("its size is %d, not %d", got, want)
	}
	if err := c.Close(); err != nil || exact.memory != nil {
		t.Errorf("closed: %v, %d bytes of the other code are left", err, len(exact.memory))
	}
}

// TestLateCode checks that code that could not be made is tried again, and that
// made code stays.
func TestLateCode(t *testing.T) {
	var l late
	full := errors.New("full")
	for i, c := range []struct{ err, want error }{{full, full}, {nil, nil}, {full, nil}} {
		if made, err := l.get(func() (*code, error) { return new(code), c.err }); err != c.want || err == nil && made != l.code.Load() {
			t.Errorf("call %d: %v", i, err)
		}
	}
}

// TestUnread checks which registers a run need not set at its start.
func TestUnread(t *testing.T) {
	for _, c := range []struct {
		lines []string
		want  uint16
	}{
		{[]string{"mov r0, 1", "exit"}, 1},
		{[]string{"add r0, 1", "mov r0, 2", "exit"}, 0},
		{[]string{"mov r2, r0", "mov r0, r1", "exit"}, 1 << 2},
		{[]string{"mov r2, r2", "exit"}, 0},
		{[]string{"mov32 r2, r1", "mov r1, 0", "exit"}, 1 << 2},
		{[]string{"ldxw r2, [r1]", "ldxw r1, [r1]", "ldxw r3, [r3]", "exit"}, 1 << 2},
		{[]string{"stxdw [r1], r2", "mov r1, 0", "mov r2, 0", "exit"}, 0},
		{[]string{"stdw [r1], 2", "mov r1, 0", "exit"}, 0},
		{[]string{"lddw r3, 7", "neg r4", "mov r4, 1", "exit"}, 1 << 3},
		{[]string{"jeq r2, 0, +1", "mov r3, 0", "exit"}, 0},
		{[]string{"mov r3, 0", "jeq r3, 0, +1", "mov r4, 0", "exit"}, 1 << 3},
		{[]string{"mov r2, 0", "add r3, 0", "jne r2, 0, -2", "mov r3, 0", "exit"}, 1 << 2},
		{[]string{"mov r5, 0", "call 5", "mov r6, 0", "exit"}, 1 << 5},
		{[]string{"mov r6, 0", "atomic_add [r1], r7", "mov r8, 0", "exit"}, 1 << 6},
	} {
		p := assembled(t, verify.Config{}, c.lines...)
		if got := overwritten(p, p.Registers()|1); got != c.want {
			t.Errorf("%q: registers %#b, want %#b", c.lines, got, c.want)
		}
	}
}
