package stamp_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"margay/ext/message/messagetest"
	"margay/ext/message/stamp"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
)

func now(t *testing.T) uint64 {
	t.Helper()
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		t.Fatal(err)
	}
	return uint64(ts.Nano())
}

func TestStamps(t *testing.T) {
	x := messagetest.Insert(t, portable.New(), stamp.Object, nimble.Options{Variables: map[string]any{stamp.First: uint32(9)}})
	for i, want := range []slot.Verdict{8: slot.Deliver, 9: slot.Upcall, 10: slot.Upcall} {
		const apart = 1_000_000 // at most, two ways to read one clock
		before := now(t) - apart
		v := x.Ask(&slot.MessageContext{Handler: uint32(i), Args: [2]uint64{uint64(i + stamp.Entries)}})
		if after := now(t) + apart; v != want {
			t.Errorf("verdict %d for handler %d", v, i)
		} else if at := binary.LittleEndian.Uint64(x.Map(stamp.Stamps).Memory().Bytes()[8*i:]); at < before || at > after {
			t.Errorf("message %d came at %d, not between %d and %d", i, at, before, after)
		}
	}
}
