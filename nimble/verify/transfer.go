package verify

import (
	"math"
	"slices"

	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/verify/numbers"
)

// Classes and operations of opcode bytes (RFC 9669, sections 3.1, 4.1 and 4.2).
const (
	class   = 0x07
	alu32   = 0x04
	jump64  = 0x05
	alu64   = 0x07
	source  = 0x08
	operate = 0xf0

	opAdd  = 0x00
	opSub  = 0x10
	opMul  = 0x20
	opDiv  = 0x30
	opOr   = 0x40
	opAnd  = 0x50
	opLsh  = 0x60
	opRsh  = 0x70
	opNeg  = 0x80
	opMod  = 0x90
	opXor  = 0xa0
	opMov  = 0xb0
	opArsh = 0xc0
	opSwap = 0xd0
)

// fresh returns the form of a value that is not related to any other.
func (p *prover) fresh() form {
	p.symbols++
	return form{symbol: p.symbols, scale: 1}
}

// any returns an unknown value.
func (p *prover) any() value { return p.of(numbers.All()) }

// of returns a number in a set.
func (p *prover) of(s numbers.Set) value {
	v := value{Set: s, room: noRoom}
	if s.Span != 0 {
		v.form = p.fresh()
	}
	return v
}

// frame is the value of r10. It must not be changed.
var frame = value{origin: frameEnd, room: noRoom}

// register returns the value of a register. The caller must not change r10.
func (k *knowledge) register(r isa.Register) *value {
	if r == isa.FramePointer {
		return &frame
	}
	return &k.r[r]
}

// compute interprets an arithmetic instruction.
func (p *prover) compute(k *knowledge, i *Instruction) {
	x, y := &k.r[i.Dst], value{}
	wide := i.Code&class == alu64
	operation := i.Code & operate
	switch {
	case operation == opSwap:
		*x = p.swapped(k, x, i)
		return
	case i.Code&source != 0:
		y = *k.register(i.Src)
	case wide:
		y = constant(uint64(int64(i.Imm)))
	default:
		y = constant(uint64(uint32(i.Imm)))
	}
	if operation == opMov && i.Off != 0 {
		*x = p.extended(k, y, i, wide)
		return
	}
	if !wide {
		*x = p.half(k, operation, k.low(x), k.low(&y), i.Off != 0)
		return
	}
	switch operation {
	case opMov:
		*x = y
	case opAdd:
		*x = p.sum(k, *x, y)
	case opSub:
		*x = p.difference(k, *x, y)
	default:
		*x = p.operation(operation, k.number(x), k.number(&y), i.Off != 0)
	}
}

// low returns the lower half of a value.
func (k *knowledge) low(v *value) value {
	n := k.number(v)
	if n.Max() <= math.MaxUint32 {
		return n
	}
	low := value{Set: n.Truncate(32), room: noRoom}
	if n.SignedMin() >= 0 {
		low.room = n.room // it is at most the whole
	}
	return low
}

// half returns the result of a 32-bit operation.
func (p *prover) half(k *knowledge, operation uint8, x, y value, signed bool) value {
	var v value
	switch operation {
	case opMov:
		v = y
	case opAdd:
		v = p.sum(k, x, y)
	case opSub:
		v = p.difference(k, x, y)
	case opLsh, opRsh, opArsh:
		y = value{Set: y.BitAnd(numbers.Const(31)), room: noRoom}
		if operation == opArsh {
			x.Set = x.Extend(32)
		}
		v = p.operation(operation, x, y, signed)
	default:
		if signed {
			x.Set, y.Set = x.Extend(32), y.Extend(32)
		}
		v = p.operation(operation, x, y, signed)
	}
	if v.Max() <= math.MaxUint32 {
		return v
	}
	return p.of(v.Truncate(32))
}

// extended returns the result of a move with sign extension.
func (p *prover) extended(k *knowledge, y value, i *Instruction, wide bool) value {
	n := k.number(&y)
	set, same := n.Extend(int(i.Off)), numbers.All().Extend(int(i.Off))
	if !wide {
		set, same = set.Truncate(32), numbers.Bits(int(i.Off)-1)
	}
	if n.In(same) {
		return n
	}
	return p.of(set)
}

// swapped returns the result of a byte swap.
func (p *prover) swapped(k *knowledge, x *value, i *Instruction) value {
	n := k.number(x)
	switch {
	case i.Code&class == alu32 && i.Code&source == 0: // to little-endian
		if n.Max() <= numbers.Bits(int(i.Imm)).Span {
			return n
		}
		return p.of(n.Truncate(int(i.Imm)))
	default:
		return p.of(numbers.Bits(int(i.Imm)))
	}
}

