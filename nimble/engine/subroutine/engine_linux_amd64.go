package subroutine

import (
	"errors"
	"fmt"
	"runtime"
	"runtime/debug"

	"golang.org/x/sys/unix"

	"margay/nimble/engine"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

type subroutine struct{}

func newEngine() (engine.Engine, error) { return subroutine{}, nil }

// Name implements engine.Engine.
func (subroutine) Name() string { return "subroutine" }

// Thread implements engine.Engine.
func (subroutine) Thread(p *verify.Program, maps []*state.Map) (engine.Code, error) {
	if p.Len() == 0 || len(p.Maps()) != len(maps) {
		return nil, errors.New("subroutine: needs a verified program and its maps")
	}
	t := thread(p, maps)
	c := &code{
		program:  p,
		sites:    t.sites,
		services: t.services,
		first:    uintptr(t.at[0]),
		frame:    p.Function(0).Frame,
		trusted:  p.Trusted(),
		guarded:  t.guarded,
	}
	if err := c.load(t.code); err != nil {
		return nil, fmt.Errorf("subroutine: %w", err)
	}
	return c, nil
}

// code is a threaded program.
type code struct {
	program  *verify.Program
	sites    []site
	services []*service.Service
	memory   []byte  // the emitted code
	base     uintptr // its address
	first    uintptr // offset of the first instruction
	frame    bool    // the first function has a stack frame
	trusted  bool
	guarded  bool // it makes unchecked accesses
}

// load makes emitted code executable.
func (c *code) load(emitted []byte) error {
	memory, err := unix.Mmap(-1, 0, len(emitted), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return fmt.Errorf("map %d bytes of code: %w", len(emitted), err)
	}
	copy(memory, emitted)
	if err := unix.Mprotect(memory, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		return errors.Join(fmt.Errorf("make code executable: %w", err), unix.Munmap(memory))
	}
	c.memory, c.base = memory, addressOf(memory)
	return nil
}

// Size implements engine.Sized.
func (c *code) Size() int { return len(c.memory) }

// Close implements engine.Code.
func (c *code) Close() error {
	if c.memory == nil {
		return nil
	}
	memory := c.memory
	c.memory, c.base = nil, 0
	if err := unix.Munmap(memory); err != nil {
		return fmt.Errorf("subroutine: unmap code: %w", err)
	}
	return nil
}

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) {
	if c.guarded {
		return c.guard(m, cpuOf(m))
	}
	return c.run(m, cpuOf(m))
}

// guard runs a trusted program: an access of unmapped memory is a fault of the
// extension. Only emitted code and what Go does in its place set at, so that
// other panics are nobody's but ours.
func (c *code) guard(m *engine.Machine, k *cpu) (r0 uint64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if _, ok := r.(runtime.Error); !ok || k.at < 0 {
			panic(r)
		}
		k.left = k.paid
		r0, err = 0, c.stop(m, k, engine.Memory, int32(k.at), k.addr, nil)
	}()
	k.at = -1
	return c.run(m, k)
}

// stop ends a run with a fault at a slot.
func (c *code) stop(m *engine.Machine, k *cpu, kind engine.Kind, slot int32, addr uint64, err error) error {
	m.Fuel += uint64(k.left)
	return m.Fault(kind, int(slot), addr, err)
}
