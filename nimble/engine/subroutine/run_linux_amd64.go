package subroutine

import (
	"sync"
	"sync/atomic"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/verify"
)

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) {
	if m.Fuel > c.most {
		return c.plain(m), nil
	}
	return c.run(m)
}

// run is Run of code that is not plain, or with little fuel.
func (c *code) run(m *engine.Machine) (uint64, error) {
	if c.lean && m.Fuel < uint64(c.program.Len()) {
		return c.runExactly(m)
	}
	k := cpuOf(m)
	if m.Prepared != &c.tenant {
		c.prepare(m, k)
	} else if c.frame {
		m.ClearFrame()
	}
	if c.short {
		r0, at, left := c.ways[start](k, int64(m.Fuel), 0, 0)
		if at == done {
			m.Fuel = uint64(left)
			return r0, nil
		}
		m.Fuel = 0
		return c.serve(m, k, at, left)
	}
	r0, at, left := c.ways[start](k, m.FirstSlice(), 0, 0)
	if at == done {
		m.Fuel += uint64(left)
		return r0, nil
	}
	return c.serve(m, k, at, left)
}

// runExactly is run with less fuel than lean code needs. If the code for it cannot be
// made, the run does not begin.
func (c *code) runExactly(m *engine.Machine) (uint64, error) {
	exact, err := c.exact.get(func() (*code, error) { return compile(c.program, c.maps, form{}) })
	if err != nil {
		return 0, m.Fault(engine.Fuel, 0, 0, err)
	}
	return exact.run(m)
}

// late is code that is made when it is needed. It is safe for concurrent use.
type late struct {
	making sync.Mutex
	code   atomic.Pointer[code] // nil: it was not made
}

// get returns the code, and makes it if no earlier call could.
func (l *late) get(compile func() (*code, error)) (*code, error) {
	if made := l.code.Load(); made != nil {
		return made, nil
	}
	l.making.Lock()
	defer l.making.Unlock()
	if made := l.code.Load(); made != nil {
		return made, nil
	}
	made, err := compile()
	if err == nil {
		l.code.Store(made)
	}
	return made, err
}

// prepare sets up a cpu that another code has used, or whose windows are stale.
func (c *code) prepare(m *engine.Machine, k *cpu) {
	m.Empty()
	k.end = [2]uint64{}
	k.top = m.SP
	if c.frame {
		m.PushFrame()
	}
	k.begin = m.SP
	c.stackChanged(m, k)
	reads, writes := m.Windows()
	k.reads, k.writes, k.frames = place(reads), place(writes), place(m.Frames)
	k.frame, k.code = k.frames.first, uint64(c.base)
	k.stray = c.stray
}

// serve handles the reason why the code returned and enters it again, until the
// first function exits or there is a fault.
func (c *code) serve(m *engine.Machine, k *cpu, at site, left int64) (r0 uint64, err error) {
	for at != done {
		if at.reason() == call {
			if r0, at, left, err = c.callServices(m, k, at, left); err != nil {
				return 0, err
			}
			continue
		}
		slot := at.slot()
		i := c.program.At(slot)
		var next uint64
		var kind engine.Kind
		switch at.reason() {
		case stray:
			return 0, c.strayed(m, k, left)
		case refill:
			if left, kind = m.Refill(left+int64(i.Cost), int64(i.Cost)); kind == "" { // never in a short program
				left, next = left+int64(i.Cost), c.address(slot)
			}
		case outside:
			kind = engine.Memory
		case misaligned:
			kind = engine.Alignment
		case atomics:
			if kind = k.findAtomic(m, i); kind == "" {
				left, next = left+int64(i.Cost), c.address(slot)
			}
		case deep:
			kind = engine.Depth
		case push:
			c.push(m, k)
			next = c.address(i.Target())
		case pop:
			next = uint64(c.base) + c.pop(m, k)
		}
		if kind != "" {
			return 0, stop(m, left, kind, slot, k.operand(i), nil)
		}
		r0, at, left = c.ways[resume](k, left, 0, next)
	}
	m.Fuel += uint64(left)
	return r0, nil
}

// callServices calls services and enters the code again for as long as it returns
// for another service.
func (c *code) callServices(m *engine.Machine, k *cpu, at site, left int64) (r0 uint64, next site, leftNext int64, err error) {
	for at.reason() == call {
		each := &c.services[at.slot()]
		m.SliceLeft = left
		if r0, err = each.service.Call(&m.Call); err != nil {
			return 0, done, 0, stop(m, m.SliceLeft, engine.Service, each.slot, 0, err)
		}
		r0, at, left = c.ways[afterService](k, m.SliceLeft, r0, uint64(c.base)+each.next)
	}
	return r0, at, left, nil
}

// address returns the address of the code at a slot, including the payment for a
// block that starts there.
func (c *code) address(slot int) uint64 { return uint64(c.base) + uint64(c.at[slot]) }

// stop ends a run with a fault at a slot. left is the rest of the slice.
func stop(m *engine.Machine, left int64, kind engine.Kind, slot int, addr uint64, err error) error {
	m.Fuel += uint64(left)
	return m.Fault(kind, slot, addr, err)
}

// operand returns the address of an access. For other instructions it is
// meaningless.
func (k *cpu) operand(i *verify.Instruction) uint64 {
	base := i.Dst
	if i.Op.Form() == isa.FormLoad {
		base = i.Src
	}
	return k.reg[base] + uint64(int64(i.Off))
}

// findAtomic looks for the region of an atomic operation outside the window. A
// non-empty kind is the fault.
func (k *cpu) findAtomic(m *engine.Machine, i *verify.Instruction) engine.Kind {
	if !m.FindAtomic(k.operand(i), int(logarithm(i))) {
		return engine.Memory
	}
	k.atomic = *m.Atomic
	return ""
}
