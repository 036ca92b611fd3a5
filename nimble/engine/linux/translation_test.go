//go:build !guest

// These tests load nothing into a kernel, so they need no guest.

package linux

import (
	"encoding/binary"
	"errors"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/engine/portable"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// translated is an engine that runs the kernel's form of programs on portable, to
// test the translation without loading it.
type translated struct{}

func (translated) Name() string { return "translated" }

func (translated) Thread(p *verify.Program, maps []*state.Map) (engine.Code, error) {
	if _, err := uses(p, maps); err != nil {
		return nil, err
	}
	c := &translatedCode{code: code{context: p.Context(), maps: maps}}
	all := []*state.Map{c.make("control", controlSize), c.make("context", max(uint32(p.Context().Size), 1))}
	c.maps = all[:2]
	all = append(all, maps...)
	spec := &object.Spec{Name: p.Name(), Instructions: translate(p).code}
	for _, m := range all {
		spec.Maps = append(spec.Maps, m.Spec())
	}
	services, err := service.NewTable(service.Linux()...)
	if err != nil {
		return nil, err
	}
	program, err := verify.Verify(spec, verify.Config{Services: services})
	if err != nil {
		return nil, err
	}
	if c.run, err = portable.New().Thread(program, all); err != nil {
		return nil, err
	}
	c.machine, err = engine.NewMachine(program, all, engine.MaxCallDepth)
	return c, err
}

type translatedCode struct {
	code
	run     engine.Code
	machine *engine.Machine
}

func (c *translatedCode) make(name string, size uint32) *state.Map {
	m, err := state.New(state.Spec{Name: name, ValueSize: size, Entries: 1}, state.Options{})
	if err != nil {
		panic(err)
	}
	return m
}

func (c *translatedCode) Run(m *engine.Machine) (uint64, error) {
	if err := c.check(m); err != nil {
		return 0, m.Fault(engine.Kernel, 0, 0, err)
	}
	control, context := view(c.maps[0].Region()), view(c.maps[1].Region())
	for n, v := range m.Args {
		binary.LittleEndian.PutUint64(control[controlArgs+8*n:], v)
	}
	copy(context, view(m.Context()))
	c.machine.Fuel = 1 << 20
	if _, err := c.run.Run(c.machine); err != nil {
		return 0, m.Fault(engine.Kernel, 0, 0, err)
	}
	copy(view(m.Context()), context)
	return binary.LittleEndian.Uint64(control[controlR0:]), nil
}

func (c *translatedCode) Close() error {
	return errors.Join(c.machine.Close(), c.maps[0].Close(), c.maps[1].Close())
}

// TestTranslation compares translated programs with portable, except programs
// that only the kernel's verifier refuses.
func TestTranslation(t *testing.T) {
	facts, err := enginetest.Facts()
	if err != nil {
		t.Fatal(err)
	}
	a := enginetest.TestAccelerator(t, portable.New(), translated{}, facts, false)
	if a.Accepted < 1000 {
		t.Errorf("only %+v", a)
	}
	a = enginetest.TestAgreementProvable(t, portable.New(), translated{}, 1000)
	if a.Refused > 0 {
		t.Errorf("not all are accepted: %+v", a)
	}
}

func FuzzTranslation(f *testing.F) {
	f.Add([]byte{60, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		var a enginetest.Accelerated
		a.AgreeProvable(t, portable.New(), translated{}, data)
	})
}

// TestArgument says how much of a frame is cleared: a copy of r10 that only gives a service an
// address does not need all of it.
func TestArgument(t *testing.T) {
	array := []state.Spec{{Name: "array", ValueSize: 8, Entries: 2}}
	look := []string{"stw [r10-4], 1", "mov r2, r10", "add r2, -4", "lddw_map r1, 0", "call 1", "mov r0, 0", "exit"}
	for _, c := range []struct {
		name  string
		lines []string
		want  int
	}{
		{"none", []string{"mov r0, 0", "exit"}, 0},
		{"stores", []string{"stdw [r10-24], 0", "mov r0, 0", "exit"}, 24},
		{"a key", look, 8},
		{"a key below", append([]string{"stw [r10-40], 1", "mov r2, r10", "add r2, -40"}, look[3:]...), 40},
		{"used before", append(append([]string{}, look[:3]...), append([]string{"ldxw r6, [r2-8]"}, look[3:]...)...), verify.FrameSize},
		{"copied again", append(append([]string{}, look[:3]...), append([]string{"mov r6, r2"}, look[3:]...)...), verify.FrameSize},
		{"behind a jump", append(append([]string{}, look[:3]...), append([]string{"jeq r1, 0, +2"}, look[3:]...)...), verify.FrameSize},
		{"no constant", append([]string{"stw [r10-4], 1", "mov r2, r10", "add r2, r3"}, look[3:]...), verify.FrameSize},
		{"kept", []string{"mov r6, r10", "add r6, -8", "mov r0, 0", "exit"}, verify.FrameSize},
		{"no call", []string{"mov r2, r10", "add r2, -8", "mov r0, 0", "exit"}, verify.FrameSize},
		{"a function", []string{"mov r1, r10", "add r1, -8", "call_local +1", "exit", "mov r0, 0", "exit"}, verify.FrameSize},
		{"stored", []string{"stxdw [r10-8], r10", "mov r0, 0", "exit"}, verify.FrameSize},
	} {
		p := verified(t, array, c.lines...)
		if got := frame(p, p.Functions()[0]); got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, got, c.want)
		}
	}
}
