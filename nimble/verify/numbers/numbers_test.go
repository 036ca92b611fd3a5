package numbers

import (
	"math"
	"math/rand/v2"
	"testing"

	"margay/internal/check"
)

// operation is a Set operation with its meaning for numbers.
type operation struct {
	name   string
	set    func(s, t Set) Set
	number func(a, b uint64) uint64
}

func bit(n uint64) uint64 { return n & 63 }

func divide(a, b uint64) uint64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func modulo(a, b uint64) uint64 {
	if b == 0 {
		return a
	}
	return a % b
}

func signedDivide(a, b uint64) uint64 {
	if b == 0 {
		return 0
	}
	return uint64(int64(a) / int64(b))
}

func signedModulo(a, b uint64) uint64 {
	if b == 0 {
		return a
	}
	return uint64(int64(a) % int64(b))
}

var operations = []operation{
	{"Add", Set.Add, func(a, b uint64) uint64 { return a + b }},
	{"Sub", Set.Sub, func(a, b uint64) uint64 { return a - b }},
	{"Neg", func(s, _ Set) Set { return s.Neg() }, func(a, _ uint64) uint64 { return -a }},
	{"Mul", Set.Mul, func(a, b uint64) uint64 { return a * b }},
	{"Div", Set.Div, divide},
	{"Mod", Set.Mod, modulo},
	{"SignedDiv", Set.SignedDiv, signedDivide},
	{"SignedMod", Set.SignedMod, signedModulo},
	{"BitAnd", Set.BitAnd, func(a, b uint64) uint64 { return a & b }},
	{"BitOr", Set.BitOr, func(a, b uint64) uint64 { return a | b }},
	{"BitXor", Set.BitXor, func(a, b uint64) uint64 { return a ^ b }},
	{"Lsh", Set.Lsh, func(a, b uint64) uint64 { return a << bit(b) }},
	{"Rsh", Set.Rsh, func(a, b uint64) uint64 { return a >> bit(b) }},
	{"SignedRsh", Set.SignedRsh, func(a, b uint64) uint64 { return uint64(int64(a) >> bit(b)) }},
	{"Or", Set.Or, func(a, _ uint64) uint64 { return a }},
	{"Or, other", Set.Or, func(_, b uint64) uint64 { return b }},
	{"Widen", func(s, t Set) Set { return s.Widen(t, []int64{-3, 7, 64}) }, func(a, _ uint64) uint64 { return a }},
	{"Widen, other", func(s, t Set) Set { return s.Widen(t, nil) }, func(_, b uint64) uint64 { return b }},
	{"Truncate 8", func(s, _ Set) Set { return s.Truncate(8) }, func(a, _ uint64) uint64 { return uint64(uint8(a)) }},
	{"Truncate 32", func(s, _ Set) Set { return s.Truncate(32) }, func(a, _ uint64) uint64 { return uint64(uint32(a)) }},
	{"Truncate 64", func(s, _ Set) Set { return s.Truncate(64) }, func(a, _ uint64) uint64 { return a }},
	{"Extend 8", func(s, _ Set) Set { return s.Extend(8) }, func(a, _ uint64) uint64 { return uint64(int8(a)) }},
	{"Extend 32", func(s, _ Set) Set { return s.Extend(32) }, func(a, _ uint64) uint64 { return uint64(int32(a)) }},
	{"Extend 64", func(s, _ Set) Set { return s.Extend(64) }, func(a, _ uint64) uint64 { return a }},
}

// edge returns a number near a boundary of some operation, or any number.
func edge(r *rand.Rand) uint64 {
	near := []uint64{0, 1, 7, 8, 31, 63, 64, 127, 255, 1 << 16, 1 << 31, 1 << 32, Far, 1 << 62, 1 << 63, math.MaxUint64}
	switch r.IntN(3) {
	case 0:
		return r.Uint64()
	case 1:
		return near[r.IntN(len(near))]
	}
	return near[r.IntN(len(near))] + r.Uint64N(17) - 8
}

// some returns a set and a number in it.
func some(r *rand.Rand) (Set, uint64) {
	v := edge(r)
	s := Const(v)
	switch r.IntN(4) {
	case 0:
	case 1:
		s = All()
	default:
		back, on := edge(r), edge(r)
		if r.IntN(2) == 0 {
			back, on = back%100, on%100
		}
		if back+on >= back {
			s = Range(v-back, v+on)
		}
		if r.IntN(3) == 0 {
			mask := v | edge(r)
			s, _ = s.And(Set{Span: math.MaxUint64, Ones: mask})
		}
	}
	return s, v
}

