//go:build amd64 || arm64

package direct

import (
	"testing"
	"unsafe"

	"margay/nimble/engine"
)

// TestOffsets checks the offsets in structs of package engine that handlers
// assume. Offsets in this package's structs come from the compiler (go_asm.h).
func TestOffsets(t *testing.T) {
	var w engine.Window
	var f engine.Frame
	for name, c := range map[string]struct{ got, want uintptr }{
		"Window":      {unsafe.Sizeof(w), windowSize},
		"Window.Base": {unsafe.Offsetof(w.Base), 0},
		"Limit":       {unsafe.Offsetof(w.Limit), offLimit},
		"Limit[1]":    {unsafe.Sizeof(w.Limit[0]), 8},
		"Frame":       {unsafe.Sizeof(f), frameSize},
		"Return":      {unsafe.Offsetof(f.Return), offReturn},
		"Saved":       {unsafe.Offsetof(f.Saved), offSaved},
		"FP":          {unsafe.Offsetof(f.FP), offFP},
		"end":         {unsafe.Offsetof(cpu{}.reads.end), 8},
		"cpu.end":     {unsafe.Offsetof(cpu{}.end), 0},
	} {
		if c.got != c.want {
			t.Errorf("%s is at %d, the handlers say %d", name, c.got, c.want)
		}
	}
	if scratch := unsafe.Sizeof(engine.Machine{}.Scratch); unsafe.Sizeof(cpu{}) > scratch {
		t.Errorf("a cpu of %d bytes in a scratch memory of %d", unsafe.Sizeof(cpu{}), scratch)
	}
}

// TestEveryHandlerHasAnAddress looks for gaps in the table.
func TestEveryHandlerHasAnAddress(t *testing.T) {
	seen := make(map[uintptr]int)
	for n, addr := range handlers() {
		if other, ok := seen[addr]; ok || addr == 0 {
			t.Fatalf("handler %d is at %#x, and so is %d", n, addr, other)
		}
		seen[addr] = n
	}
}
