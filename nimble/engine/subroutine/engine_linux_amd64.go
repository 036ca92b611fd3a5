package subroutine

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"margay/nimble/engine"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// subroutine is the engine; if calls is set, subroutine-calls.
type subroutine struct{ calls bool }

func newEngine(calls bool) (engine.Engine, error) { return subroutine{calls}, nil }

// Name implements engine.Engine.
func (e subroutine) Name() string {
	if e.calls {
		return "subroutine-calls"
	}
	return "subroutine"
}

// Thread implements engine.Engine.
func (e subroutine) Thread(p *verify.Program, maps []*state.Map) (engine.Code, error) {
	if p.Len() == 0 || len(p.Maps()) != len(maps) {
		return nil, fmt.Errorf("%s: %w", e.Name(), errors.New("needs a verified program and its maps"))
	}
	f := form{calls: e.calls}
	if !e.calls {
		f = formOf(p)
	}
	c, err := compile(p, maps, f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", e.Name(), err)
	}
	return c, nil
}

// compile makes the code of a program in a form.
func compile(p *verify.Program, maps []*state.Map, f form) (*code, error) {
	t := thread(p, maps, f)
	defer t.recycle()
	if t.lean && t.resumes { // rare: an atomic operation that continues in its middle
		return compile(p, maps, form{})
	}
	memory, err := executable.add(t.code[:t.written])
	if err != nil {
		return nil, err
	}
	c := &code{
		most:     math.MaxUint64,
		program:  p,
		maps:     maps,
		lean:     t.lean,
		memory:   memory,
		base:     addressOf(memory),
		frame:    p.Function(0).Frame,
		short:    !p.Repeats() && fits(p),
		services: t.services,
	}
	if !c.short || t.resumes {
		c.at = slices.Clone(t.at)
	}
	for way, offset := range t.ways {
		c.addresses[way] = c.base + uintptr(offset)
		c.ways[way] = function[entry](&c.addresses[way])
	}
	if t.plain {
		c.plain, c.most = function[plainEntry](&c.addresses[start]), uint64(p.Len())-1
	}
	if err := c.uncheck(t); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// Entries of emitted code.
const (
	start        = iota // begins a run
	resume              // continues at next, with all registers from the cpu
	afterService        // continues at next, with r0, and r1 to r5 from the Call
	ways
)

// code is a threaded program.
type code struct {
	most      uint64     // a run with more fuel can be plain; math.MaxUint64: none can
	plain     plainEntry // nil: the code is not plain
	ways      [ways]entry
	tenant    engine.Tenant
	frame     bool // the first function has a stack frame
	short     bool // no run costs more than a slice
	lean      bool // runs need fuel for every instruction
	program   *verify.Program
	maps      []*state.Map
	at        []int32       // offset of each slot; nil if no run continues at a slot
	services  []serviceCall // by the number in their sites
	strays    []access      // unchecked, in ascending order
	stray     uint64        // address of the exit path after a bad access; 0: no access is unchecked
	memory    []byte        // the emitted code
	base      uintptr       // its address
	addresses [ways]uintptr // of ways

	// exact is the code of a lean program that tests the fuel, once a run has
	// needed it.
	exact late
}

// Size implements engine.Sized.
func (c *code) Size() int {
	size := len(c.memory)
	if exact := c.exact.code.Load(); exact != nil {
		size += exact.Size()
	}
	return size
}

// Plain implements engine.Plain.
func (c *code) Plain() (run func(m *engine.Machine) uint64, most uint64) { return c.plain, c.most }

// Close implements engine.Code.
func (c *code) Close() error {
	if c.memory == nil {
		return nil
	}
	memory := c.memory
	c.memory, c.base = nil, 0
	err := executable.remove(memory)
	if exact := c.exact.code.Load(); exact != nil {
		err = errors.Join(err, exact.Close())
	}
	return err
}