func covers(t *testing.T, r *rand.Rand) {
	t.Helper()
	s, a := some(r)
	o, b := some(r)
	if !s.Has(a) || !o.Has(b) {
		t.Fatalf("%#v has no %#x or %#v no %#x", s, a, o, b)
	}
	for _, op := range operations {
		if got, want := op.set(s, o), op.number(a, b); !got.Has(want) {
			t.Fatalf("%s of %#v and %#v is %#v, without %#x of %#x and %#x", op.name, s, o, got, want, a, b)
		}
	}
	if a < s.Min() || a > s.Max() || int64(a) < s.SignedMin() || int64(a) > s.SignedMax() {
		t.Fatalf("%#x is not within the bounds of %#v", a, s)
	}
	both, ok := s.And(o)
	for _, v := range []uint64{a, b} {
		if s.Has(v) && o.Has(v) && (!ok || !both.Has(v)) {
			t.Fatalf("%#v and %#v both have %#x, but %#v has not", s, o, v, both)
		}
	}
	if s.In(o) && !o.Has(a) {
		t.Fatalf("%#v is in %#v, but %#x is not", s, o, a)
	}
}

// TestOperations checks that the result of every operation has every possible
// number.
func TestOperations(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	for range 200_000 {
		covers(t, r)
	}
}

func FuzzOperations(f *testing.F) {
	f.Add(uint64(1), uint64(2))
	f.Fuzz(func(t *testing.T, a, b uint64) { covers(t, rand.New(rand.NewPCG(a, b))) })
}

// TestExact tests results that must be exact.
func TestExact(t *testing.T) {
	negative := Signed(-5, 5)
	low, _ := All().And(Signed(math.MinInt64, 7))
	low, _ = low.And(Signed(0, math.MaxInt64))
	for name, c := range map[string]struct{ got, want Set }{
		"a mask":                        {All().BitAnd(Const(0x38)), Set{0, 0x38, 0x38}},
		"a negative mask":               {Range(0, 63).BitAnd(Const(math.MaxUint64 - 7)), Set{0, 56, 0x38}},
		"a shift":                       {Range(0, 7).Lsh(Const(3)), Set{0, 56, 0x38}},
		"a sum over 0":                  {negative.Add(Const(5)), Range(0, 10)},
		"a product":                     {Signed(-2, 3).Mul(Const(math.MaxUint64)), Signed(-3, 2)},
		"a remainder":                   {All().Mod(Const(10)), Range(0, 9)},
		"a truncated number":            {Range(1<<32+4, 1<<32+9).Truncate(32), Set{4, 5, 15}},
		"a sign":                        {Range(0x80, 0xff).Extend(8), Signed(-128, -1)},
		"two signed bounds":             {low, Range(0, 7)},
		"the shorter way around":        {Const(math.MaxUint64).Or(Const(0)), Signed(-1, 0)},
		"a step that is widened":        {Const(0).Widen(Const(1), []int64{39}), Range(0, 39)},
		"a step back that is widened":   {Const(5).Widen(Const(4), nil), Set{0, 5, 5}},
		"a step far that is widened":    {Range(0, Far).Widen(Const(Far+1), nil), Range(0, 2*Far-1)},
		"an arithmetic shift":           {negative.SignedRsh(Const(1)), Signed(-3, 2)},
		"no bits":                       {All().BitAnd(Const(0)), Const(0)},
		"a product that is a multiple":  {Range(0, 3).Mul(Const(12)), Set{0, 36, 60}},
		"a difference of the same arcs": {Range(4, 6).Sub(Range(4, 6)), Signed(-2, 2)},
	} {
		if !c.got.In(c.want) || !c.want.In(c.got) && c.got != c.want {
			t.Errorf("%s: %#v, want %#v", name, c.got, c.want)
		}
	}
	if _, ok := Range(0, 5).And(Range(6, 9)); ok {
		t.Error("two sets without a common number have one")
	}
	if _, ok := Range(1, 7).And(Set{Span: math.MaxUint64, Ones: ^uint64(7)}); ok {
		t.Error("there is a multiple of 8 from 1 to 7")
	}
}

func TestString(t *testing.T) {
	for want, s := range map[string]Set{"any number": All(), "7": Const(7), "-7": Signed(-7, -7), "0..255": Bits(8), "-1..4": Signed(-1, 4)} {
		if got := s.String(); got != want {
			t.Errorf("%#v is %q, want %q", s, got, want)
		}
	}
}
