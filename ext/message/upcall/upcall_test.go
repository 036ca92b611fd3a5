package upcall_test

import (
	"testing"

	"margay/ext/message/messagetest"
	"margay/ext/message/upcall"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

func TestVerdicts(t *testing.T) {
	for _, c := range []struct {
		variables map[string]any
		first     uint32
	}{{nil, upcall.DefaultFirst}, {map[string]any{upcall.First: uint32(3)}, 3}} {
		x := messagetest.Insert(t, portable.New(), upcall.Object, nimble.Options{Variables: c.variables})
		for handler := range uint32(256) {
			want := slot.Deliver
			if handler >= c.first {
				want = slot.Upcall
			}
			if v := x.Ask(&slot.MessageContext{Handler: handler}); v != want {
				t.Errorf("first %d: verdict %d for handler %d", c.first, v, handler)
			}
		}
	}
}
