package subroutine

import (
	"encoding/binary"
	"slices"
	"sync"

	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// reason is why emitted code returned to Go.
type reason uint8

const (
	finished   reason = iota // the exit of the first function
	refill                   // a block costs more than the slice has left
	outside                  // an access outside all windows
	misaligned               // an atomic operation at a bad address
	atomics                  // an atomic operation outside the window
	call                     // a call of a service
	deep                     // a local call beyond the call depth
	push                     // a local call of a function with a stack frame
	pop                      // the exit of a function with a stack frame
	stray                    // a bad unchecked access
)

// site says why and where emitted code returns to Go: a reason, and the slot of
// an instruction or the number of a call of a service.
type site uint32

const slotBits = 24 // object.MaxInstructions is less than 1<<slotBits

func leaving(why reason, slot int) site { return site(why)<<slotBits | site(slot) }

func (s site) reason() reason { return reason(s >> slotBits) }

func (s site) slot() int { return int(s & (1<<slotBits - 1)) }

// threader emits one program.
type threader struct {
	asm
	program *verify.Program
	maps    []*state.Map
	form
	trusted bool

	at       []int32 // offset in the code of each slot
	jumps    []forward
	cold     []cold
	misses   []access  // outside their window
	bodies   []forward // calls of the subroutines of slots
	strays   []access  // unchecked, in ascending order
	services []serviceCall

	ways      [ways]int // offsets of the entries
	toService int       // offset of the exit path to a service
	toStray   int       // offset of the exit path after a bad access
	searches  [2][4]int // offsets of searches, of loads and stores, by size; 0: none yet

	function verify.Function // of the current instruction
	body     bool            // the code being emitted is called
	named    uint16          // a bit for each register that any instruction names
	unread   uint16          // those whose first value is never read
	local    bool            // there are local calls
	again    bool            // the first function is also called
	resumes  bool            // a checked atomic operation starts again

	credit // of lean code
}

// forward is a jump or call for a slot whose target is not emitted yet. hole is
// the offset of its end.
type forward struct{ hole, slot int32 }

// access is a memory access of a slot that may be outside memory: the jump that
// ends at hole goes there, or the access begins at hole.
type access struct{ hole, slot, owed int32 }

// cold is a jump to an exit path that is not emitted yet.
type cold struct {
	hole int32
	site site
	owed int32
}

// threaders recycles the memory of threaders: allocating it takes as long as
// emitting.
var threaders = sync.Pool{New: func() any { return new(threader) }}

// recycle ends the use of a threader.
func (t *threader) recycle() {
	*t = threader{
		asm: asm{code: t.code},
		at:  t.at, jumps: t.jumps[:0], cold: t.cold[:0], misses: t.misses[:0], bodies: t.bodies[:0],
		strays: t.strays[:0], credit: credit{lags: t.lags},
	}
	threaders.Put(t)
}

// thread emits a program in a form.
func thread(p *verify.Program, maps []*state.Map, f form) *threader {
	t := threaders.Get().(*threader)
	t.program, t.maps, t.form, t.trusted = p, maps, f, p.Trusted()
	t.at = slices.Grow(t.at[:0], p.Len())[:p.Len()]
	functions := p.Functions()
	t.named, t.again = p.Registers()|1, functions[0].Called // a run always returns r0
	t.unread = overwritten(p, t.named)
	t.local = slices.ContainsFunc(functions, func(f verify.Function) bool { return f.Called })
	if t.lean {
		t.grant(p.Len())
	}
	t.border()
	for _, t.function = range functions {
		for slot := t.function.Start; slot < t.function.End; slot++ {
			i := p.At(slot)
			t.reserve()
			if t.lean && i.Cost > 0 {
				t.joinBlock(slot, i.Cost)
			}
			t.at[slot] = int32(t.here())
			if i.Op == isa.Invalid {
				continue
			}
			if !t.lean && i.Cost > 0 {
				t.enterBlock(slot, i.Cost)
			}
			if t.calls {
				t.place(slot, i)
			} else {
				t.instruction(slot, i)
			}
		}
	}
	t.link()
	return t
}

// link emits the subroutines and the exit paths, and resolves jumps.
func (t *threader) link() {
	t.leaveCold()
	t.body = t.calls
	t.writeBodies()
	t.leaveCold()
	for _, each := range t.misses {
		t.reserve()
		t.missed(each)
	}
	for _, each := range t.jumps {
		t.patch(int(each.hole), int(t.at[each.slot]))
	}
}

// leaveCold emits the exit paths of jumps that exitIf and enterBlock have emitted.
func (t *threader) leaveCold() {
	const most = 24 // bytes of an exit path
	t.reserveMore(most * len(t.cold))
	for _, each := range t.cold {
		t.patch(int(each.hole), t.here())
		t.exit(each.site, each.owed)
	}
	t.cold = t.cold[:0]
}

// exit emits the return to Go at a site, where lean code owes fuel.
func (t *threader) exit(s site, owed int32) {
	t.dropReturn()
	t.pay(owed)
	t.leaveBy(s, save)
}

// leaveBy emits a jump to the exit path at offset way.
func (t *threader) leaveBy(s site, way int) {
	at := t.code[t.written : t.written+16]
	binary.LittleEndian.PutUint64(at, 0xba|uint64(s)<<8|0xe9<<40) // mov dx, site; jmp
	t.written += 10
	binary.LittleEndian.PutUint32(at[6:], uint32(int32(way-t.written)))
}

// exitIf is exit under a condition.
func (t *threader) exitIf(condition byte, s site) {
	t.cold = append(t.cold, cold{int32(t.jumpIfAhead(condition)), s, t.owed})
}

// enterBlock emits the payment for the block that starts at a slot.
func (t *threader) enterBlock(slot int, cost uint32) {
	if cost < 128 { // most blocks: both instructions at once
		t.put(0x820f_00ec8349|uint64(cost)<<24, 10) // sub r12, cost; jb
		t.cold = append(t.cold, cold{hole: int32(t.here()), site: leaving(refill, slot)})
		return
	}
	t.arithmetic(true, 5, fuel, int32(cost))
	t.exitIf(below, leaving(refill, slot))
}

// instruction emits the code of one instruction.
func (t *threader) instruction(slot int, i *verify.Instruction) {
	switch i.Op.Form() {
	case isa.FormDst, isa.FormDstImm, isa.FormDstSrc:
		t.compute(i)
	case isa.FormLoad:
		t.load(slot, i)
	case isa.FormStore, isa.FormStoreImm:
		t.store(slot, i)
	case isa.FormAtomic, isa.FormAtomicFetch:
		t.atomic(slot, i)
	case isa.FormJump, isa.FormJumpLong:
		t.jumpTo(slot, i.Target())
	case isa.FormCondImm, isa.FormCondSrc:
		word, n := comparison(i)
		t.branch(slot, i, word, n)
	case isa.FormCall:
		t.callService(slot, i)
	case isa.FormCallLocal:
		t.callLocal(slot, i)
	case isa.FormNone:
		t.end(slot)
	case isa.FormWide:
		t.constant(machineRegister[i.Dst], i.Const())
	case isa.FormWideIndex:
		t.constant(machineRegister[i.Dst], service.MapHandle(int(i.Imm)))
	case isa.FormWideValue:
		t.constant(machineRegister[i.Dst], t.maps[i.Imm].Region().Base+uint64(i.High()))
	case isa.FormWideCode:
		t.constant(machineRegister[i.Dst], service.CodeAddress(i.Target()))
	default:
		panic("subroutine: no code for " + i.Op.String())
	}
}

// jumpTo emits a jump from one slot to another.
func (t *threader) jumpTo(slot, target int) {
	t.settle(target)
	t.falls = false
	if target <= slot {
		t.jump(int(t.at[target]))
		return
	}
	t.jumps = append(t.jumps, forward{int32(t.jumpAhead()), int32(target)})
}

// conditions holds the conditions of jumps by the upper half of their opcode byte
// (RFC 9669, section 4.3).
var conditions = [16]byte{
	1: equal, 2: above, 3: aboveOrEqual, 4: notEqual, 5: notEqual, 6: greater, 7: greaterEqual,
	10: below, 11: belowOrEqual, 12: less, 13: lessOrEqual,
}

// comparison composes the comparison of a conditional jump.
func comparison(i *verify.Instruction) (word uint64, n int) {
	const set = 4 // tests bits where the others compare
	wide, dst := i.Code&7 == 5, machineRegister[i.Dst]
	switch operation := i.Code >> 4; {
	case i.Code&8 != 0 && operation == set:
		return registers(wide, 0x85, machineRegister[i.Src], dst)
	case i.Code&8 != 0:
		return registers(wide, 0x39, machineRegister[i.Src], dst)
	case operation == set:
		word, n = registers(wide, 0xf7, 0, dst)
		return word | uint64(uint32(i.Imm))<<(8*n), n + 4
	case i.Imm == 0:
		return registers(wide, 0x85, dst, dst)
	default:
		return immediate(wide, 7, dst, i.Imm)
	}
}

// branch emits the n bytes of a comparison, and the jump after it.
func (t *threader) branch(slot int, i *verify.Instruction, comparison uint64, n int) {
	condition := conditions[i.Code>>4]
	t.settle(i.Target())
	if i.Target() <= slot {
		t.put(comparison, n)
		t.jumpIf(condition, int(t.at[i.Target()]))
		return
	}
	if n > 6 {
		t.put(comparison, n)
		comparison, n = 0, 0
	}
	t.put(comparison|(0x800f|uint64(condition)<<8)<<(8*n), n+6)
	t.jumps = append(t.jumps, forward{int32(t.here()), int32(i.Target())})
}
