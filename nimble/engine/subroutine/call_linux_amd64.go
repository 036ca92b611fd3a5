package subroutine

import (
	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/verify"
)

// saved holds the registers that a local call saves, in the order of a Frame.
var saved = machineRegister[6:10]

// framePointer is the register r10 lives in.
const framePointer = r13

// serviceCall is a call of a service. Its site has its number instead of a slot.
type serviceCall struct {
	service *service.Service
	slot    int
	next    uint64 // offset of the code after it
}

// callService emits a call of a service, which Go does.
func (t *threader) callService(slot int, i *verify.Instruction) {
	t.leaveBy(leaving(call, len(t.services)), t.toService)
	t.services = append(t.services, serviceCall{t.program.Services()[i.Target()], slot, uint64(t.here())})
}

// callLocal emits a local call. If the callee has a stack frame, Go makes it on
// the way.
func (t *threader) callLocal(slot int, i *verify.Instruction) {
	t.mem(true, 0x8b, scratch, self, offFrame)
	t.mem(true, 0x3b, scratch, self, offFrames+offEnd)
	t.exitIf(equal, leaving(deep, slot))
	for n, r := range saved {
		t.mem(true, 0x89, r, scratch, int32(offSaved+8*n))
	}
	t.mem(true, 0x89, framePointer, scratch, offFP)
	t.mem(true, 0xc7, 0, scratch, offReturn)
	t.imm32(0)
	back := t.here()
	t.arithmetic(true, 0, scratch, frameSize)
	t.mem(true, 0x89, scratch, self, offFrame)
	t.mem(true, 0x8b, framePointer, self, offStack)
	if t.program.Function(i.Target()).Frame {
		t.exit(leaving(push, slot), 0)
	} else {
		t.jumpTo(slot, i.Target())
	}
	t.patch(back, back+t.here()) // an offset in the code, not a distance
}

// end emits an exit: of the run, or of a function that was called. If the
// function has a stack frame, Go removes it.
func (t *threader) end(slot int) {
	t.falls = false
	first := t.function.Start == 0
	if first && !t.again {
		t.finish()
		return
	}
	t.mem(true, 0x8b, scratch, self, offFrame)
	if first {
		t.mem(true, 0x3b, scratch, self, offFrames+offFirst)
		called := t.skipIf(notEqual)
		t.finish()
		t.land(called)
	}
	if t.function.Frame {
		t.exit(leaving(pop, slot), 0)
		return
	}
	t.arithmetic(true, 5, scratch, frameSize)
	t.mem(true, 0x89, scratch, self, offFrame)
	for n, r := range saved {
		t.mem(true, 0x8b, r, scratch, int32(offSaved+8*n))
	}
	t.mem(true, 0x8b, framePointer, scratch, offFP)
	t.mem(true, 0x8b, scratch, scratch, offReturn)
	t.mem(true, 0x03, scratch, self, offCode)
	t.reg(false, 0xff, 4, scratch)
}

// push makes the stack frame of a function that was called.
func (c *code) push(m *engine.Machine, k *cpu) {
	m.PushFrame()
	c.stackChanged(m, k)
}

// pop removes the stack frame of a function and returns the offset at which its
// caller continues.
func (c *code) pop(m *engine.Machine, k *cpu) (next uint64) {
	m.Enter(k.reg[isa.FramePointer])
	c.stackChanged(m, k)
	k.frame -= frameSize
	frame := &m.Frames[(k.frame-k.frames.first)/frameSize]
	k.reg[isa.FramePointer] = frame.FP
	*(*[4]uint64)(k.reg[6:10]) = frame.Saved
	return uint64(frame.Return)
}

// stackChanged copies the windows again after a change of the stack. If a run
// ends with more stack than it began with, the next run must prepare.
func (c *code) stackChanged(m *engine.Machine, k *cpu) {
	k.stack = m.SP
	if m.SP == k.begin {
		m.Prepared = &c.tenant
	}
	k.read, k.write = *m.Read, *m.Write
	k.atomic = engine.Window{}
}
