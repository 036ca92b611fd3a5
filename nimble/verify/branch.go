package verify

import (
	"math"

	"margay/nimble/isa"
	"margay/nimble/verify/numbers"
)

// condition is the condition of a jump: the upper half of its opcode byte (RFC
// 9669, section 4.3), or noBit, the opposite of anyBit.
type condition uint8

const (
	equal          condition = 0x1
	above          condition = 0x2
	aboveOrEqual   condition = 0x3
	anyBit         condition = 0x4
	notEqual       condition = 0x5
	greater        condition = 0x6
	greaterOrEqual condition = 0x7
	below          condition = 0xa
	belowOrEqual   condition = 0xb
	smaller        condition = 0xc
	smallerOrEqual condition = 0xd
	noBit          condition = 0xf
)

// opposites holds the negation of each condition.
var opposites = [16]condition{
	equal: notEqual, above: belowOrEqual, aboveOrEqual: below, greater: smallerOrEqual, greaterOrEqual: smaller, anyBit: noBit,
	notEqual: equal, belowOrEqual: above, below: aboveOrEqual, smallerOrEqual: greater, smaller: greaterOrEqual,
}

// branch interprets a conditional jump and reports whether execution can fall
// through.
func (p *prover) branch(k *knowledge, slot int, i *Instruction) bool {
	c := condition(i.Code >> 4)
	taken := p.copy(k)
	if compared := registers(1)<<i.Dst | registers(i.Code&source>>3)<<i.Src; p.relevant&compared == 0 {
		p.flow(slot, i.Target(), taken)
		return true
	}
	if taken.assume(c, i) {
		p.flow(slot, i.Target(), taken)
	} else {
		p.free = append(p.free, taken)
	}
	return k.assume(opposites[c], i)
}

// assume adds the fact that a condition holds between the operands of a jump. It
// returns false if that is impossible.
func (k *knowledge) assume(c condition, i *Instruction) bool {
	half := i.Code&class != jump64
	frame := frame // may be narrowed
	fixed := constant(uint64(int64(i.Imm)))
	if half {
		fixed = constant(uint64(uint32(i.Imm)))
	}
	x, y := &frame, &fixed
	if i.Dst != isa.FramePointer {
		x = &k.r[i.Dst]
	}
	if i.Code&source != 0 {
		if y = &frame; i.Src != isa.FramePointer {
			y = &k.r[i.Src]
		}
	}
	switch {
	case half:
		return k.assumeNumbers(c, x, y, true)
	case x.origin == plain && y.origin == plain:
		return k.assumeNumbers(c, x, y, false)
	case x.origin == elementOrNull && y.origin == plain && y.known() && y.Lo == 0:
		return k.assumeNull(c, x)
	case x.origin == contextStart && y.origin == contextEnd:
		return k.assumeBefore(c, x, y)
	case x.origin == contextEnd && y.origin == contextStart:
		return k.assumeBefore(swapped[c], y, x)
	case x.origin != plain && x.origin < element && sameOrigin(x, y):
		return k.assumeOffsets(c, x, y)
	}
	return k.assumeNumbers(c, x, y, false)
}

// swapped holds each condition with its operands exchanged.
var swapped = [16]condition{
	equal: equal, notEqual: notEqual, above: below, below: above, aboveOrEqual: belowOrEqual, belowOrEqual: aboveOrEqual,
	greater: smaller, smaller: greater, greaterOrEqual: smallerOrEqual, smallerOrEqual: greaterOrEqual, anyBit: anyBit, noBit: noBit,
}

// assumeNull is assume for the result of a service that may be 0.
func (k *knowledge) assumeNull(c condition, v *value) bool {
	null, found := c == equal, c == notEqual || c == above
	if !null && !found {
		return true
	}
	f := v.form
	return k.values(func(w *value) bool {
		if w.origin == elementOrNull && w.form == f {
			if w.form = (form{}); null {
				*w = constant(0)
			} else {
				w.origin = element
			}
		}
		return true
	})
}

// assumeBefore is assume for a pointer relative to the start of the context and
// one relative to its end.
func (k *knowledge) assumeBefore(c condition, v, end *value) bool {
	if !v.isSmall() || end.SignedMin() < -int64(k.size) || end.SignedMax() > small {
		return true // the end may have wrapped around
	}
	switch c {
	case below:
		return k.makeRoom(v, 1-end.SignedMax())
	case belowOrEqual, equal:
		return k.makeRoom(v, -end.SignedMax())
	}
	return true
}

// assumeOffsets is assume for two pointers into the same memory. Small offsets
// order in the same way as their addresses.
func (k *knowledge) assumeOffsets(c condition, x, y *value) bool {
	for _, v := range [...]*value{x, y} {
		least := int64(-FrameSize)
		if v.origin != frameEnd {
			least = 0
		}
		if v.SignedMin() < least || v.SignedMax() > small {
			return true
		}
	}
	signed := [16]condition{equal: equal, notEqual: notEqual, above: greater, aboveOrEqual: greaterOrEqual, below: smaller, belowOrEqual: smallerOrEqual}
	if c = signed[c]; c == 0 {
		return true
	}
	s, t, ok := refine(c, x.Set, y.Set)
	return ok && k.narrow(x, s) && k.narrow(y, t)
}

