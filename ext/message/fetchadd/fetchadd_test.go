package fetchadd_test

import (
	"math/rand/v2"
	"testing"

	"margay/ext/message/fetchadd"
	"margay/ext/message/messagetest"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// Additions under way at once are made one after the other: the answers for a word have each value
// that it had, once.
func TestFetchAdd(t *testing.T) {
	const ranks, words, each = 6, 3, 40
	j := messagetest.NewJob(t, portable.New(), fetchadd.Object, nimble.Options{
		Variables: map[string]any{fetchadd.Handler: uint32(5), fetchadd.Entries: uint32(words)},
		Maps:      map[string]nimble.MapOptions{fetchadd.Words: {Entries: words}},
	}, 1, messagetest.Ranks(ranks, 2)...)
	random := rand.New(rand.NewPCG(1, 2))
	type word struct{ node, index int }
	sent := make(map[word]int)
	for range ranks * each {
		source, target, index := random.IntN(ranks), random.IntN(ranks), random.IntN(words)
		sent[word{target / 2, index}]++
		j.Send(source, target, 5, [2]uint64{uint64(index), 1}, []byte{byte(source)})
	}
	j.Run()
	seen := make(map[word]map[uint64]bool)
	for _, m := range j.Delivered {
		w := word{m.Source / 2, int(m.Args[0])}
		if seen[w] == nil {
			seen[w] = make(map[uint64]bool)
		}
		if seen[w][m.Args[1]] || m.Args[1] >= uint64(sent[w]) || m.Handler != 6 || !m.Extension || int(m.Payload[0]) != m.Target {
			t.Fatalf("%v: %+v", w, m)
		}
		seen[w][m.Args[1]] = true
	}
	for w, n := range sent {
		if len(seen[w]) != n {
			t.Errorf("%v: %d answers to %d additions", w, len(seen[w]), n)
		}
	}
}

// Nothing is added where there is no word, or no room for the answer.
func TestRefused(t *testing.T) {
	j := messagetest.NewJob(t, portable.New(), fetchadd.Object, nimble.Options{}, 1, 0, 1)
	j.Send(0, 1, 0, [2]uint64{1, 5}, nil)
	j.Run()
	if got := j.Took(0); len(got) != 1 || got[0].Args != [2]uint64{fetchadd.NoWord | 1, 0} {
		t.Errorf("%+v", got)
	}
	j.Full = func(uint32) bool { return true }
	j.Send(0, 1, 0, [2]uint64{0, 5}, nil)
	j.Run()
	if got := j.Took(1); len(got) != 1 || got[0].Extension {
		t.Errorf("without room: %+v", got)
	}
	if b := j.Nodes[1].Map(fetchadd.Words).Memory().Bytes(); b[0] != 0 {
		t.Errorf("%d was added", b[0])
	}
}
