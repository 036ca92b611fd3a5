package upcall_test

import (
	"encoding/binary"
	"testing"

	"margay/ext/message/upcall"
	"margay/kernel/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
	"margay/nimble/memory"
	"margay/nimble/object"
)

func TestVerdicts(t *testing.T) {
	specs, err := object.ELF(upcall.Object)
	if err != nil || len(specs) != 1 || specs[0].Slot() != string(slot.Message) {
		t.Fatal(specs, err)
	}
	context, err := memory.Map("context", slot.MessageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer context.Close()
	for _, c := range []struct {
		variables map[string]any
		first     uint32
	}{{nil, upcall.DefaultFirst}, {map[string]any{upcall.First: uint32(3)}, 3}} {
		x, err := nimble.Insert(specs[0], nimble.Options{Engine: portable.New(), Variables: c.variables})
		if err != nil {
			t.Fatal(err)
		}
		for handler := range uint32(256) {
			binary.LittleEndian.PutUint32(context.Bytes()[16:], handler)
			want := slot.Deliver
			if handler >= c.first {
				want = slot.Upcall
			}
			if r0, err := x.Run(nimble.Event{Context: context.Region(true)}); err != nil || slot.Verdict(r0) != want {
				t.Errorf("first %d: verdict %d for handler %d, %v", c.first, r0, handler, err)
			}
		}
		x.Close()
	}
}
