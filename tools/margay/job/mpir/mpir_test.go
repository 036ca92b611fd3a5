package mpir

import (
	"testing"
	"unsafe"
)

// The table is what a debugger reads: structures of C, by rank.
func TestPublish(t *testing.T) {
	if size, host, program, pid := unsafe.Sizeof(procdesc{}), unsafe.Offsetof(procdesc{}.host_name), unsafe.Offsetof(procdesc{}.executable_name), unsafe.Offsetof(procdesc{}.pid); size != 24 || host != 0 || program != 8 || pid != 16 {
		t.Fatalf("MPIR_PROCDESC has %d bytes, its parts are at %d, %d and %d", size, host, program, pid)
	}
	if Debugged() || debugState != 0 {
		t.Error("a debugger, before one has come")
	}
	beingDebugged = 1
	defer func() { beingDebugged = 0 }()
	if !Debugged() {
		t.Error("no debugger")
	}
	want := []Process{{"node0", "/bin/a", 12}, {"", "/b", 7}}
	Publish(want)
	if debugState != 1 || proctableSize != 2 {
		t.Fatalf("state %d, %d ranks", debugState, proctableSize)
	}
	for i, r := range unsafe.Slice(proctable, proctableSize) {
		if got := (Process{goString(r.host_name), goString(r.executable_name), int(r.pid)}); got != want[i] {
			t.Errorf("rank %d is %v, want %v", i, got, want[i])
		}
	}
}

// goString reads up to the zero byte.
func goString(p *byte) (s string) {
	for ; *p != 0; p = (*byte)(unsafe.Add(unsafe.Pointer(p), 1)) {
		s += string(rune(*p))
	}
	return s
}
