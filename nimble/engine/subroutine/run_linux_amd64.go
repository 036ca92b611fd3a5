package subroutine

import (
	"runtime/debug"

	"margay/nimble/engine"
)

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) {
	k, left := cpuOf(m), m.Start()
	if m.Tenant != &c.tenant || k.changes != m.Changes || c.frame {
		c.prepare(m, k)
	}
	r0, at, left := c.ways[start](k, left, 0, 0)
	if at == done {
		m.Fuel += uint64(left)
		return r0, nil
	}
	return c.serve(m, k, at, left)
}

// prepare sets up a cpu that is another code's or knows windows that are void.
func (c *code) prepare(m *engine.Machine, k *cpu) {
	m.Tenant = &c.tenant
	k.end = [2]uint64{}
	k.top = m.SP
	if c.frame {
		m.PushFrame()
	}
	k.stackChanged(m)
	reads, writes := m.Windows()
	k.reads, k.writes, k.frames = place(reads), place(writes), place(m.Frames)
	k.frame, k.code = k.frames.first, uint64(c.base)
}

// serve does what the code was left for and enters it again, until the first
// function exits or there is a fault.
func (c *code) serve(m *engine.Machine, k *cpu, at int, left int64) (r0 uint64, err error) {
	for at != done {
		s := &c.sites[at]
		k.at = -1
		next := uint64(c.base) + uint64(s.next)
		var kind engine.Kind
		switch s.reason {
		case call:
			m.SliceLeft = left
			r0, err = c.services[s.index].Call(&m.Call)
			if left = m.SliceLeft; err != nil {
				return 0, stop(m, left, engine.Service, s.slot, 0, err)
			}
			r0, at, left = c.ways[afterService](k, left, r0, next)
			continue
		case refill:
			cost := int64(c.program.At(int(s.slot)).Cost)
			left, kind = m.Refill(left+cost, cost)
		case access:
			kind = engine.Memory
		case misaligned:
			kind = engine.Alignment
		case atomics:
			kind = k.findAtomic(m, s)
		case deep:
			kind = engine.Depth
		case push:
			k.push(m)
		case pop:
			next = uint64(c.base) + k.pop(m)
		}
		if kind != "" {
			return 0, stop(m, left, kind, s.slot, k.address(s), nil)
		}
		r0, at, left = c.ways[resume](k, left, 0, next)
	}
	m.Fuel += uint64(left)
	return r0, nil
}

// stop ends a run with a fault at a slot. left is what remains of the slice.
func stop(m *engine.Machine, left int64, kind engine.Kind, slot int32, addr uint64, err error) error {
	m.Fuel += uint64(left)
	return m.Fault(kind, int(slot), addr, err)
}

// address returns the address of an access. It means nothing at other sites.
func (k *cpu) address(s *site) uint64 { return k.reg[s.base] + uint64(int64(s.off)) }

// findAtomic looks for the region of an atomic operation outside the window. A
// kind that is not empty is the fault.
func (k *cpu) findAtomic(m *engine.Machine, s *site) engine.Kind {
	if !m.FindAtomic(k.address(s), int(s.size)) {
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
			r0, err = 0, stop(m, k.paid, engine.Memory, int32(k.at), k.addr, nil)
		}
	}()
	k.at = -1
	return c.code.Run(m)
}
