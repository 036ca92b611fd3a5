package channel

import (
	"encoding/json"
	"math"
	"os"
	"strings"
	"testing"

	"margay/internal/check"
	"margay/kernel/abi/id"
	"margay/kernel/abi/wire"
)

// ranksOf returns local ranks, each with its own area.
func ranksOf(t *testing.T, n int) (ranks []Rank) {
	t.Helper()
	for i := range n {
		area, err := wire.NewArea(make([]byte, wire.AreaSize(n)), wire.Header{Rank: uint32(i), Size: uint32(n), LocalRank: uint32(i), LocalSize: uint32(n), Nodes: 1}, make([]uint32, n))
		if err != nil {
			t.Fatal(err)
		}
		ranks = append(ranks, Rank{Number: id.Rank(10 + i), Area: area})
	}
	return ranks
}

func open(t *testing.T, ranks int) (*Table, kept) {
	t.Helper()
	return openWith(t, ranks, nil)
}

func openWith(t *testing.T, ranks int, remote *Remote) (*Table, kept) {
	t.Helper()
	before := check.Descriptors(t)
	k := make(kept)
	table, err := New(Config{Ranks: ranksOf(t, ranks), Remote: remote, Keeper: k, Log: t.Logf})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		table.Close()
		k.close()
		if after := check.Descriptors(t); after != before {
			t.Errorf("%d descriptors are left", after-before)
		}
	})
	return table, k
}

// A job has a limited number of channels, and each rank fetches the ones that it is an end of.
func TestLimit(t *testing.T) {
	const ranks = 17
	table, k := open(t, ranks)
	for range 2 {
		for source := range ranks {
			for target := range ranks {
				table.Speak(source, target)
			}
		}
	}
	if len(table.pairs) != Limit || len(k) != Limit+1+ranks {
		t.Errorf("there are %d channels, and %d items are kept", len(table.pairs), len(k))
	}
	ends := 0
	for local, r := range table.config.Ranks {
		n := r.Area.Channels().Load()
		ends += int(n)
		for i := range uint64(n) {
			f, err := table.Fetch(local, i)
			if err != nil {
				t.Fatal(err)
			}
			f.Memory.Close()
			f.Bell.Close()
			peer, producer := f.Local, f.Producer
			p := table.ends[local][i].pair
			if producer && (p.source != local || p.target != peer) || !producer && (p.target != local || p.source != peer) {
				t.Errorf("channel %d of rank %d: peer %d, producer %v", i, local, peer, producer)
			}
		}
	}
	if ends != 2*Limit {
		t.Errorf("%d channels have %d ends", Limit, ends)
	}
}

// Fetching a channel or doorbell that the rank does not have fails.
func TestRefused(t *testing.T) {
	table, _ := open(t, 2)
	table.Speak(0, 0)
	for _, index := range []uint64{2, 1 << 32, math.MaxUint64} {
		if _, err := table.Fetch(0, index); err == nil {
			t.Errorf("rank 0 gets channel %d", index)
		}
		if _, err := table.Doorbell(index); err == nil {
			t.Errorf("there is a doorbell %d", index)
		}
	}
	if _, err := table.Fetch(1, 0); err == nil || !strings.Contains(err.Error(), "rank 11 has no channel 0") {
		t.Errorf("a channel of another rank: %v", err)
	}
}

// Counters that ranks have overwritten still add up, without overflow.
func TestCounts(t *testing.T) {
	table, _ := open(t, 2)
	table.Speak(0, 1)
	table.Speak(1, 0)
	table.pairs[0].channel.Count().Store(5)
	table.pairs[1].channel.Count().Store(math.MaxUint64)
	if sent, arrived := table.Counts(0); sent != 5 || arrived != mostCounted {
		t.Errorf("%d sent, %d arrived", sent, arrived)
	}
}

// Channels to a rank that has ended are closed, and no new ones are made.
func TestEnded(t *testing.T) {
	table, _ := open(t, 3)
	table.Speak(0, 1)
	table.Speak(1, 0)
	table.Ended(1)
	table.Speak(2, 1)
	if len(table.pairs) != 2 || table.pairs[0].channel.Closed().Load() != 1 || table.pairs[1].channel.Closed().Load() != 0 {
		t.Errorf("%d channels", len(table.pairs))
	}
	for local := range 3 {
		if local != 1 {
			table.board.Enter(local, 1, true)
		}
	}
	if table.board.Arrived(0, 1) != 3 || table.board.Quiet(1) {
		t.Error("the others wait on the board for a rank that has ended")
	}
}

// The next node kernel has the same channels in the same order, and no others.
func TestAdopt(t *testing.T) {
	table, k := open(t, 4)
	for _, p := range [][2]int{{3, 1}, {0, 0}, {1, 3}} {
		table.Speak(p[0], p[1])
	}
	table.Ended(2)
	again, err := Adopt(Config{Ranks: ranksOf(t, 4), Keeper: k, Log: t.Logf}, k)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	again.Speak(3, 1)
	again.Speak(2, 2)
	for i, p := range table.pairs {
		if q := again.pairs[i]; q.source != p.source || q.target != p.target {
			t.Errorf("channel %d is from %d to %d", i, q.source, q.target)
		}
	}
	if n := again.config.Ranks[1].Area.Channels().Load(); len(again.pairs) != 4 || n != 2 {
		t.Errorf("%d channels, rank 1 has %d", len(again.pairs), n)
	}
}

func TestAdoptIncomplete(t *testing.T) {
	for name, damage := range map[string]func(k kept){
		"no board":    func(k kept) { k.lose(keptBoard) },
		"no doorbell": func(k kept) { k.lose(doorbellItem(1)) },
		"no ranks":    func(k kept) { k[pairItem(0)].Words = nil },
		"no memory":   func(k kept) { k[pairItem(0)].CloseFiles(); k[pairItem(0)].Files = nil },
		"other ranks": func(k kept) { k[pairItem(0)].Words, _ = json.Marshal([2]int{0, 2}) },
		"other memory": func(k kept) {
			k[pairItem(0)].CloseFiles()
			f, err := os.Open(os.DevNull)
			if err != nil {
				panic(err)
			}
			k[pairItem(0)].Files = []*os.File{f}
		},
	} {
		t.Run(name, func(t *testing.T) {
			table, k := open(t, 2)
			table.Speak(0, 1)
			damage(k)
			before := check.Descriptors(t)
			if _, err := Adopt(Config{Ranks: ranksOf(t, 2), Keeper: k, Log: t.Logf}, k); err == nil {
				t.Error("it was adopted")
			}
			if after := check.Descriptors(t); after != before {
				t.Errorf("%d descriptors are left", after-before)
			}
		})
	}
}

// lose forgets an item.
func (k kept) lose(name string) {
	k[name].CloseFiles()
	delete(k, name)
}
