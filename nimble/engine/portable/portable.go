// Package portable is the engine that runs everywhere: a Go switch over
// pre-decoded instructions. It is the oracle for the faster engines, and takes
// about one nanosecond per instruction.
//
// Threading resolves everything that does not change: registers and constants
// into a 16-byte cell per instruction, jumps into indices of cells, maps into
// addresses and handles, calls into services. Memory instructions come in three
// versions. The checked one compares the address with the region used last and
// searches the other regions on a miss. The unchecked one, for trusted
// extensions, records its cell and address, so that the Go panic of a stray
// access becomes a fault of the extension. The proved one, for accesses that the
// verifier has proved, does neither.
//
// A stray access to mapped memory cannot be caught: a trusted extension can
// overwrite any writable memory of this process.
package portable

import (
	"errors"
	"runtime"
	"runtime/debug"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// New returns the engine.
func New() engine.Engine { return portable{} }

type portable struct{}

// Name implements engine.Engine.
func (portable) Name() string { return "portable" }

// Thread implements engine.Engine.
func (portable) Thread(p *verify.Program, maps []*state.Map) (engine.Code, error) {
	if p.Len() == 0 || len(p.Maps()) != len(maps) {
		return nil, errors.New("portable: needs a verified program and its maps")
	}
	return thread(p, maps), nil
}

// cell is a pre-decoded instruction.
type cell struct {
	op       isa.Op // or unchecked, or enterBlock
	dst, src uint8
	cost     uint32 // fuel of the block that starts here
	imm      uint64 // constants of op: see operand
}

// Operations that are not instructions: unchecked or proved is added to the
// number of a load or store; enterBlock pays for a block entered by falling
// through.
const (
	unchecked  = isa.Op(isa.Ops) - isa.LdXB
	proved     = unchecked + isa.StXDW - isa.LdXB + 1
	enterBlock = isa.StXDW + proved + 1
)

// code is a threaded program.
type code struct {
	cells    []cell
	slots    []int32 // slot of each cell
	services []*service.Service
	trusted  bool
	frame    bool // the first function has a stack frame
}

// Size implements engine.Sized.
func (c *code) Size() int { return len(c.cells) * int(cellSize) }

// Close implements engine.Code.
func (*code) Close() error { return nil }

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) {
	if c.trusted {
		return c.guarded(m)
	}
	return c.run(m)
}

// guarded runs a trusted program: an access to unmapped memory is a fault of the
// extension. m.At is the cell of the last unchecked access, -1 while a service
// runs, because panics of a service are not faults of the extension.
func (c *code) guarded(m *engine.Machine) (r0 uint64, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if _, ok := r.(runtime.Error); !ok || m.At < 0 {
			panic(r)
		}
		r0, err = 0, c.stop(m, engine.Memory, m.At, m.Addr, m.SliceLeft, nil)
	}()
	m.At = -1
	return c.run(m)
}

// stop ends a run with a fault at a cell. left is the unused fuel of the slice.
func (c *code) stop(m *engine.Machine, kind engine.Kind, at int, addr uint64, left int64, err error) error {
	m.Fuel += uint64(left)
	return m.Fault(kind, int(c.slots[at]), addr, err)
}
