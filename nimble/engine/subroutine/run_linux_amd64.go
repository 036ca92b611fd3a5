package subroutine

import (
	"runtime/debug"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/verify"
)

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) {
	k := cpuOf(m)
	if m.Tenant != &c.tenant || k.changes != m.Changes || k.begin != m.SP || !m.SameContext() {
		c.prepare(m, k)
	} else if c.frame {
		m.ClearFrame()
	}
	r0, at, left := c.ways[start](k, m.FirstSlice(), 0, 0)
	if at == done {
		m.Fuel += uint64(left)
		return r0, nil
	}
	return c.serve(m, k, at, left)
}

// prepare sets up a cpu that is another code's or knows windows that are void.
func (c *code) prepare(m *engine.Machine, k *cpu) {
	m.Refresh()
	m.Tenant = &c.tenant
	k.end = [2]uint64{}
	k.top = m.SP
	if c.frame {
		m.PushFrame()
	}
	k.begin = m.SP
	k.stackChanged(m)
	reads, writes := m.Windows()
	k.reads, k.writes, k.frames = place(reads), place(writes), place(m.Frames)
	k.frame, k.code = k.frames.first, uint64(c.base)
}

// serve does what the code was left for and enters it again, until the first
// function exits or there is a fault.
func (c *code) serve(m *engine.Machine, k *cpu, at site, left int64) (r0 uint64, err error) {
	for at != done {
		k.at = -1
		slot := at.slot()
		i := c.program.At(slot)
		if at.reason() == call {
			m.SliceLeft = left
			r0, err = c.program.Services()[i.Target].Call(&m.Call)
			if left = m.SliceLeft; err != nil {
				return 0, stop(m, left, engine.Service, slot, 0, err)
			}
			r0, at, left = c.ways[afterService](k, left, r0, c.address(slot+1))
			continue
		}
		var next uint64
		var kind engine.Kind
		switch at.reason() {
		case refill:
			left, kind = m.Refill(left+int64(i.Cost), int64(i.Cost))
			left, next = left+again(i, kind), c.address(slot)
		case access:
			kind = engine.Memory
		case misaligned:
			kind = engine.Alignment
		case atomics:
			kind = k.findAtomic(m, i)
			left, next = left+again(i, kind), c.address(slot)
		case deep:
			kind = engine.Depth
		case push:
			k.push(m)
			next = c.address(i.Target)
		case pop:
			next = uint64(c.base) + k.pop(m)
		}
		if kind != "" {
			return 0, stop(m, left, kind, slot, k.operand(i), nil)
		}
		r0, at, left = c.ways[resume](k, left, 0, next)
	}
	m.Fuel += uint64(left)
	return r0, nil
}

// address returns where the code of an instruction is, with what its block
// costs.
func (c *code) address(slot int) uint64 { return uint64(c.base) + uint64(c.at[slot]) }

// again returns the fuel that is paid once more when an instruction is begun
// again.
func again(i *verify.Instruction, kind engine.Kind) int64 {
	if kind != "" {
		return 0
	}
	return int64(i.Cost)
}

// stop ends a run with a fault at a slot. left is what remains of the slice.
func stop(m *engine.Machine, left int64, kind engine.Kind, slot int, addr uint64, err error) error {
	m.Fuel += uint64(left)
	return m.Fault(kind, slot, addr, err)
}

// operand returns the address of an access. It means nothing of other
// instructions.
func (k *cpu) operand(i *verify.Instruction) uint64 {
	base := i.Dst
	if i.Op.Form() == isa.FormLoad {
		base = i.Src
	}
	return k.reg[base] + uint64(int64(i.Off))
}

// findAtomic looks for the region of an atomic operation outside the window. A
// kind that is not empty is the fault.
func (k *cpu) findAtomic(m *engine.Machine, i *verify.Instruction) engine.Kind {
	if !m.FindAtomic(k.operand(i), int(logarithm(i))) {
		return engine.Memory
	}
	k.atomic = *m.Atomic
	return ""
}

// guarded is the code of a trusted program with unchecked accesses.
type guarded struct{ *code }

// Run implements engine.Code. An access of unmapped memory is a fault of the
// extension. Only emitted code sets at, so that other panics are nobody's but
// ours.
func (c guarded) Run(m *engine.Machine) (r0 uint64, err error) {
	k := cpuOf(m)
	before := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(before)
		if k.at >= 0 && recover() != nil {
			r0, err = 0, stop(m, k.paid, engine.Memory, int(k.at), k.addr, nil)
		}
	}()
	k.at = -1
	r0, err = c.code.Run(m)
	k.at = -1 // recover is not for nothing
	return r0, err
}
