package spread_test

import (
	"encoding/binary"
	"testing"

	"margay/ext/message/spread"
	"margay/kernel/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
	"margay/nimble/memory"
	"margay/nimble/object"
)

func TestVerdicts(t *testing.T) {
	specs, err := object.ELF(spread.Object)
	if err != nil || len(specs) != 1 || specs[0].Slot() != string(slot.Message) {
		t.Fatal(specs, err)
	}
	context, err := memory.Map("context", slot.MessageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer context.Close()
	for _, c := range []struct {
		name           string
		ranks, handler uint32
		arg            uint64
		owner          uint32
		want           slot.Verdict
	}{
		{"elsewhere", 5, 7, 13, 3, slot.Forward},
		{"here", 5, 7, 11, 1, slot.Deliver},
		{"a long argument", 5, 7, 1<<64 - 1, 0, slot.Forward}, // 2^64-1 is a multiple of 5
		{"another handler", 5, 8, 13, 1, slot.Deliver},
		{"no ranks", 0, 7, 13, 1, slot.Deliver},
	} {
		x, err := nimble.Insert(specs[0], nimble.Options{
			Engine: portable.New(), Variables: map[string]any{spread.Handler: uint32(7), spread.Ranks: c.ranks},
		})
		if err != nil {
			t.Fatal(err)
		}
		b := context.Bytes()
		binary.LittleEndian.PutUint32(b[12:], 1)
		binary.LittleEndian.PutUint32(b[16:], c.handler)
		binary.LittleEndian.PutUint64(b[24:], c.arg)
		r0, err := x.Run(nimble.Event{Context: context.Region(true)})
		if owner := binary.LittleEndian.Uint32(b[12:]); err != nil || slot.Verdict(r0) != c.want || owner != c.owner {
			t.Errorf("%s: verdict %d for rank %d, %v", c.name, r0, owner, err)
		}
		x.Close()
	}
}
