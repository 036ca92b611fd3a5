package accumulate_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"margay/ext/message/accumulate"
	"margay/kernel/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
)

// node is the extension, inserted with a table of the given number of entries, and a context to run it on.
type node struct {
	t       testing.TB
	x       *nimble.Extension
	context *memory.Memory
}

func insert(t testing.TB, entries uint32) *node {
	t.Helper()
	specs, err := object.ELF(accumulate.Object)
	if err != nil {
		t.Fatal(err)
	}
	if len(specs) != 1 || specs[0].Slot() != string(slot.Message) {
		t.Fatalf("the object holds %d programs, the first for slot %s", len(specs), specs[0].Slot())
	}
	services, err := service.NewTable(service.Linux()...)
	if err != nil {
		t.Fatal(err)
	}
	x, err := nimble.Insert(specs[0], nimble.Options{
		Engine: portable.New(), Services: services,
		Maps:      map[string]nimble.MapOptions{accumulate.Table: {Entries: entries}},
		Variables: map[string]any{accumulate.Capacity: entries},
	})
	if err != nil {
		t.Fatal(err)
	}
	context, err := memory.Map("context", slot.MessageSize)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close(); context.Close() })
	return &node{t, x, context}
}

// send runs the extension on a message.
func (n *node) send(word string, count uint64) slot.Verdict {
	n.t.Helper()
	b := n.context.Bytes()
	clear(b)
	binary.LittleEndian.PutUint32(b[20:], uint32(len(word)))
	binary.LittleEndian.PutUint64(b[24:], count)
	copy(b[40:], word)
	r0, err := n.x.Run(nimble.Event{Context: n.context.Region(true)})
	if err != nil {
		n.t.Fatalf("message %q: %v", word, err)
	}
	return slot.Verdict(r0)
}

func (n *node) counts() map[string]uint64 {
	m := make(map[string]uint64)
	accumulate.Each(n.x.Map(accumulate.Table).Memory().Bytes(), func(word []byte, count uint64) { m[string(word)] += count })
	return m
}

func (n *node) sums() accumulate.Sums {
	s, err := accumulate.ReadSums(n.x.Map(accumulate.Totals).Memory().Bytes())
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
	binary.LittleEndian.PutUint32(n.context.Bytes()[16:], 7)
	binary.LittleEndian.PutUint32(n.context.Bytes()[20:], 3)
	r0, err := n.x.Run(nimble.Event{Context: n.context.Region(true)})
	if err != nil || slot.Verdict(r0) != slot.Deliver {
		t.Errorf("verdict %d, %v", r0, err)
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
	b.ReportMetric(float64(n.x.Stats().Instructions)/float64(n.x.Stats().Runs), "insns/op")
}
