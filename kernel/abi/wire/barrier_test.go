package wire

import (
	"errors"
	"slices"
	"testing"
)

func TestLeaders(t *testing.T) {
	for _, k := range []struct{ nodes, leaders []uint32 }{
		{[]uint32{4}, []uint32{0}},
		{[]uint32{4, 4, 2, 2}, []uint32{0, 2}},
		{[]uint32{4, 2, 4, 0, 2}, []uint32{0, 1, 3}},
	} {
		got := Leaders(len(k.nodes), func(rank uint32) uint32 { return k.nodes[rank] })
		if !slices.Equal(got, k.leaders) {
			t.Errorf("of %v: %v", k.nodes, got)
		}
	}
}

// Each leader exchanges outcomes with the leaders to which it sends notes or which send it some,
// and with no others.
func TestExchange(t *testing.T) {
	for _, k := range []struct {
		leaders int
		with    []int // of place 0
	}{{1, nil}, {2, []int{1}}, {3, []int{1, 2}}, {5, []int{1, 2, 3, 4}}, {8, []int{1, 2, 4, 6, 7}}} {
		var with []int
		for place := range k.leaders {
			if Exchange(0, place, k.leaders) {
				with = append(with, place)
			}
			if Exchange(0, place, k.leaders) != Exchange(place, 0, k.leaders) {
				t.Errorf("of %d, 0 and %d do not agree", k.leaders, place)
			}
		}
		if !slices.Equal(with, k.with) {
			t.Errorf("of %d, 0 exchanges with %v", k.leaders, with)
		}
	}
}

// FuzzNote: any arguments are a note whose arguments they are, or refused.
func FuzzNote(f *testing.F) {
	f.Add(uint64(1), uint64(1<<8), 0)
	f.Add(uint64(1<<63), uint64(31|3<<8), 0)
	f.Add(uint64(1), uint64(95|1<<8|1<<16), 0)
	f.Add(uint64(0), uint64(1<<8), 0)
	f.Add(uint64(1), uint64(96|1<<8), 0)
	f.Add(uint64(1), uint64(4<<8), 0)
	f.Add(uint64(1), uint64(1<<17|1<<8), 0)
	f.Add(uint64(1), uint64(1<<8), 8)
	f.Fuzz(func(t *testing.T, first, second uint64, payload int) {
		n, err := ParseNote([2]uint64{first, second}, payload)
		switch {
		case err != nil:
			if !errors.Is(err, ErrNote) {
				t.Error(err)
			}
		case n.Args() != [2]uint64{first, second} || payload != 0 || n.Number == 0 || n.Round >= NoteRounds || n.Outcome < OutcomeQuiet || n.Outcome > OutcomeAbandoned:
			t.Errorf("%#x %#x, %d bytes: %+v", first, second, payload, n)
		}
	})
}

// The longer ranks are not quiet, the fewer barriers are tried on the boards; one quiet barrier is
// enough to try all again.
func TestTurns(t *testing.T) {
	turns := NewTurns(2)
	skipped := func() (n int) {
		for !turns.Try() {
			n++
		}
		return n
	}
	for i, want := range []int{Untried, 0, 1, 3, 7, mostSkipped, mostSkipped} {
		if n := skipped(); n != want {
			t.Errorf("before turn %d, %d barriers are not tried, not %d", i, n, want)
		}
		turns.Judge(false)
	}
	skipped()
	turns.Judge(true)
	for range 3 {
		if n := skipped(); n != 0 {
			t.Errorf("%d quiet barriers are not tried", n)
		}
		turns.Judge(true)
	}
	if turns := NewTurns(1); !turns.Try() {
		t.Error("a job with one node does not begin on the board")
	}
}

// A outcome about a later barrier says that an earlier one was quiet.
func TestOutcome(t *testing.T) {
	b, err := OpenBoard(make([]byte, BoardSize(2)), 2)
	if err != nil {
		t.Fatal(err)
	}
	b.Enter(0, 5, false)
	if v := b.Outcome(4); v != 0 {
		t.Errorf("outcome %d before there is one", v)
	}
	b.Decide(5, OutcomeLoud)
	for number, want := range map[uint64]Outcome{4: OutcomeQuiet, 5: OutcomeLoud, 6: 0} {
		if v := b.Outcome(number); v != want {
			t.Errorf("barrier %d: outcome %d, not %d", number, v, want)
		}
	}
	if b.Decided() != 5 || b.Arrived(0, 5) != 1 {
		t.Errorf("barrier %d is decided", b.Decided())
	}
}
