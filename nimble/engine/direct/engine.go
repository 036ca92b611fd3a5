//go:build amd64 || arm64

package direct

import (
	"errors"
	"runtime/debug"

	"margay/nimble/engine"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

type direct struct{}

func newEngine() (engine.Engine, error) { return direct{}, nil }

// Name implements engine.Engine.
func (direct) Name() string { return "direct" }

// Thread implements engine.Engine.
func (direct) Thread(p *verify.Program, maps []*state.Map) (engine.Code, error) {
	if p.Len() == 0 || len(p.Maps()) != len(maps) {
		return nil, errors.New("direct: needs a verified program and its maps")
	}
	return thread(p, maps), nil
}

// code is a threaded program.
type code struct {
	program  *verify.Program
	cells    []cell
	slots    []int32            // slot of each cell
	services []*service.Service // by the operands of calls
	tenant   engine.Tenant
	frame    bool // the first function has a stack frame
}

// Size implements engine.Sized. The handlers are shared and do not count.
func (c *code) Size() int { return len(c.cells) * cellSize }

// Close implements engine.Code.
func (*code) Close() error { return nil }

// guarded is the code of a trusted program with unchecked accesses.
type guarded struct{ *code }

// Run implements engine.Code. An access to unmapped memory is a fault of the
// extension. at is not 0 only while handlers, or Go in their place, execute
// instructions; any other panic is a bug of this process and goes on.
func (c guarded) Run(m *engine.Machine) (r0 uint64, err error) {
	k := cpuOf(m)
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if k.at == 0 || recover() == nil {
			return
		}
		k.left = k.paid
		r0, err = 0, c.stop(m, k, engine.Memory, c.index(k.at), nil)
	}()
	k.at = 0
	r0, err = c.code.Run(m)
	k.at = 0 // the run is over: nothing to recover
	return r0, err
}

// stop ends a run with a fault at a cell.
func (c *code) stop(m *engine.Machine, k *cpu, kind engine.Kind, n int, err error) error {
	m.Fuel += uint64(k.left)
	return m.Fault(kind, int(c.slots[n]), k.addr, err)
}
