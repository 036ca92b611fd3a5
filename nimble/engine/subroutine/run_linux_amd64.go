package subroutine

import (
	"margay/nimble/engine"
	"margay/nimble/isa"
)

// prepare sets up a run, in a cpu that has anything in it.
func (c *code) prepare(m *engine.Machine, k *cpu) {
	k.end = [2]uint64{}
	k.left = m.Start()
	k.reg = [11]uint64{isa.FramePointer: m.SP}
	if c.frame {
		m.PushFrame()
	}
	for n := range m.Args {
		k.reg[1+n] = m.Args[n]
	}
	k.read = *m.Read // one by one: at once they would be copied twice
	k.write = *m.Write
	k.atomic = engine.Window{}
	reads, writes := m.Windows()
	k.reads, k.writes, k.frames = place(reads), place(writes), place(m.Frames)
	k.frame, k.stack, k.code = k.frames.first, m.SP, uint64(c.base)
}

// run enters the code, and does what it leaves for, until the first function
// exits or there is a fault.
func (c *code) run(m *engine.Machine, k *cpu) (r0 uint64, err error) {
	c.prepare(m, k)
	next := c.first
	for {
		enter(k, c.base+next)
		s := &c.sites[k.site]
		k.at = -1
		next = uintptr(s.next)
		var kind engine.Kind
		switch s.reason {
		case finished:
			m.Fuel += uint64(k.left)
			return k.reg[0], nil
		case refill:
			cost := int64(c.program.At(int(s.slot)).Cost)
			k.left, kind = m.Refill(k.left+cost, cost)
		case access:
			kind = engine.Memory
		case misaligned:
			kind = engine.Alignment
		case atomics:
			kind = k.findAtomic(m, s)
		case modify:
			kind = c.modify(m, k, s)
		case call:
			// One by one, since two at once would wait for what enter has
			// stored one by one.
			for n := range m.Call.Args {
				m.Call.Args[n] = k.reg[1+n]
			}
			m.SliceLeft = k.left
			k.reg[0], err = c.services[s.index].Call(&m.Call)
			if k.left = m.SliceLeft; err != nil {
				return 0, c.stop(m, k, engine.Service, s.slot, 0, err)
			}
		case deep:
			kind = engine.Depth
		case push:
			k.push(m)
		case pop:
			next = k.pop(m)
		}
		if kind != "" {
			return 0, c.stop(m, k, kind, s.slot, k.address(s), nil)
		}
	}
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

// modify does an atomic operation that fetches what it changes bit by bit, see
// findAtomic.
func (c *code) modify(m *engine.Machine, k *cpu, s *site) engine.Kind {
	addr := k.address(s)
	if addr&(1<<s.size-1) != 0 {
		return engine.Alignment
	}
	if c.trusted {
		k.at, k.addr, k.paid = int64(s.slot), addr, k.left
	} else if !m.FindAtomic(addr, int(s.size)) {
		return engine.Memory
	}
	i := c.program.At(int(s.slot))
	src := &k.reg[i.Src]
	v := *src
	switch i.Op {
	case isa.AtomicFetchOr:
		*src = modify64(addr, func(old uint64) uint64 { return old | v })
	case isa.AtomicFetchAnd:
		*src = modify64(addr, func(old uint64) uint64 { return old & v })
	case isa.AtomicFetchXor:
		*src = modify64(addr, func(old uint64) uint64 { return old ^ v })
	case isa.AtomicFetchOr32:
		*src = uint64(modify32(addr, func(old uint32) uint32 { return old | uint32(v) }))
	case isa.AtomicFetchAnd32:
		*src = uint64(modify32(addr, func(old uint32) uint32 { return old & uint32(v) }))
	case isa.AtomicFetchXor32:
		*src = uint64(modify32(addr, func(old uint32) uint32 { return old ^ uint32(v) }))
	}
	return ""
}
