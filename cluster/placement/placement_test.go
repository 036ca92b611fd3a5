package placement

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"margay/ext/place/pack"
	"margay/ext/place/spread"
	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/kernel/extension"
	"margay/kernel/extension/extensiontest"
	"margay/nimble/engine/portable"
)

// newChooser makes a chooser with the given objects, whose handles are 1, 2 and so on.
func newChooser(t testing.TB, objects ...[]byte) *Chooser {
	t.Helper()
	c, err := New(portable.New(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), c.Close()); err != nil {
			t.Error(err)
		}
	})
	for i, object := range objects {
		if err := c.Insert(extension.Request{Object: object, Handle: id.Handle(1 + i)}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// program assembles an extension for slot place.
func program(t testing.TB, name string, code ...string) []byte {
	return extensiontest.Object(t, extensiontest.Program{Section: "place", Name: name, Code: code})
}

// candidates are nodes with these numbers of free cores, of 4 each.
func candidates(free ...uint32) (list []slot.PlaceContext) {
	for i, n := range free {
		list = append(list, slot.PlaceContext{
			Node: uint32(10 + i), Index: uint32(i), Candidates: uint32(len(free)), Cores: 4, Free: n, Room: n, Turn: n, Ranks: 3,
		})
	}
	return list
}

// order is the answer of Choose as text: the candidates, each with the ranks of its turn.
func order(turns []Turn) string {
	var parts []string
	for _, t := range turns {
		parts = append(parts, fmt.Sprintf("%dx%d", t.Candidate, t.Ranks))
	}
	return strings.Join(parts, " ")
}

func TestChoose(t *testing.T) {
	for _, c := range []struct {
		name   string
		object []byte
		want   string // for nodes with 2, 4, 1 and 4 free cores
	}{
		{"spread", spread.Object, "1x1 3x1 0x1 2x1"},
		{"pack", pack.Object, "2x1 0x2 1x4 3x4"},
		{"equal scores", program(t, "equal", "mov r0, 7", "exit"), "0x2 1x4 2x1 3x4"},
		{"the highest number first", program(t, "last", "mov r0, 99", "ldxw r1, [r1+0]", "sub r0, r1", "exit"), "3x4 2x1 1x4 0x2"},
		{"the highest score", program(t, "highest", "mov r0, 1048575", "exit"), "0x2 1x4 2x1 3x4"},
		{"a turn of more than the room", program(t, "greedy", "mov r0, 0", "stw [r1+24], 1000", "exit"), "0x1000 1x1000 2x1000 3x1000"},
		{"the job is left to others", program(t, "leaves", "mov r0, 1048576", "exit"), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			chooser := newChooser(t, c.object)
			turns, spent := chooser.Choose(candidates(2, 4, 1, 4))
			if got := order(turns); got != c.want || len(spent) != 0 {
				t.Errorf("chosen are %q, spent %v, want %q", got, spent, c.want)
			}
			if list := chooser.List(); len(list) != 1 || list[0].Stats.Faults != 0 || list[0].Engine != "portable" || list[0].Trusted {
				t.Errorf("the extensions are %+v", list)
			}
		})
	}
}

// An extension sees what it is asked about, and changes nothing for the next one.
func TestContext(t *testing.T) {
	sums := program(t, "sums", "mov r0, 0",
		"ldxw r2, [r1+0]", "add r0, r2", "ldxw r2, [r1+36]", "add r0, r2", "ldxdw r2, [r1+40]", "add r0, r2", "ldxdw r2, [r1+48]", "add r0, r2",
		"mov r3, 0", "stxdw [r1+40], r3", "stxw [r1+16], r3", "mov r2, r0", "mov r0, 1048576", "jne r2, 1111, +1", "mov r0, 5", "exit")
	c := newChooser(t, sums, sums)
	list := []slot.PlaceContext{{Node: 1, User: 10, Memory: 100, FreeMemory: 1000, Turn: 1}}
	for range 2 {
		if turns, _ := c.Choose(list); order(turns) != "0x1" {
			t.Errorf("chosen are %q", order(turns))
		}
	}
	if infos := c.List(); infos[0].Stats.Runs != 2 || infos[1].Stats.Runs != 0 {
		t.Errorf("the extensions are %+v", infos)
	}
	list[0].User = 0
	if turns, _ := c.Choose(list); turns != nil {
		t.Errorf("an extension that knows no user has decided: %q", order(turns))
	}
}

// An extension that makes a fault has not decided, and the next one does. The last fault removes
// it.
func TestHostile(t *testing.T) {
	for name, code := range map[string][]string{
		"an endless loop":               {"ja -1"},
		"a store outside of its memory": {"lddw r2, 0x123456789", "mov r0, 0", "stxdw [r2+0], r0", "exit"},
		"a store behind the context":    {"mov r0, 0", "stxdw [r1+56], r0", "exit"},
		"a store before the context":    {"mov r0, 0", "stxdw [r1-8], r0", "exit"},
		"an answer that is no score":    {"mov r0, 1048577", "exit"},
		"a negative answer":             {"mov r0, -1", "exit"},
		"a turn of nothing":             {"mov r0, 0", "stxw [r1+24], r0", "exit"},
		"a fault at the last one":       {"mov r0, 0", "ldxw r2, [r1+4]", "jne r2, 1, +1", "mov r0, -1", "exit"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newChooser(t, program(t, "hostile", code...), pack.Object)
			for fault := uint64(1); fault <= slot.FaultLimit; fault++ {
				turns, spent := c.Choose(candidates(4, 1))
				if order(turns) != "1x1 0x4" {
					t.Errorf("chosen are %q", order(turns))
				}
				if last := fault == slot.FaultLimit; last != slices.Equal(spent, []id.Handle{1}) || !last && len(spent) > 0 {
					t.Errorf("after %d faults spent are %v", fault, spent)
				}
			}
			if turns, spent := c.Choose(candidates(4, 1)); order(turns) != "1x1 0x4" || len(spent) > 0 {
				t.Errorf("without it chosen are %q, spent %v", order(turns), spent)
			}
			check.Await(t, "an extension that is listed as removed", func() bool {
				return slices.ContainsFunc(c.List(), func(x extension.Info) bool { return x.Name == "hostile" && x.Stats.Faults >= slot.FaultLimit })
			})
		})
	}
}

