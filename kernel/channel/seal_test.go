package channel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"margay/kernel/abi/id"
	"margay/kernel/abi/mirror"
)

// seals notes the calls of a table.
type seals struct {
	table  *Table
	had    []string
	known  map[id.Rank]uint64 // seals
	absent bool               // there is no program
	broken bool               // it cannot be changed
}

var errBroken = errors.New("no memory")

func (s *seals) called(what string, p Peering, args ...any) {
	s.had = append(s.had, fmt.Sprint(what, " ", p.Rank, " ", args))
}

func (s *seals) Admit(p Peering, seal, position uint64) (bool, error) {
	if s.absent {
		return false, nil
	}
	s.called("admit", p, position)
	if s.broken {
		return false, errBroken
	}
	if is := s.table.farOf(p.Local, p.Rank).in.Seal().Load(); seal == 0 || is != seal || s.known[p.Rank] != 0 && s.known[p.Rank] != seal {
		return false, fmt.Errorf("rank %d is admitted with seal %d, and has %d", p.Rank, seal, is)
	}
	s.known[p.Rank] = seal
	return true, nil
}

func (s *seals) Advance(p Peering, position uint64) error {
	s.called("advance", p, position)
	if s.broken {
		return errBroken
	}
	return nil
}

func (s *seals) Leave(p Peering) { s.called("leave", p) }

// sealing opens a table whose seals note its calls.
func sealing(t *testing.T) (*seals, *Remote, kept) {
	t.Helper()
	host := netip.MustParseAddr("127.0.0.1")
	remote := &Remote{Self: host, Ranks: 20, Address: func(id.Rank) netip.Addr { return host }, Largest: mirror.Least}
	table, k := openWith(t, 1, remote)
	s := &seals{table: table, known: make(map[id.Rank]uint64)}
	table.config.Seals = s
	return s, remote, k
}

// calls returns a function that compares the calls since the last comparison.
func (s *seals) calls(t *testing.T) func(want ...string) {
	return func(want ...string) {
		t.Helper()
		if !slices.Equal(s.had, want) {
			t.Errorf("calls %q, want %q", s.had, want)
		}
		s.had = nil
	}
}

// Mirrored channels are judged from the position on that their rank has reached, and keep their
// seals. The first bytes that arrive afterwards are reported, once. The next node kernel has the
// channels with seals judged again, and takes the seals away if it cannot.
func TestSeals(t *testing.T) {
	s, remote, k := sealing(t)
	table, calls := s.table, s.calls(t)
	meet := func(rank id.Rank) *far {
		t.Helper()
		table.Meet(0, rank)
		if err := table.Met(0, rank, Meeting{Number: 1, Key: 2, Port: 3}); err != nil {
			t.Fatal(err)
		}
		return table.farOf(0, rank)
	}
	first, alone := meet(5), meet(6)
	calls()
	first.in.Arrived().Store(805) // a rank writes any number there
	table.Meet(0, 7)
	for range 2 {
		if err := table.Seal(true); err != nil {
			t.Fatal(err)
		}
	}
	calls("admit 5 [800]", "admit 6 [0]")
	late := meet(7)
	calls("admit 7 [0]")
	table.Tend(0)
	calls()
	first.in.Arrived().Store(880)
	table.Tend(0)
	first.in.Arrived().Store(960)
	table.Tend(0)
	calls("advance 5 [880]")
	if err := table.Seal(false); err != nil {
		t.Fatal(err)
	}
	none := meet(8)
	for _, f := range []*far{first, alone, late, none} {
		if got := f.in.Seal().Load(); got != s.known[f.Rank] {
			t.Errorf("rank %d: seal %d, want %d", f.Rank, got, s.known[f.Rank])
		}
	}
	calls()
	none.in.Seal().Store(9) // by a node kernel that was killed before it could admit it
	for _, absent := range []bool{false, true} {
		s.absent = absent
		again, err := Adopt(Config{Ranks: ranksOf(t, 1), Remote: remote, Keeper: k, Seals: s, Log: t.Logf}, k)
		if err != nil {
			t.Fatal(err)
		}
		if absent {
			calls()
		} else {
			calls("admit 5 [960]", "admit 6 [0]", "admit 7 [0]", "admit 8 [0]")
		}
		again.Close()
		if absent {
			calls()
		} else {
			calls("leave 5 []", "leave 6 []", "leave 7 []", "leave 8 []")
		}
	}
	if first.in.Seal().Load() != 0 {
		t.Error("a channel that nothing judges has a seal")
	}
	s.absent = false
}

// What the program could not take is reported to it again. A seal that the program of an earlier
// node kernel may use stays until then: without it the rank would take nothing.
func TestSealsAgain(t *testing.T) {
	s, remote, k := sealing(t)
	table, calls := s.table, s.calls(t)
	table.Meet(0, 5)
	if err := table.Seal(true); err != nil {
		t.Fatal(err)
	}
	peer := Meeting{Number: 1, Key: 2, Port: 3}
	s.broken = true
	if err := table.Met(0, 5, peer); !errors.Is(err, errBroken) || table.farOf(0, 5).in.Seal().Load() != 0 {
		t.Errorf("%v", err)
	}
	s.broken = false
	if err := table.Met(0, 5, peer); err != nil {
		t.Fatal(err)
	}
	calls("admit 5 [0]", "admit 5 [0]")
	f := table.farOf(0, 5)
	f.in.Arrived().Store(80)
	for _, s.broken = range []bool{true, false, false} {
		table.Tend(0)
	}
	calls("advance 5 [80]", "advance 5 [80]")

	s.broken = true
	again, err := Adopt(Config{Ranks: ranksOf(t, 1), Remote: remote, Keeper: k, Seals: s, Log: t.Logf}, k)
	if err != nil {
		t.Fatal(err)
	}
	again.Tend(0)
	if f.in.Seal().Load() == 0 {
		t.Error("the seal is gone")
	}
	s.broken = false
	again.Tend(0)
	again.Tend(0)
	calls("admit 5 [80]", "admit 5 [80]", "admit 5 [80]")
	again.Close()
	calls("leave 5 []")
}