// operation returns the result of an operation on numbers.
func (p *prover) operation(operation uint8, x, y value, signed bool) value {
	switch operation {
	case opNeg:
		return p.scaled(&x, x.Neg(), math.MaxUint64)
	case opMul:
		switch set := x.Mul(y.Set); {
		case y.known():
			return p.scaled(&x, set, y.Lo)
		case x.known():
			return p.scaled(&y, set, x.Lo)
		default:
			return p.of(set)
		}
	case opLsh:
		if y.known() {
			return p.scaled(&x, x.Lsh(y.Set), 1<<(y.Lo&63))
		}
		return p.of(x.Lsh(y.Set))
	case opDiv:
		if signed {
			return p.of(x.SignedDiv(y.Set))
		}
		return p.below(&x, x.Div(y.Set))
	case opMod:
		if signed {
			return p.of(x.SignedMod(y.Set))
		}
		return p.below(&x, x.Mod(y.Set))
	case opAnd:
		v := p.below(&x, x.BitAnd(y.Set))
		v.room = max(v.room, p.below(&y, v.Set).room)
		return v
	case opRsh:
		return p.below(&x, x.Rsh(y.Set))
	case opOr:
		return p.of(x.BitOr(y.Set))
	case opXor:
		return p.of(x.BitXor(y.Set))
	default:
		return p.of(x.SignedRsh(y.Set))
	}
}

// scaled returns the product of x and a factor, with set as its numbers.
func (p *prover) scaled(x *value, set numbers.Set, factor uint64) value {
	v := value{Set: set, room: noRoom}
	if v.form = (form{x.symbol, x.scale * factor, x.delta * factor}); v.symbol == 0 || v.scale == 0 {
		return p.of(set)
	}
	return v
}

// below returns a number in a set that is, unsigned, at most x.
func (p *prover) below(x *value, set numbers.Set) value {
	v := p.of(set)
	if x.Max() <= small {
		v.room = x.room
	}
	return v
}

// sum adds two numbers, or a number and a pointer.
func (p *prover) sum(k *knowledge, x, y value) value {
	if x.origin == plain || x.origin == contextLength && y.origin != plain {
		x, y = y, x
	}
	switch {
	case y.origin == contextLength && x.origin == contextStart:
		return p.added(contextEnd, x, y, noRoom)
	case x.origin == elementOrNull || y.origin != plain && y.origin != contextLength:
		return p.any()
	case y.origin == contextLength:
		y = k.number(&y)
		if x.origin == contextLength {
			x = k.number(&x)
		}
	}
	room := int64(noRoom)
	if x.origin <= contextStart && x.isSmall() && y.isSmall() {
		room = max(less(x.room, y.SignedMax()), less(y.room, x.SignedMax()))
	}
	return p.added(x.origin, x, y, room)
}

// added returns the sum of two values, relative to an origin.
func (p *prover) added(o origin, x, y value, room int64) value {
	v := value{Set: x.Add(y.Set), origin: o, index: x.index, room: room}
	switch {
	case y.known():
		v.form = form{x.symbol, x.scale, x.delta + y.Lo}
	case x.known():
		v.form = form{y.symbol, y.scale, y.delta + x.Lo}
	case x.symbol == y.symbol && x.symbol != 0:
		if v.form = (form{x.symbol, x.scale + y.scale, x.delta + y.delta}); v.scale == 0 {
			v.Set = numbers.Const(v.delta)
		}
	}
	return p.formed(v)
}

// formed gives a value a form of its own if it has none and needs one.
func (p *prover) formed(v value) value {
	if v.known() {
		v.form = form{}
	} else if v.symbol == 0 {
		v.form = p.fresh()
	}
	return v
}

// difference subtracts a number from a number or pointer, or two pointers.
func (p *prover) difference(k *knowledge, x, y value) value {
	o := x.origin
	switch {
	case y.origin == plain && x.origin != elementOrNull:
	case x.origin == contextEnd && y.origin == contextStart:
		o = contextLength
	case x.origin == contextEnd && y.origin == contextLength:
		o = contextStart
	case sameOrigin(&x, &y) && x.origin < element:
		o = plain
	case y.origin == contextLength && x.origin == plain:
		y = k.number(&y)
	default:
		return p.any()
	}
	minus := y
	minus.Set, minus.scale, minus.delta = y.Neg(), -y.scale, -y.delta
	room := int64(noRoom)
	if o == x.origin && o <= contextStart && x.isSmall() && minus.isSmall() {
		room = less(x.room, minus.SignedMax())
	}
	return p.added(o, x, minus, room)
}

// load interprets a load.
func (p *prover) load(k *knowledge, slot int, i *Instruction) {
	base, size := k.register(i.Src), i.Op.Size()
	p.access(k, slot, base, i, read)
	if !p.relevant.has(i.Dst) {
		return
	}
	signed := i.Op >= isa.LdXSB && i.Op <= isa.LdXSW
	if base.origin == frameEnd && base.known() {
		at := int64(base.Lo) + int64(i.Off)
		for n := range k.spilled[:k.spills] {
			if s := &k.spilled[n]; int64(s.at) == at && int(s.bytes) == size && !signed {
				k.r[i.Dst] = s.value
				return
			}
		}
	}
	set := numbers.Bits(8 * size)
	if signed {
		set = set.Extend(8 * size)
	}
	k.r[i.Dst] = p.of(set)
}

