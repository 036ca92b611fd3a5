package verify

import (
	"slices"

	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify/numbers"
)

// Kept reports whether a context keeps the promise. Its addresses must be at most
// 2^56, as in every process, because proofs add to them.
func (c *Context) Kept(r *memory.Region) bool {
	return !c.promised() || r.Length >= c.Size && r.Length <= numbers.Far && r.Base <= numbers.Far &&
		(r.Length == 0 || (r.Readable || !c.Readable) && (r.Writable || !c.Writable))
}

// promised reports whether c promises anything: then r1 is the address of the
// context and r2 its length.
func (c *Context) promised() bool { return c.Size != 0 || c.Readable || c.Writable }

// bounded returns the promise with a size of at most numbers.Far.
func (c Context) bounded() Context {
	c.Size = min(c.Size, numbers.Far)
	return c
}

// Bounds of the work of a prover. Beyond them accesses are checked at run time.
const (
	maxProved = 100_000 // slots of a program that is analyzed as a whole
	maxSweeps = 12      // sweeps until the analysis is given up
	patience  = 5       // sweeps until a loop that still changes is given up
	maxKept   = 4096    // states at the same time
	maxHeads  = 2048    // heads of loops
	maxStops  = 8       // widening thresholds of a loop
	maxSmall  = 4       // narrowing sweeps
)

// prover finds out which accesses of a program cannot fault, by running it on
// sets of values instead of values (abstract interpretation: Cousot and Cousot,
// POPL 1977).
//
// It sweeps through the program in the order of slots. A forward jump leaves the
// state at its target, to be joined with the other states that reach it. A
// backward jump, or a call of an earlier function, leaves its state for the next
// sweep: a program without loops needs one sweep. From the second sweep on, the
// head of a loop widens its state by the states that come back, until it covers
// them. A few more sweeps without widening mark the proved accesses.
type prover struct {
	code      []Instruction
	functions []Function
	services  []*service.Service
	maps      []state.Spec
	context   Context

	relevant registers // registers that are followed
	spilling bool      // values stored in the stack frame are followed

	*scratch // places, by slot, and heads, empty at first
	free     []*knowledge
	kept     int
	symbols  uint32
	groups   []group // of the join under way

	failed    int // accesses that are not proved in this sweep
	marking   bool
	local     bool                         // every block begins without knowledge
	explained []string                     // by slot, if wanted
	watch     func(slot int, k *knowledge) // for tests: called before every instruction while marking
}

// place is the joined state of forward jumps to a slot in this sweep, and says
// whether the slot is the head of a loop.
type place struct {
	known *knowledge
	head  int32 // index + 1; 0: not a head
}

// head is the target of a backward jump or call.
type head struct {
	in    *knowledge // the state at the head in the last sweep that reached it
	back  *knowledge // the joined states that came back
	swept bool       // it was reached in this sweep
	lost  bool       // values that change in the loop become unknown
	stops []int64    // widening thresholds
}

// prover returns a prover for a program that the other passes have accepted.
func (p *Program) prover(s *scratch) *prover {
	return &prover{code: p.code, functions: p.functions, services: p.services, maps: p.maps, context: p.context, scratch: s}
}

// prove marks the accesses that cannot fault.
func (p *prover) prove() {
	p.places = slices.Grow(p.places, len(p.code))[:len(p.code)]
	p.survey()
	ok := len(p.code) <= maxProved && len(p.heads) <= maxHeads && p.settle()
	p.marking = true
	for n := 0; ok && n < maxSmall; n++ {
		before := p.failed
		if ok = p.sweep(false); p.failed == 0 || len(p.heads) == 0 || n > 0 && p.failed == before {
			break
		}
	}
	if !ok {
		p.local = true
		p.sweep(false)
	}
}

// survey finds the heads of loops, until there are too many, and the registers
// to follow.
func (p *prover) survey() {
	r := relations{services: p.services}
	for slot := range p.code {
		i := &p.code[slot]
		if r.relate(slot, i); i.Target() <= slot && leaves(i.Op) && len(p.heads) <= maxHeads {
			p.goesBack(i)
		}
	}
	if p.relevant != 0 {
		return
	}
	lengths := registers(0)
	if p.context.promised() {
		lengths = 1 << 2
	}
	p.relevant, p.spilling = r.relevant(lengths)
}

// goesBack makes the target of a backward jump or call the head of a loop.
func (p *prover) goesBack(i *Instruction) {
	at := &p.places[i.Target()]
	if at.head == 0 {
		p.heads = append(p.heads, head{})
		at.head = int32(len(p.heads))
	}
	if h := &p.heads[at.head-1]; i.Op.Form() == isa.FormCondImm && len(h.stops) < maxStops {
		h.stops = append(h.stops, int64(i.Imm)-1, int64(i.Imm)+1)
	}
}

// leaves reports whether an instruction can transfer control to its target.
func leaves(op isa.Op) bool {
	switch op.Form() {
	case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc, isa.FormCallLocal:
		return true
	}
	return false
}

// settle sweeps until the heads of loops cover the states that come back. It
// returns false if that takes too long.
func (p *prover) settle() bool {
	for n := 0; len(p.heads) > 0; n++ {
		if n == maxSweeps || !p.sweep(n > 0) {
			return false
		}
		settled := true
		for i := range p.heads {
			h := &p.heads[i]
			if h.back == nil || h.swept && h.in.covers(h.back) {
				continue
			}
			settled = false
			h.lost = n >= patience
		}
		if settled {
			return true
		}
	}
	return true
}