// Only extensions for slot place are taken, and not more than a set can have.
func TestInsert(t *testing.T) {
	c := newChooser(t)
	if !c.Empty() {
		t.Error("it is not empty")
	}
	if turns, spent := c.Choose(candidates(1)); turns != nil || spent != nil {
		t.Errorf("chosen are %v, spent %v", turns, spent)
	}
	answer := extensiontest.Object(t, extensiontest.Answer("answer", "0"))
	for name, r := range map[string]extension.Request{
		"another slot": {Object: answer}, "no object": {Object: []byte("no object")}, "trusted": {Object: pack.Object, Trusted: true, Slot: "message"},
		"no such constant": {Object: pack.Object, Settings: []extension.Setting{{Name: "colour", Value: 3}}},
	} {
		if err := c.Insert(r); !errors.Is(err, extension.ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range extension.MaxExtensions {
		if err := c.Insert(extension.Request{Object: pack.Object, Handle: id.Handle(3 * (i + 1))}); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Insert(extension.Request{Object: pack.Object}); !errors.Is(err, extension.ErrNoRoom) {
		t.Errorf("one too many: %v", err)
	}
	if err := errors.Join(c.Remove(3, "test"), c.Remove(6, "test")); err != nil {
		t.Error(err)
	}
	if err := c.Remove(3, "test"); !errors.Is(err, extension.ErrNotFound) {
		t.Errorf("removed twice: %v", err)
	}
	if list := c.List(); len(list) != extension.MaxExtensions || list[0].Handle != 9 || len(c.Notes(0)) < extension.MaxExtensions {
		t.Errorf("the extensions are %+v", list)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if turns, _ := c.Choose(candidates(1)); turns != nil {
		t.Errorf("after the end chosen are %v", turns)
	}
}

// BenchmarkChoose measures the choice among 1,000 nodes.
func BenchmarkChoose(b *testing.B) {
	var free []uint32
	for i := range uint32(1000) {
		free = append(free, 1+i*7%64)
	}
	list := candidates(free...)
	for name, object := range map[string][]byte{"spread": spread.Object, "pack": pack.Object, "all-fuel": program(b, "busy",
		"mov r2, 497", "sub r2, 1", "jne r2, 0, -2", "mov r0, 0", "exit")} {
		b.Run(name, func(b *testing.B) {
			c := newChooser(b, object)
			for b.Loop() {
				if turns, _ := c.Choose(list); turns == nil {
					b.Fatal(c.List())
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N), "us/job")
		})
	}
}
