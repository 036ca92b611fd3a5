package udp

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"margay/internal/check"
)

// Every hello that is accepted is written as the same bytes again.
func FuzzHello(f *testing.F) {
	for s := question; s <= refusal; s++ {
		h := newIdentity().hello(s)
		h.sealed, h.port, h.bound = s%2 == 0, 7, uint64(s)
		f.Add(h.encode())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h hello
		if err := h.decode(b); err != nil {
			if !errors.Is(err, errHello) {
				t.Fatal(err)
			}
			return
		}
		if again := h.encode(); !bytes.Equal(again, b) {
			t.Fatalf("%x became %x", b, again)
		}
	})
}

// party is a side of a meeting as the model sees it.
type party struct{ state }

// meet is a meeting that ends before one of its steps, like welcome and askOnce: the answering side
// changes at step 3, the asking side at step 4.
func meet(asking, answering *party, steps int, fresh func() uint64) {
	own, other := asking.own, answering.own
	if !compatible(answering.state, asking.state) {
		if answering.bound != 0 {
			other = fresh()
		}
		if asking.bound != 0 {
			own = fresh()
		}
	}
	if steps >= 3 {
		answering.state = state{other, own}
	}
	if steps >= 4 {
		asking.state = state{own, other}
	}
}

// Whatever meetings were aborted and whichever side has started again before, after one whole
// meeting the two sides are bound to each other, and further meetings change nothing.
func TestMeetingsHeal(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 1))
	last := uint64(0)
	fresh := func() uint64 { last++; return last }
	for range 10000 {
		sides := [2]*party{{state{own: fresh()}}, {state{own: fresh()}}}
		for range random.IntN(8) {
			at := random.IntN(2)
			if random.IntN(3) == 0 {
				sides[at].state = state{own: fresh()} // it has started again
			} else {
				meet(sides[at], sides[1-at], 1+random.IntN(4), fresh)
			}
		}
		at := random.IntN(2)
		meet(sides[at], sides[1-at], 4, fresh)
		a, b := sides[0].state, sides[1].state
		if a.bound != b.own || b.bound != a.own {
			t.Fatalf("after a whole meeting: %+v and %+v", a, b)
		}
		meet(sides[1-at], sides[at], 1+random.IntN(4), fresh)
		if sides[0].state != a || sides[1].state != b {
			t.Fatalf("a further meeting made %+v and %+v of %+v and %+v", sides[0].state, sides[1].state, a, b)
		}
	}
}

// A meeting that lost its last step loses nothing: the next one goes on with the same incarnations.
func TestAbortedMeeting(t *testing.T) {
	fresh := func() uint64 { t.Error("an incarnation was given up"); return 9 }
	for steps := 1; steps <= 4; steps++ {
		a, b := &party{state{own: 1}}, &party{state{own: 2}}
		meet(a, b, steps, fresh)
		meet(b, a, steps, fresh)
		meet(a, b, 4, fresh)
		if a.state != (state{1, 2}) || b.state != (state{2, 1}) {
			t.Errorf("%d steps: %+v, %+v", steps, a.state, b.state)
		}
	}
}
