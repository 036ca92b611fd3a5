package stamp_test

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"

	"margay/ext/message/stamp"
	"margay/kernel/slot"
	"margay/nimble"
	"margay/nimble/engine/portable"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/service"
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
	specs, err := object.ELF(stamp.Object)
	if err != nil || len(specs) != 1 || specs[0].Slot() != string(slot.Message) {
		t.Fatal(specs, err)
	}
	services, err := service.NewTable(service.Linux()...)
	if err != nil {
		t.Fatal(err)
	}
	x, err := nimble.Insert(specs[0], nimble.Options{Engine: portable.New(), Services: services, Variables: map[string]any{stamp.First: uint32(9)}})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	context, err := memory.Map("context", slot.MessageSize)
	if err != nil {
		t.Fatal(err)
	}
	defer context.Close()
	for i, want := range []slot.Verdict{8: slot.Deliver, 9: slot.Upcall, 10: slot.Upcall} {
		binary.LittleEndian.PutUint32(context.Bytes()[16:], uint32(i))
		binary.LittleEndian.PutUint64(context.Bytes()[24:], uint64(i+stamp.Entries))
		const apart = 1_000_000 // at most, two ways to read one clock
		before := now(t) - apart
		r0, err := x.Run(nimble.Event{Context: context.Region(true)})
		if after := now(t) + apart; err != nil || slot.Verdict(r0) != want {
			t.Errorf("verdict %d for handler %d, %v", r0, i, err)
		} else if at := binary.LittleEndian.Uint64(x.Map(stamp.Stamps).Memory().Bytes()[8*i:]); at < before || at > after {
			t.Errorf("message %d came at %d, not between %d and %d", i, at, before, after)
		}
	}
}
