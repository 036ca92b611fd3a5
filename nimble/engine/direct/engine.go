//go:build amd64 || arm64

package direct

import (
	"errors"
	"runtime"
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
	slots    []int32 // slot of each cell
	services []*service.Service
	trusted  bool
	tenant   engine.Tenant
	frame    bool // the first function has a stack frame
}

// Size implements engine.Sized. The handlers are shared and do not count.
func (c *code) Size() int { return len(c.cells) * cellSize }

// Close implements engine.Code.
func (*code) Close() error { return nil }

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) {
	if c.trusted {
		return c.guard(m, cpuOf(m))
	}
	return c.run(m, cpuOf(m))
}

// guard runs a trusted program: an access of unmapped memory is a fault of the
// extension. Only handlers and what Go does in their place set at, so that
// other panics are nobody's but ours.
func (c *code) guard(m *engine.Machine, k *cpu) (r0 uint64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if _, ok := r.(runtime.Error); !ok || k.at == 0 {
			panic(r)
		}
		k.left = k.paid
		r0, err = 0, c.stop(m, k, engine.Memory, c.index(k.at), nil)
	}()
	k.at = 0
	return c.run(m, k)
}

// stop ends a run with a fault at a cell.
func (c *code) stop(m *engine.Machine, k *cpu, kind engine.Kind, n int, err error) error {
	m.Fuel += uint64(k.left)
	return m.Fault(kind, int(c.slots[n]), k.addr, err)
}
