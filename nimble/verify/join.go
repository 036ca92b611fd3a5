package verify

import (
	"math/bits"

	"margay/nimble/verify/numbers"
)

// join weakens the state to so that it covers the state from too.
func (p *prover) join(to, from *knowledge) {
	p.groups = p.groups[:0]
	for followed := p.relevant; followed != 0; followed &= followed - 1 {
		if n := bits.TrailingZeros16(uint16(followed)); to.r[n] != from.r[n] {
			p.joinValue(to, from, &to.r[n], &from.r[n])
		}
	}
	kept := to.spilled[:0]
	for n := range to.spilled[:to.spills] {
		s := to.spilled[n]
		if v := from.spill(&s); v != nil {
			if s.value != *v {
				p.joinValue(to, from, &s.value, v)
			}
			kept = append(kept, s)
		}
	}
	to.spills = len(kept)
	to.size = min(to.size, from.size)
}

// joinValue joins v, of the state to, with w, of the state from.
func (p *prover) joinValue(to, from *knowledge, v, w *value) {
	other := *w
	if v.origin != w.origin || v.index != w.index {
		if v.origin == plain && w.origin == contextLength || v.origin == contextLength && w.origin == plain {
			*v, other = to.number(v), from.number(w)
		} else {
			*v = p.any()
			return
		}
	}
	if room := v.room; room != noRoom || other.room != noRoom {
		v.room = min(v.roomIn(to.size), other.roomIn(from.size))
	}
	p.joinForm(v, &other)
	v.Set = v.Or(other.Set)
}

// joinForm finds a form for v that holds for w too.
func (p *prover) joinForm(v, w *value) {
	switch known := w.known(); {
	case v.known() && known:
		if v.Lo != w.Lo {
			v.form = form{p.group(dependence{steps: true}), w.Lo - v.Lo, v.Lo}
		} else if v.form != w.form {
			v.form = form{}
		}
		return
	case v.known() && w.symbol != 0:
		if d, ok := v.express(w.form); ok {
			d.to = w.symbol
			v.form = form{p.group(d), w.scale, w.delta}
			return
		}
	case v.symbol != 0:
		if d, ok := w.express(v.form); ok {
			if d.to == v.symbol && d.u == 1 && d.t == 0 {
				return
			}
			d.from = v.symbol
			v.symbol = p.group(d)
			return
		}
	}
	v.form = p.fresh()
}

// group returns the symbol of the values with a dependence, in this join.
func (p *prover) group(d dependence) uint32 {
	for _, g := range p.groups {
		if g.dependence == d {
			return g.symbol
		}
	}
	p.symbols++
	p.groups = append(p.groups, group{d, p.symbols})
	return p.symbols
}

type group struct {
	dependence
	symbol uint32
}

// unchanged replaces values that came back to the head of a loop unchanged by the
// values that entered the loop. A value is unchanged if its form is the same as at
// the head: a symbol stands for one number until the head is reached again.
func (k *knowledge) unchanged(head, into *knowledge) {
	for n := range k.r {
		if v := &k.r[n]; v.symbol != 0 && v.form == head.r[n].form && sameOrigin(v, &head.r[n]) {
			*v = into.r[n]
		}
	}
	for n := range k.spilled[:k.spills] {
		s := &k.spilled[n]
		if v, in := head.spill(s), into.spill(s); v != nil && in != nil && s.symbol != 0 && s.form == v.form && sameOrigin(&s.value, v) {
			s.value = *in
		}
	}
}

// spill returns k's value of the same memory as in s, nil if there is none.
func (k *knowledge) spill(s *spill) *value {
	for n := range k.spilled[:k.spills] {
		if o := &k.spilled[n]; o.at == s.at && o.bytes == s.bytes {
			return &o.value
		}
	}
	return nil
}

// widen weakens values that changed since the last sweep in big steps, so that few
// sweeps reach a fixed point. Values that are still as they entered the loop, in
// into, are not widened.
func (k *knowledge) widen(last, into *knowledge, stops []int64) {
	for n := range k.r {
		k.r[n].widen(&last.r[n], &into.r[n], stops)
	}
	for n := range k.spilled[:k.spills] {
		s := &k.spilled[n]
		if v, in := last.spill(s), into.spill(s); v != nil && in != nil {
			s.widen(v, in, stops)
		}
	}
}

func (v *value) widen(last, into *value, stops []int64) {
	if v.origin != last.origin || v.index != last.index || v.Set == into.Set && v.room == into.room {
		return
	}
	v.Set = last.Widen(v.Set, stops)
	if v.room < last.room {
		v.room = noRoom
	}
}

// lose is widen in one step: changed values become unknown.
func (p *prover) lose(k, into *knowledge) {
	for n := range k.r {
		if k.r[n] != into.r[n] {
			k.r[n] = p.any()
		}
	}
	k.spills = 0
}

// covers reports whether every fact of k also holds in o.
func (k *knowledge) covers(o *knowledge) bool {
	if o.size < k.size {
		return false
	}
	var mine, others [len(k.r) + maxSpills]*value
	n := 0
	for ; n < len(k.r); n++ {
		mine[n], others[n] = &k.r[n], &o.r[n]
	}
	for i := range k.spilled[:k.spills] {
		mine[n], others[n] = &k.spilled[i].value, o.spill(&k.spilled[i])
		if others[n] == nil {
			return false
		}
		n++
	}
	for i := range n {
		if !mine[i].covers(k, others[i], o) || !depends(mine[:i+1], others) {
			return false
		}
	}
	return true
}

// covers reports whether every fact of v in k also holds for w in o, except forms.
func (v *value) covers(k *knowledge, w *value, o *knowledge) bool {
	if v.origin == plain && v.Set == numbers.All() && v.room == noRoom {
		return true
	}
	if v.origin == plain && w.origin == contextLength {
		number := o.number(w)
		w = &number
	}
	return v.origin == w.origin && v.index == w.index && w.In(v.Set) && (v.room == noRoom || w.roomIn(o.size) >= v.room)
}

// depends reports whether the last of values relates to those before it in the
// same way as its counterpart in others does.
func depends(values []*value, others [len(knowledge{}.r) + maxSpills]*value) bool {
	last := len(values) - 1
	v := values[last]
	if v.symbol == 0 {
		return true
	}
	for n, w := range values[:last] {
		if w.symbol != v.symbol {
			continue
		}
		a, okA := others[last].express(v.form)
		b, okB := others[n].express(w.form)
		return okA && okB && a == b && sameOrigin(v, others[last]) && sameOrigin(w, others[n])
	}
	return true
}

func sameOrigin(v, w *value) bool { return v.origin == w.origin && v.index == w.index }
