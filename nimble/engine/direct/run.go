//go:build amd64 || arm64

package direct

import (
	"margay/nimble/engine"
	"margay/nimble/isa"
)

// prepare sets up a cpu that another code has used, or whose windows are stale.
func (c *code) prepare(m *engine.Machine, k *cpu) {
	m.Empty()
	k.end = [2]uint64{}
	k.top = m.SP
	if c.frame {
		m.PushFrame()
	}
	k.first = m.SP
	c.stackChanged(m, k)
	reads, writes := m.Windows()
	k.reads, k.writes, k.frames = place(reads), place(writes), place(m.Frames)
}

// Run implements engine.Code.
func (c *code) Run(m *engine.Machine) (uint64, error) {
	k := cpuOf(m)
	if m.Prepared != &c.tenant {
		c.prepare(m, k)
	} else if c.frame {
		m.ClearFrame()
	}
	k.frame = k.frames.first
	k.reg[isa.FramePointer] = k.top
	r0, why, left := start(k, &c.cells[0], m.FirstSlice(), &m.Args)
	if why == finished {
		m.Fuel += uint64(left)
		return r0, nil
	}
	return c.serve(m, k, why, left)
}

// stackChanged copies the windows again after a change of the stack. If a run
// ends with more stack than it began with, the next run must prepare.
func (c *code) stackChanged(m *engine.Machine, k *cpu) {
	k.stack = m.SP
	if m.SP == k.first {
		m.Prepared = &c.tenant
	}
	k.read = *m.Read // separate statements: a tuple assignment would copy twice
	k.write = *m.Write
	k.atomic = engine.Window{}
}

// serve handles the reason why handlers returned and enters them again, until the
// first function exits or there is a fault.
func (c *code) serve(m *engine.Machine, k *cpu, why reason, left int64) (r0 uint64, err error) {
	for why != finished {
		k.at, k.left = 0, left
		n := c.index(k.pc)
		var kind engine.Kind
		switch why {
		case refill:
			kind = k.pay(m, &c.cells[n])
		case access:
			kind = engine.Memory
		case misaligned:
			kind = engine.Alignment
		case elsewhere:
			kind = c.findAtomic(m, k, n)
		case modify:
			c.modify(k, n)
			n++
		case call:
			// Separate copies: handlers have just stored single words, and a wider
			// load would stall on store forwarding.
			a := &m.Call.Args
			a[0], a[1], a[2], a[3], a[4] = k.reg[1], k.reg[2], k.reg[3], k.reg[4], k.reg[5]
			m.SliceLeft = k.left
			k.reg[0], err = c.services[c.cells[n].operand].Call(&m.Call)
			if k.left = m.SliceLeft; err != nil {
				return 0, c.stop(m, k, engine.Service, n, err)
			}
			n++
		case local:
			if k.frame == k.frames.end {
				kind = engine.Depth
				break
			}
			n = c.push(m, k, n)
			kind = k.pay(m, &c.cells[n])
		case deep:
			kind = engine.Depth
		case exit:
			if k.frame == k.frames.first {
				m.Fuel += uint64(left)
				return k.reg[0], nil
			}
			n = c.pop(m, k)
			kind = k.pay(m, &c.cells[n])
		}
		if kind != "" {
			return 0, c.stop(m, k, kind, n, nil)
		}
		r0, why, left = enter(k, &c.cells[n], k.left, nil)
	}
	m.Fuel += uint64(left)
	return r0, nil
}

// pay pays for the block that begins at a cell.
func (k *cpu) pay(m *engine.Machine, at *cell) (kind engine.Kind) {
	k.ahead = at.target()
	if cost := int64(at.cost); k.left >= cost {
		k.left -= cost
	} else {
		k.left, kind = m.Refill(k.left, cost)
	}
	return kind
}

// push makes the frame of a local call at cell n and returns the first cell of
// the callee.
func (c *code) push(m *engine.Machine, k *cpu, n int) int {
	frame := k.next(m)
	k.frame += frameSize
	frame.Return, frame.FP = int(k.pc)+cellSize, k.reg[isa.FramePointer]
	frame.Saved = [4]uint64(k.reg[6:10])
	k.reg[isa.FramePointer] = m.SP
	to := n + int(c.cells[n].extra)/cellSize
	if c.program.Function(int(c.slots[to])).Frame {
		m.PushFrame()
		c.stackChanged(m, k)
	}
	return to
}

// pop exits from a function and returns the cell at which its caller continues.
func (c *code) pop(m *engine.Machine, k *cpu) int {
	if k.reg[isa.FramePointer] != m.SP {
		m.Enter(k.reg[isa.FramePointer])
		c.stackChanged(m, k)
	}
	k.frame -= frameSize
	frame := k.next(m)
	k.reg[isa.FramePointer] = frame.FP
	*(*[4]uint64)(k.reg[6:10]) = frame.Saved
	return c.index(uint64(frame.Return))
}

// next returns the frame at k.frame.
func (k *cpu) next(m *engine.Machine) *engine.Frame {
	return &m.Frames[(k.frame-k.frames.first)/frameSize]
}

// findAtomic looks for the region of an atomic operation outside the window. A
// non-empty kind is the fault.
func (c *code) findAtomic(m *engine.Machine, k *cpu, n int) engine.Kind {
	size := c.program.At(int(c.slots[n])).Op.Size()
	if !m.FindAtomic(k.addr, size/4+1) {
		return engine.Memory
	}
	k.atomic = *m.Atomic
	return ""
}

// modify executes the atomic operation of cell n. Its address is checked, unless
// the program is trusted.
func (c *code) modify(k *cpu, n int) {
	i := c.program.At(int(c.slots[n]))
	k.at, k.paid = k.pc, k.left
	engine.Atomic(i.Op, k.addr, &k.reg[0], &k.reg[i.Src])
	k.at = 0
}
