package accumulate_test

import (
	"fmt"
	"strings"
	"testing"

	"margay/ext/message/accumulate"
	"margay/ext/message/messagetest"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

// node is the extension, inserted with a table of the given number of entries.
type node struct {
	t testing.TB
	*messagetest.Extension
}

func insert(t testing.TB, entries uint32) *node {
	t.Helper()
	return &node{t, messagetest.Insert(t, portable.New(), accumulate.Object, nimble.Options{
		Maps:      map[string]nimble.MapOptions{accumulate.Table: {Entries: entries}},
		Variables: map[string]any{accumulate.Capacity: entries},
	})}
}

// send runs the extension on a message.
func (n *node) send(word string, count uint64) slot.Verdict {
	m := slot.MessageContext{Length: uint32(len(word)), Args: [2]uint64{count}}
	copy(m.Data[:], word)
	return n.Ask(&m)
}

func (n *node) counts() map[string]uint64 {
	m := make(map[string]uint64)
	accumulate.Each(n.Map(accumulate.Table).Memory().Bytes(), func(word []byte, count uint64) { m[string(word)] += count })
	return m
}

func (n *node) sums() accumulate.Sums {
	s, err := accumulate.ReadSums(n.Map(accumulate.Totals).Memory().Bytes())
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func TestCounts(t *testing.T) {
	n := insert(t, 1024)
	want := make(map[string]uint64)
	var sum uint64
	for i := range 5000 {
		word := fmt.Sprintf("word%d", i%700)
		if i%3 == 0 {
			word = strings.Repeat("x", 1+i%accumulate.MaxWord) // one word is the beginning of another
		}
		want[word] += uint64(i)
		sum += uint64(i)
		if v := n.send(word, uint64(i)); v != slot.Consume {
			t.Fatalf("verdict %d for %q", v, word)
		}
	}
	got := n.counts()
	if len(got) != len(want) {
		t.Errorf("%d words, want %d", len(got), len(want))
	}
	for word, count := range want {
		if got[word] != count {
			t.Errorf("%q was counted %d times, want %d", word, got[word], count)
		}
	}
	s := n.sums()
	if s.Handled != 5000 || s.Sum != sum || s.Err() != nil {
		t.Errorf("totals %+v", s)
	}
}

func TestFullTableIsAnError(t *testing.T) {
	n := insert(t, 64)
	dropped := 0
	for i := range 100 {
		if n.send(fmt.Sprint("w", i), 1) == slot.Drop {
			dropped++
		}
	}
	s := n.sums()
	if dropped != 36 || s.Full != 36 || s.Handled != 64 || s.Err() == nil {
		t.Errorf("%d messages were dropped, totals %+v", dropped, s)
	}
	if v := n.send("w0", 1); v != slot.Consume {
		t.Errorf("a word that is in the full table: verdict %d", v)
	}
}

func TestNoWord(t *testing.T) {
	n := insert(t, 64)
	for _, word := range []string{"", strings.Repeat("x", accumulate.MaxWord+1), strings.Repeat("x", slot.MaxMessage)} {
		if v := n.send(word, 1); v != slot.Drop {
			t.Errorf("verdict %d for a payload of %d bytes", v, len(word))
		}
	}
	if s := n.sums(); s.Refused != 3 || s.Handled != 0 || s.Err() == nil {
		t.Errorf("totals %+v", s)
	}
}

func TestOtherHandlersAreDelivered(t *testing.T) {
	n := insert(t, 64)
	if v := n.Ask(&slot.MessageContext{Handler: 7, Length: 3}); v != slot.Deliver {
		t.Errorf("verdict %d", v)
	}
	if len(n.counts()) != 0 {
		t.Errorf("it was counted: %v", n.counts())
	}
}

func BenchmarkMessage(b *testing.B) {
	n := insert(b, 1<<16)
	words := make([]string, 1000)
	for i := range words {
		words[i] = fmt.Sprint("identifier", i)
	}
	i := 0
	for b.Loop() {
		n.send(words[i%len(words)], 1)
		i++
	}
	b.ReportMetric(float64(n.Stats().Instructions)/float64(n.Stats().Runs), "insns/op")
}
