package subroutine

import (
	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// reason is why emitted code was left.
type reason uint8

const (
	finished   reason = iota // the exit of the first function
	refill                   // a block cannot be paid from this slice
	access                   // an access outside all windows
	misaligned               // an atomic operation at a bad address
	atomics                  // an atomic operation outside the window
	modify                   // an atomic operation that Go does
	call                     // a call of a service
	deep                     // a local call for which there is no room
	push                     // a local call of a function with a stack frame
	pop                      // the exit of one
)

// site is a place at which code is left.
type site struct {
	reason reason
	size   uint8 // logarithm of the bytes of an access
	base   uint8 // register of an access, and its offset
	off    int16
	slot   int32
	next   int32 // offset in the code at which to go on; of push, in the end, that of the slot
	index  int32 // of the service
}

// threader emits one program.
type threader struct {
	asm
	program *verify.Program
	maps    []*state.Map
	sites   []site
	at      []int32 // offset of each slot
	jumps   []forward
	cold    []forward
	misses  []miss
	trusted bool
	guarded bool // it has unchecked accesses
	again   bool // the first function is also called

	paid     bool            // the fuel of the block is noted
	function verify.Function // to which the instruction belongs
	services []*service.Service

	searches [2][4]int // offsets of searches, of loads and stores, by size; 0: none yet
}

// forward is a jump to a slot or a site that is not written yet.
type forward struct{ hole, to int }

// save is the offset of the code that goes back to Go with a site in DX.
const save = 0

// done is the site of a run that has ended.
const done = 0

// thread emits a program.
func thread(p *verify.Program, maps []*state.Map) *threader {
	t := &threader{program: p, maps: maps, trusted: p.Trusted(), at: make([]int32, p.Len())}
	t.code = make([]byte, 0, 256+p.Len()*40)
	t.sites = make([]site, 1, 1+p.Len())
	t.cold = make([]forward, 0, p.Len())
	t.misses = make([]miss, 0, p.Len()/2)
	t.jumps = make([]forward, 0, p.Len()/4)
	for slot := range p.Len() {
		if i := p.At(slot); i.Op == isa.CallLocal && i.Target == 0 {
			t.again = true
		}
	}
	t.leaving()
	functions := p.Functions()
	for slot := range p.Len() {
		if len(functions) > 0 && functions[0].Start == slot {
			t.function, functions = functions[0], functions[1:]
		}
		t.at[slot] = int32(t.here())
		if i := p.At(slot); i.Op != isa.Invalid {
			t.enterBlock(slot, i.Cost)
			t.instruction(slot, i)
		}
	}
	t.link()
	return t
}

// leaving writes what is at save.
func (t *threader) leaving() {
	t.mem(true, 0x89, scratch, self, offSite)
	for n, r := range machineRegister {
		t.mem(true, 0x89, r, self, int32(offReg+8*n))
	}
	t.mem(true, 0x89, fuel, self, offLeft)
	t.bytes(0xc3)
}

// link writes the ways out and gives jumps their targets.
func (t *threader) link() {
	for _, each := range t.cold {
		t.patch(each.hole, t.here())
		t.exit(each.to)
	}
	for _, each := range t.misses {
		t.missed(each)
	}
	for _, each := range t.jumps {
		t.patch(each.hole, int(t.at[each.to]))
	}
	for n := range t.sites {
		if s := &t.sites[n]; s.reason == push {
			s.next = t.at[s.next]
		}
	}
}

// exit leaves the code at a site.
func (t *threader) exit(site int) {
	t.constant(scratch, uint64(site))
	t.jump(save)
}

// site adds a site.
func (t *threader) site(s site) int {
	t.sites = append(t.sites, s)
	return len(t.sites) - 1
}

// exitIf leaves under a condition.
func (t *threader) exitIf(condition byte, site int) {
	t.cold = append(t.cold, forward{t.jumpIfAhead(condition), site})
}

// enterBlock pays for the block that starts at a slot, if one does.
func (t *threader) enterBlock(slot int, cost uint32) {
	if cost == 0 {
		return
	}
	t.arithmetic(true, 5, fuel, int32(cost))
	n := t.site(site{reason: refill, slot: int32(slot)})
	t.exitIf(below, n)
	t.sites[n].next = int32(t.here())
	t.paid = false
}

// instruction emits what one instruction means.
func (t *threader) instruction(slot int, i *verify.Instruction) {
	switch i.Op {
	case isa.LdDW:
		t.constant(machineRegister[i.Dst], i.Const())
		return
	case isa.LdMap, isa.LdMapFD:
		t.constant(machineRegister[i.Dst], service.MapHandle(int(i.Imm)))
		return
	case isa.LdValue, isa.LdValueFD:
		t.constant(machineRegister[i.Dst], t.maps[i.Imm].Region().Base+uint64(i.High))
		return
	case isa.LdCode:
		t.constant(machineRegister[i.Dst], service.CodeAddress(i.Target))
		return
	case isa.Call, isa.CallNamed:
		t.services = append(t.services, i.Service)
		n := t.site(site{reason: call, slot: int32(slot), index: int32(len(t.services) - 1)})
		t.exit(n)
		t.sites[n].next = int32(t.here())
		return
	case isa.CallLocal:
		t.call(slot, i)
		return
	case isa.Exit:
		t.end(slot)
		return
	}
	switch i.Op.Row().Form {
	case isa.FormLoad:
		t.load(slot, i)
	case isa.FormStore, isa.FormStoreImm:
		t.store(slot, i)
	case isa.FormAtomic, isa.FormAtomicFetch:
		t.atomic(slot, i)
	case isa.FormJump, isa.FormJumpLong:
		t.jumpTo(slot, i.Target)
	case isa.FormCondImm, isa.FormCondSrc:
		t.conditional(slot, i)
	case isa.FormDst, isa.FormDstImm, isa.FormDstSrc:
		t.compute(i)
	default:
		panic("subroutine: no code for " + i.Op.String())
	}
}

// jumpTo emits a jump from one slot to another.
func (t *threader) jumpTo(slot, target int) {
	if target <= slot {
		t.jump(int(t.at[target]))
		return
	}
	t.jumps = append(t.jumps, forward{t.jumpAhead(), target})
}

// conditions are those of jumps by the upper half of their opcode byte (RFC
// 9669, section 4.3).
var conditions = [16]byte{
	1: equal, 2: above, 3: aboveOrEqual, 4: notEqual, 5: notEqual, 6: greater, 7: greaterEqual,
	10: below, 11: belowOrEqual, 12: less, 13: lessOrEqual,
}

// conditional emits a comparison and a jump.
func (t *threader) conditional(slot int, i *verify.Instruction) {
	const set = 4 // tests bits where the others compare
	wide, dst := i.Code&7 == 5, machineRegister[i.Dst]
	switch operation := i.Code >> 4; {
	case i.Code&8 != 0 && operation == set:
		t.reg(wide, 0x85, machineRegister[i.Src], dst)
	case i.Code&8 != 0:
		t.reg(wide, 0x39, machineRegister[i.Src], dst)
	case operation == set:
		t.reg(wide, 0xf7, 0, dst)
		t.imm32(i.Imm)
	case i.Imm == 0:
		t.reg(wide, 0x85, dst, dst)
	default:
		t.arithmetic(wide, 7, dst, i.Imm)
	}
	condition := conditions[i.Code>>4]
	if i.Target <= slot {
		t.jumpIf(condition, int(t.at[i.Target]))
		return
	}
	t.jumps = append(t.jumps, forward{t.jumpIfAhead(condition), i.Target})
}