// assumeNumbers is assume for numbers. With half it compares the lower halves
// only.
func (k *knowledge) assumeNumbers(c condition, x, y *value, half bool) bool {
	a, b := k.number(x), k.number(y)
	exactA, exactB := true, true
	if half {
		exactA, exactB = a.Max() <= math.MaxUint32, b.Max() <= math.MaxUint32
		a, b = k.low(x), k.low(y)
	}
	s, t := a.Set, b.Set
	signed := c == greater || c == greaterOrEqual || c == smaller || c == smallerOrEqual
	if half && signed {
		s, t = s.Extend(32), t.Extend(32)
	}
	s, t, ok := refine(c, s, t)
	if !ok {
		return false
	}
	if half && signed {
		s, t = s.Truncate(32), t.Truncate(32)
	}
	if exactA && !k.learn(x, s) || exactB && !k.learn(y, t) {
		return false
	}
	if half && signed && (a.Max() > math.MaxInt32 || b.Max() > math.MaxInt32) {
		return true
	}
	switch {
	case exactA && (c == below || c == smaller):
		return k.follow(x, &b, 1)
	case exactA && (c == belowOrEqual || c == smallerOrEqual):
		return k.follow(x, &b, 0)
	case exactB && (c == above || c == greater):
		return k.follow(y, &a, 1)
	case exactB && (c == aboveOrEqual || c == greaterOrEqual):
		return k.follow(y, &a, 0)
	case exactA && exactB && c == equal:
		return k.follow(x, &b, 0) && k.follow(y, &a, 0)
	}
	return true
}

// learn narrows a number, or raises the least length of the context if v is
// relative to the length.
func (k *knowledge) learn(v *value, s numbers.Set) bool {
	switch v.origin {
	case plain:
		return k.narrow(v, s)
	case contextLength:
		n := k.number(v)
		both, ok := n.And(s)
		if !ok {
			return false
		}
		if v.isSmall() && both.Max() <= small && n.Max() <= small {
			if size := int64(both.Min()) - v.SignedMax(); size > int64(k.size) {
				k.size = uint64(min(size, numbers.Far))
			}
		}
	}
	return true
}

// follow raises the room of v, given a number that is larger by at least n. It
// returns false if no value is left: the state is impossible.
func (k *knowledge) follow(v, larger *value, n int64) bool {
	if v.origin != plain || larger.SignedMin() < 0 || !larger.isSmall() || larger.room < -small {
		return true
	}
	return k.makeRoom(v, larger.room+n)
}

// refine restricts two sets to the numbers that can meet a condition between them;
// ok is false if there are none.
func refine(c condition, x, y numbers.Set) (s, t numbers.Set, ok bool) {
	switch c {
	case above, aboveOrEqual, greater, greaterOrEqual:
		t, s, ok = refine(swapped[c], y, x)
		return s, t, ok
	case equal:
		s, ok = x.And(y)
		return s, s, ok
	case notEqual:
		if s, ok = without(x, y); ok {
			t, ok = without(y, x)
		}
		return s, t, ok
	case noBit:
		if y.Span == 0 {
			s, ok = x.And(numbers.Set{Span: math.MaxUint64, Ones: ^y.Lo})
			return s, y, ok
		}
	case anyBit:
		return x, y, x.Ones&y.Ones != 0
	case below:
		if y.Max() == 0 || x.Min() == math.MaxUint64 {
			return x, y, false
		}
		return both(x, numbers.Range(0, y.Max()-1), y, numbers.Range(x.Min()+1, math.MaxUint64))
	case belowOrEqual:
		return both(x, numbers.Range(0, y.Max()), y, numbers.Range(x.Min(), math.MaxUint64))
	case smaller:
		if y.SignedMax() == math.MinInt64 || x.SignedMin() == math.MaxInt64 {
			return x, y, false
		}
		return both(x, numbers.Signed(math.MinInt64, y.SignedMax()-1), y, numbers.Signed(x.SignedMin()+1, math.MaxInt64))
	case smallerOrEqual:
		return both(x, numbers.Signed(math.MinInt64, y.SignedMax()), y, numbers.Signed(x.SignedMin(), math.MaxInt64))
	}
	return x, y, true
}

// both intersects two pairs of sets.
func both(x, inX, y, inY numbers.Set) (s, t numbers.Set, ok bool) {
	s, okX := x.And(inX)
	t, okY := y.And(inY)
	return s, t, okX && okY
}

// without removes the only number of y, if y has only one, from an end of x.
func without(x, y numbers.Set) (numbers.Set, bool) {
	if y.Span != 0 {
		return x, true
	}
	switch {
	case x.Span == 0:
		return x, x.Lo != y.Lo
	case x.Lo == y.Lo:
		return x.And(numbers.Range(x.Lo+1, x.Lo+x.Span))
	case x.Lo+x.Span == y.Lo:
		return x.And(numbers.Range(x.Lo, x.Lo+x.Span-1))
	}
	return x, true
}
