package spread_test

import (
	"testing"

	"margay/ext/message/messagetest"
	"margay/ext/message/spread"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

func TestVerdicts(t *testing.T) {
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
		x := messagetest.Insert(t, portable.New(), spread.Object, nimble.Options{
			Variables: map[string]any{spread.Handler: uint32(7), spread.Ranks: c.ranks},
		})
		m := slot.MessageContext{TargetRank: 1, Handler: c.handler, Args: [2]uint64{c.arg}}
		if v := x.Ask(&m); v != c.want || m.TargetRank != c.owner {
			t.Errorf("%s: verdict %d for rank %d", c.name, v, m.TargetRank)
		}
	}
}
