package subroutine

import "margay/nimble/isa"

// Every program begins with the exit path at offset save, which takes a site in
// DX. done is the site of a run that has ended.
const (
	save = 0
	done = 0
)

// Registers of Go's arguments at an entry.
const (
	goCPU  = ax
	goLeft = bx
	goR0   = cx
	goNext = di
)

// border emits the entries and exit paths, and records their offsets.
func (t *threader) border() {
	if t.plain {
		t.borderOfPlain()
		return
	}
	t.reserve()
	for n, r := range machineRegister {
		t.mem(true, 0x89, r, self, int32(offReg+8*n))
	}
	t.leave()

	if !t.lean {
		t.borderOfResumption()
	}
	if t.trusted {
		t.borderOfStrays()
	}
	if t.callsServices() {
		t.borderOfServices()
	}

	t.reserve()
	t.ways[start] = t.here()
	t.enter()
	for n := isa.Register(1); n <= 5; n++ {
		if t.initial(n) {
			t.mem(true, 0x8b, machineRegister[n], self, offArgs+8*int32(n-1))
		}
	}
	if t.callsServices() {
		t.constantArguments()
	}
	t.zeros()
	if t.names(isa.FramePointer) {
		t.mem(true, 0x8b, framePointer, self, offTop)
	}
	if t.local {
		t.mem(true, 0x8b, scratch, self, offFrames+offFirst)
		t.mem(true, 0x89, scratch, self, offFrame)
	}
}

// zeros emits zeros in r0 and r6 to r9.
func (t *threader) zeros() {
	for n := range isa.FramePointer {
		if (n == 0 || n > 5) && t.initial(n) {
			t.zero(machineRegister[n])
		}
	}
}

// borderOfResumption emits the entry at any place.
func (t *threader) borderOfResumption() {
	t.reserve()
	t.ways[resume] = t.here()
	t.enter()
	t.move(true, scratch, goNext)
	for n, r := range machineRegister {
		t.mem(true, 0x8b, r, self, int32(offReg+8*n))
	}
	t.reg(false, 0xff, 4, scratch)
}

// borderOfStrays emits the exit path after a bad access.
func (t *threader) borderOfStrays() {
	t.reserve()
	t.toStray = t.here()
	t.body = t.calls             // all accesses are in subroutines
	t.exit(leaving(stray, 0), 0) // Go pays the debt of the access
	t.body = false
}

// borderOfServices emits the exit path to services and the entry after them. A
// service gets r1 to r5 and returns r0; the other registers are preserved.
func (t *threader) borderOfServices() {
	t.reserve()
	t.toService = t.here()
	t.arguments(0x89, offCallArgs)
	t.keep(0x89)
	t.leave()

	t.reserve()
	t.ways[afterService] = t.here()
	t.enter()
	t.move(true, scratch, goNext)
	t.move(true, machineRegister[0], goR0)
	t.arguments(0x8b, offCallArgs)
	t.keep(0x8b)
	t.reg(false, 0xff, 4, scratch)
}

// callsServices reports whether there are calls of services.
func (t *threader) callsServices() bool { return len(t.program.Services()) > 0 }

// names reports whether any instruction names a register.
func (t *threader) names(r isa.Register) bool { return t.named>>r&1 != 0 }

// initial reports whether the value of a register at the start of a run matters.
func (t *threader) initial(r isa.Register) bool { return (t.named&^t.unread)>>r&1 != 0 }

// enter takes the arguments that Go passes to every entry.
func (t *threader) enter() {
	t.mem(true, 0x89, self, goCPU, offBP)
	t.move(true, self, goCPU)
	t.move(true, fuel, goLeft)
}

// leave returns to Go at the site in DX.
func (t *threader) leave() {
	t.move(false, bx, scratch)
	t.move(true, cx, fuel)
	t.mem(true, 0x8b, self, self, offBP)
	t.byte(0xc3)
}

// finish ends the run. Only r0 and the fuel matter after it.
func (t *threader) finish() {
	t.pay(t.owed)
	if t.plain {
		t.byte(0xc3)
		return
	}
	t.zero(bx)
	t.move(true, cx, fuel)
	t.mem(true, 0x8b, self, self, offBP)
	t.byte(0xc3)
}

// arguments loads or stores the registers among r1 to r5 that instructions name.
func (t *threader) arguments(opcode int, at int32) {
	for n := isa.Register(1); n <= 5; n++ {
		if t.names(n) {
			t.mem(true, opcode, machineRegister[n], self, at+8*int32(n-1))
		}
	}
}

// constantArguments copies the registers among r1 to r5 that no instruction names
// into the arguments of services: they do not change during a run.
func (t *threader) constantArguments() {
	for n := isa.Register(1); n <= 5; n++ {
		if !t.names(n) {
			t.mem(true, 0x8b, scratch, self, offArgs+8*int32(n-1))
			t.mem(true, 0x89, scratch, self, offCallArgs+8*int32(n-1))
		}
	}
}

// keep stores or loads the registers among r6 to r10 that instructions name.
func (t *threader) keep(opcode int) {
	for n := isa.Register(6); n <= isa.FramePointer; n++ {
		if t.names(n) {
			t.mem(true, opcode, machineRegister[n], self, offReg+8*int32(n))
		}
	}
}
