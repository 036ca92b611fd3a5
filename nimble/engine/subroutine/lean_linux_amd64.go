package subroutine

import (
	"slices"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/verify"
)

// form is the form in which a program is emitted.
//
// Lean code is for a program that executes each instruction at most once, and for
// runs with fuel for all of them. It never tests the fuel, and pays for a block
// only where paths with different costs meet: on every path to a place it owes
// the same, which an exit pays. So it is a third of the size, and what a run has
// paid at its end is exact. A run with less fuel needs the code that tests it,
// which is emitted for the first one: see code.exact.
//
// Plain code is lean code that always ends by its exit: all accesses are proved,
// and no instruction needs memory of the engine's own. It needs no cpu.
type form struct {
	calls bool // subroutine-calls
	lean  bool
	plain bool
}

// formOf returns the best form of a program.
func formOf(p *verify.Program) form {
	lean := !p.Repeats() && p.Function(p.Len()-1).Start == 0 && len(p.Services()) == 0 && fits(p)
	return form{lean: lean, plain: lean && !p.Function(0).Frame && unaided(p)}
}

// fits reports whether one execution of each instruction takes at most one slice.
func fits(p *verify.Program) bool { return uint64(p.Len()) <= engine.Slice(p) }

// unaided reports whether no instruction can return to Go or spills registers.
func unaided(p *verify.Program) bool {
	for slot := range p.Len() {
		switch i := p.At(slot); i.Op.Form() {
		case isa.FormAtomic, isa.FormAtomicFetch:
			return false
		case isa.FormLoad, isa.FormStore, isa.FormStoreImm:
			if !i.Proved {
				return false
			}
		default:
			if i.Op.Divides() {
				return false
			}
		}
	}
	return true
}

// credit is what lean code owes.
type credit struct {
	owed  int32   // at this place
	falls bool    // the instruction before this place may continue here
	lags  []int32 // by slot, what jumps to it owe, plus 1; 0: no jump yet
}

// grant begins with nothing owed.
func (c *credit) grant(slots int) {
	c.lags = slices.Grow(c.lags[:0], slots)[:slots]
	clear(c.lags)
}

// joinBlock begins a block: code before it pays until it owes as much as the
// jumps to it, and then the block is owed too.
func (t *threader) joinBlock(slot int, cost uint32) {
	if lag := t.lags[slot]; lag > 0 {
		if t.falls {
			t.pay(t.owed - (lag - 1))
		}
		t.owed = lag - 1
	}
	t.owed += int32(cost)
	t.falls = true
}

// settle prepares lean code for a jump: it pays until it owes as much as other
// jumps to the target. It changes the flags.
func (t *threader) settle(target int) {
	if !t.lean {
		return
	}
	if lag := t.lags[target]; lag > 0 {
		t.pay(t.owed - (lag - 1))
		t.owed = lag - 1
	}
	t.lags[target] = t.owed + 1
}

// pay emits a payment. What was paid too much comes back.
func (t *threader) pay(n int32) {
	short := n == int32(int8(n))
	switch {
	case n == 0:
	case t.plain && short: // sub qword [r12+offFuel], n
		t.put(0x246c8349|offFuel<<32|uint64(uint8(n))<<40, 6)
	case t.plain:
		t.put(0x246c8149|offFuel<<32, 5)
		t.imm32(n)
	case short: // sub r12, n
		t.put(0x00ec8349|uint64(uint8(n))<<24, 4)
	default:
		t.arithmetic(true, 5, fuel, n)
	}
}

// plainEntry is the entry of plain code, as the Go function that it looks like. It
// takes what it costs from the Machine's fuel, and returns r0.
type plainEntry func(m *engine.Machine) (r0 uint64)

// machine is the register in which plain code has the Machine.
const machine = r12

// borderOfPlain emits the entry of plain code.
func (t *threader) borderOfPlain() {
	t.reserve()
	t.ways[start] = t.here()
	t.move(true, machine, goCPU)
	for n := isa.Register(1); n <= 5; n++ {
		if t.initial(n) {
			t.mem(true, 0x8b, machineRegister[n], goCPU, offMachineArgs+8*int32(n-1))
		}
	}
	t.zeros()
}

// overwritten returns the registers that the first block of a program sets before
// it reads them, a bit each. Others among named may be read first.
func overwritten(p *verify.Program, named uint16) (set uint16) {
	var read uint16
	for slot := 0; slot < p.Len() && (set|read)&named != named; slot++ {
		i := p.At(slot)
		if slot > 0 && i.Cost > 0 {
			break
		}
		dst, src := uint16(1)<<i.Dst, uint16(1)<<i.Src
		moves := i.Code>>4 == opMov
		switch i.Op.Form() {
		case isa.FormWide, isa.FormWideIndex, isa.FormWideValue, isa.FormWideCode:
			set |= dst &^ read
		case isa.FormLoad:
			read |= src &^ set
			set |= dst &^ read
		case isa.FormDst, isa.FormDstImm:
			if !moves {
				read |= dst &^ set
			}
			set |= dst &^ read
		case isa.FormDstSrc:
			read |= src &^ set
			if !moves {
				read |= dst &^ set
			}
			set |= dst &^ read
		case isa.FormStore:
			read |= (dst | src) &^ set
		case isa.FormStoreImm:
			read |= dst &^ set
		case isa.FormNone, isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc:
			return set
		default: // it may use any register
			if i.Op != isa.Invalid {
				return set
			}
		}
	}
	return set
}