// store interprets a store and forgets the spills that it may overwrite.
func (p *prover) store(k *knowledge, slot int, i *Instruction, use uses) {
	base, size := k.register(i.Dst), int64(i.Op.Size())
	switch {
	case !p.access(k, slot, base, i, use):
		k.spills = 0
		return
	case base.origin != frameEnd:
		return
	}
	at := base.SignedMin() + int64(i.Off)
	k.forget(at, int64(base.Span)+size)
	if !p.spilling || !base.known() || use != write || k.spills == maxSpills {
		return
	}
	v := constant(uint64(int64(i.Imm)))
	if i.Op.Form() == isa.FormStore {
		v = *k.register(i.Src)
	}
	if size < 8 {
		n := k.number(&v)
		if n.Max() > numbers.Bits(8*int(size)).Span {
			n = p.of(n.Truncate(8 * int(size)))
		}
		v = n
	}
	if v.origin != plain || v.Set != numbers.All() {
		k.spilled[k.spills] = spill{int16(at), int16(size), v}
		k.spills++
	}
}

// modify interprets an atomic operation.
func (p *prover) modify(k *knowledge, slot int, i *Instruction) {
	p.store(k, slot, i, read|write)
	old := p.of(numbers.Bits(8 * i.Op.Size()))
	switch {
	case i.Op == isa.AtomicCmpXchg || i.Op == isa.AtomicCmpXchg32:
		p.put(k, 0, old)
	case i.Op.Form() == isa.FormAtomicFetch:
		p.put(k, i.Src, old)
	}
}

// wide interprets a wide load: of a constant, a handle or an address in a map.
func (p *prover) wide(k *knowledge, i *Instruction) {
	switch i.Op {
	case isa.LdDW:
		p.put(k, i.Dst, constant(i.Const()))
	case isa.LdMap, isa.LdMapFD:
		p.put(k, i.Dst, constant(service.MapHandle(int(i.Imm))))
	case isa.LdCode:
		p.put(k, i.Dst, constant(service.CodeAddress(i.Target())))
	default:
		p.put(k, i.Dst, value{Set: numbers.Const(uint64(i.High())), origin: mapStart, index: i.Imm, room: noRoom})
	}
}

// call interprets the call of a service.
func (p *prover) call(k *knowledge, s *service.Service) {
	if slices.Contains(s.Args, service.Writable) {
		k.spills = 0
	}
	p.put(k, 0, p.any())
	if n := slices.Index(s.Args, service.Handle); s.Element && n >= 0 {
		handle := &k.r[1+n]
		if index := handle.Lo - service.MapHandle(0); handle.origin == plain && handle.known() && index < uint64(len(p.maps)) {
			p.put(k, 0, value{origin: elementOrNull, index: int32(index), room: noRoom, form: p.fresh()})
		}
	}
}

// callLocal interprets a local call: k becomes the state after it, and the callee
// gets a state of its own.
func (p *prover) callLocal(k *knowledge, slot int, i *Instruction) {
	to := p.copy(k)
	to.spills = 0
	for n := range to.r {
		if to.r[n].origin == frameEnd {
			to.r[n] = p.any() // the caller's
		}
	}
	p.flow(slot, i.Target(), to)
	k.spills = 0
	for n := range isa.Register(6) {
		p.put(k, n, p.any())
	}
}

// uses says whether an access reads, writes, or both.
type uses uint8

const (
	read uses = 1 << iota
	write
)

// access reports whether the address of an access cannot fault, and marks the
// access.
func (p *prover) access(k *knowledge, slot int, base *value, i *Instruction, use uses) bool {
	ok := p.allowed(base, use) && p.inside(k, base, int64(i.Off), int64(i.Op.Size()))
	if !ok {
		p.failed++
	}
	if p.marking {
		p.code[slot].Proved = ok
		if p.explained != nil {
			p.explained[slot] = p.explain(k, base, i, use, ok)
		}
	}
	return ok
}

// allowed reports whether the memory that v points to allows this use.
func (p *prover) allowed(v *value, use uses) bool {
	switch v.origin {
	case frameEnd:
		return true
	case contextStart:
		return (p.context.Readable || use&read == 0) && (p.context.Writable || use&write == 0)
	case mapStart, element:
		return use&write == 0 || !p.maps[v.index].ReadOnly
	}
	return false
}

// inside reports whether size bytes at v+off are in the memory that v points to.
func (p *prover) inside(k *knowledge, v *value, off, size int64) bool {
	length := p.length(v)
	switch v.origin {
	case frameEnd:
		off += FrameSize
	case contextStart:
		if v.roomIn(k.size) < off+size {
			return false
		}
	}
	if length < uint64(size) {
		return false
	}
	from, room := v.Lo+uint64(off), length-uint64(size)
	return from <= room && v.Span <= room-from
}

// length returns the length of the memory that v points to, in bytes. The
// context's length is not known: there it is the constant small.
func (p *prover) length(v *value) uint64 {
	switch v.origin {
	case frameEnd:
		return FrameSize
	case mapStart:
		return p.maps[v.index].Length()
	case element:
		return uint64(p.maps[v.index].ValueSize)
	case contextStart:
		return small
	}
	return 0
}