// sweep goes through the program once. It returns false if it needs too many
// states.
func (p *prover) sweep(widening bool) bool {
	p.failed = 0
	for n := range p.heads {
		if h := &p.heads[n]; h.swept {
			h.swept = false
		} else {
			h.in = nil
		}
	}
	for _, f := range p.functions {
		var k *knowledge
		if f.Start == 0 {
			k = p.entry()
		}
		for slot := f.Start; slot < f.End; slot++ {
			i := &p.code[slot]
			if i.Cost > 0 {
				k = p.arrive(k, slot, widening)
			}
			if k == nil || i.Op == isa.Invalid || computes(i.Op.Form()) && !p.relevant.has(i.Dst) {
				continue
			}
			if !p.step(k, slot, i) {
				p.free, k = append(p.free, k), nil
			}
			if p.kept > maxKept && !p.local {
				return false
			}
		}
	}
	return true
}

// entry returns the state at the start of the program.
func (p *prover) entry() *knowledge {
	k := p.blank()
	for n := range isa.Register(len(k.r)) {
		if n == 0 || n > 5 {
			p.put(k, n, constant(0))
		}
	}
	if p.context.promised() {
		p.put(k, 1, value{origin: contextStart, room: noRoom})
		p.put(k, 2, value{origin: contextLength, room: noRoom})
	}
	return k
}

// blank returns a state in which only the least length of the context is known.
func (p *prover) blank() *knowledge {
	k := p.take()
	k.size, k.spills = p.context.Size, 0
	for n := range isa.Register(len(k.r)) {
		p.put(k, n, p.any())
	}
	return k
}

// put sets a register, if it is followed.
func (p *prover) put(k *knowledge, r isa.Register, v value) {
	if p.relevant.has(r) {
		k.r[r] = v
	}
}

// take returns a state that the caller must fill, except for registers that are
// not followed, which are unknown.
func (p *prover) take() *knowledge {
	if n := len(p.free); n > 0 {
		k := p.free[n-1]
		p.free = p.free[:n-1]
		return k
	}
	p.kept++
	k := new(knowledge)
	for n := range k.r {
		k.r[n] = unknown
	}
	return k
}

func (p *prover) copy(k *knowledge) *knowledge {
	c := p.take()
	c.set(k, p.relevant)
	return c
}

// arrive returns the state where a block begins. k is the state that falls through
// from the slot before, nil if none does.
func (p *prover) arrive(k *knowledge, slot int, widening bool) *knowledge {
	at := &p.places[slot]
	if p.local {
		if k != nil {
			p.free = append(p.free, k)
		}
		return p.blank()
	}
	if at.known != nil {
		k, at.known = p.merge(k, at.known), nil
	}
	if at.head == 0 {
		return k
	}
	return p.head(k, &p.heads[at.head-1], widening)
}

// head returns the state at the head of a loop. k enters the loop from outside.
func (p *prover) head(k *knowledge, h *head, widening bool) *knowledge {
	if k != nil && h.back != nil && h.in != nil {
		h.back.unchanged(h.in, k)
		into := p.copy(k)
		k = p.merge(k, h.back)
		switch {
		case widening && h.lost:
			p.lose(k, into)
		case widening:
			k.widen(h.in, into, h.stops)
		}
		p.free = append(p.free, into)
	} else {
		k = p.merge(k, h.back)
	}
	if h.back = nil; k == nil {
		return nil
	}
	if h.in == nil {
		h.in = p.take()
	}
	h.in.set(k, p.relevant)
	h.swept = true
	return k
}

// merge joins the states of two paths. nil stands for a path that is never taken.
func (p *prover) merge(k, o *knowledge) *knowledge {
	switch {
	case o == nil:
		return k
	case k == nil:
		return o
	}
	p.join(k, o)
	p.free = append(p.free, o)
	return k
}

// flow leaves a state at the target of a jump or call, and takes k over.
func (p *prover) flow(slot, target int, k *knowledge) {
	if p.local {
		p.free = append(p.free, k)
		return
	}
	at := &p.places[target]
	if target > slot {
		at.known = p.merge(at.known, k)
		return
	}
	h := &p.heads[at.head-1]
	h.back = p.merge(h.back, k)
}

// computes reports whether an instruction only changes its destination register.
func computes(f isa.Form) bool { return f == isa.FormDst || f == isa.FormDstImm || f == isa.FormDstSrc }

// step interprets an instruction and reports whether execution can fall through.
func (p *prover) step(k *knowledge, slot int, i *Instruction) bool {
	if p.marking && p.watch != nil {
		p.watch(slot, k)
	}
	switch i.Op.Form() {
	case isa.FormDst, isa.FormDstImm, isa.FormDstSrc:
		p.compute(k, i)
	case isa.FormLoad:
		p.load(k, slot, i)
	case isa.FormStore, isa.FormStoreImm:
		p.store(k, slot, i, write)
	case isa.FormAtomic, isa.FormAtomicFetch:
		p.modify(k, slot, i)
	case isa.FormCondImm, isa.FormCondSrc:
		return p.branch(k, slot, i)
	case isa.FormJump, isa.FormJumpLong:
		p.flow(slot, i.Target(), p.copy(k))
		return false
	case isa.FormCall:
		p.call(k, p.services[i.Target()])
	case isa.FormCallLocal:
		p.callLocal(k, slot, i)
	case isa.FormNone:
		return false
	default:
		p.wide(k, i)
	}
	return true
}
