package verify

import (
	"slices"

	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify/numbers"
)

// Kept reports whether a context is as promised. Its addresses must be those
// that a process can have, at most 2^56: proofs add to them.
func (c *Context) Kept(r *memory.Region) bool {
	return !c.promised() || r.Length >= c.Size && r.Length <= numbers.Far && r.Base <= numbers.Far &&
		(r.Length == 0 || (r.Readable || !c.Readable) && (r.Writable || !c.Writable))
}

// promised reports whether there is any promise: then r1 is the address of the
// context and r2 its length.
func (c *Context) promised() bool { return c.Size != 0 || c.Readable || c.Writable }

// bounded returns the promise with a size that numbers of memory can have.
func (c Context) bounded() Context {
	c.Size = min(c.Size, numbers.Far)
	return c
}

// Bounds of the work of a prover. What they stop is checked at run time.
const (
	maxProved = 100_000 // slots of a program that is looked at as a whole
	maxSweeps = 12      // times it is gone through
	patience  = 5       // after which a loop that is still new is given up
	maxKept   = 4096    // places of which something is known at the same time
	maxHeads  = 2048    // heads of loops
	maxStops  = 8       // numbers next to those that a loop compares with
	maxSmall  = 4       // sweeps in smaller steps
)

// prover finds out which accesses of a program cannot fault, by running it on
// sets of values instead of values (abstract interpretation: Cousot and Cousot,
// POPL 1977).
//
// It goes through the program in the order of slots. A jump forward leaves what
// is known at its target, to be joined with what else comes there. A jump back,
// or a call of a function before, leaves it for the next sweep: a program
// without loops needs one. From the second sweep on, the head of a loop takes
// what came back in big steps (widening), until nothing comes back that it has
// not taken. A few sweeps more, in smaller steps again, mark what is proved.
type prover struct {
	code      []Instruction
	functions []Function
	services  []*service.Service
	maps      []state.Spec
	context   Context

	relevant registers // that are followed
	spilling bool      // what is stored in the stack frame is followed

	*scratch // places, by slot, and heads, empty at first
	free     []*knowledge
	kept     int
	symbols  uint32
	groups   []group // of the join under way

	failed    int // accesses that are not proved in this sweep
	marking   bool
	local     bool                         // nothing is known where a block begins
	explained []string                     // by slot, if wanted
	watch     func(slot int, k *knowledge) // for tests: called before every instruction while marking
}

// place is what is known at a slot of those who come there from before it in
// this sweep, and whether it is the head of a loop.
type place struct {
	known *knowledge
	head  int32 // index + 1; 0: no head
}

// head is where a jump back or a call back leads to.
type head struct {
	in    *knowledge // as it was taken last
	back  *knowledge // what came back
	swept bool       // it was reached in this sweep
	lost  bool       // nothing is known of what came back changed
	stops []int64    // that widening tries
}

// prover returns a prover for a program of which everything else is known.
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
		if r.relate(slot, i); i.Target <= slot && leaves(i.Op) && len(p.heads) <= maxHeads {
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

// goesBack makes the target of a jump or call the head of a loop.
func (p *prover) goesBack(i *Instruction) {
	at := &p.places[i.Target]
	if at.head == 0 {
		p.heads = append(p.heads, head{})
		at.head = int32(len(p.heads))
	}
	if h := &p.heads[at.head-1]; i.Op.Form() == isa.FormCondImm && len(h.stops) < maxStops {
		h.stops = append(h.stops, int64(i.Imm)-1, int64(i.Imm)+1)
	}
}

// leaves reports whether an instruction goes to its target.
func leaves(op isa.Op) bool {
	switch op.Form() {
	case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc, isa.FormCallLocal:
		return true
	}
	return false
}

// settle sweeps until what comes back to the heads of loops is no news. It
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

// sweep goes through the program once. It returns false if it had to stop.
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

// entry returns what is known when the program starts.
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

// blank returns knowledge of nothing but the length of the context.
func (p *prover) blank() *knowledge {
	k := p.take()
	k.size, k.spills = p.context.Size, 0
	for n := range isa.Register(len(k.r)) {
		p.put(k, n, p.any())
	}
	return k
}

// put sets a register, if it is one of those that are followed.
func (p *prover) put(k *knowledge, r isa.Register, v value) {
	if p.relevant.has(r) {
		k.r[r] = v
	}
}

// take returns knowledge that is to be filled, but for registers that are not
// followed: those are unknown.
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

// arrive returns what is known where a block begins, to which more than one way
// may lead: k is what comes from the slot before.
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

// head returns what is known at the head of a loop, into which k comes.
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

// merge joins what is known on two ways, each nil if it is never gone.
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

// flow leaves knowledge at the target of a jump or call, for good.
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

// computes reports whether all that an instruction changes is its destination.
func computes(f isa.Form) bool { return f == isa.FormDst || f == isa.FormDstImm || f == isa.FormDstSrc }

// step follows an instruction, which does not only compute what no access
// needs, and reports whether the next slot is reached from it.
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
		p.flow(slot, i.Target, p.copy(k))
		return false
	case isa.FormCall:
		p.call(k, p.services[i.Target])
	case isa.FormCallLocal:
		p.callLocal(k, slot, i)
	case isa.FormNone:
		return false
	default:
		p.wide(k, i)
	}
	return true
}
