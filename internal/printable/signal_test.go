package printable

import (
	"syscall"
	"testing"
)

func TestSignal(t *testing.T) {
	names := map[syscall.Signal]string{
		syscall.SIGTERM: "SIGTERM", 32: "signal 32", 34: "SIGRTMIN", 35: "SIGRTMIN+1", 64: "SIGRTMIN+30", 65: "signal 65", 0: "signal 0",
	}
	for sig, want := range names {
		if got := Signal(sig); got != want {
			t.Errorf("%d is %s, not %s", int(sig), got, want)
		}
	}
	for sig := syscall.Signal(1); sig < 65; sig++ {
		if got := ParseSignal(Signal(sig)); got != sig && sig != 32 && sig != 33 {
			t.Errorf("%s is %d, not %d", Signal(sig), int(got), int(sig))
		}
	}
	for name, want := range map[string]syscall.Signal{
		"SIGRTMAX": 64, "SIGRTMAX-1": 63, "SIGRTMIN-1": 0, "SIGRTMAX+1": 0, "SIGRTMIN+": 0, "SIGRTMIN2": 0, "SIGRTMIN+x": 0, "SIGNO": 0, "": 0,
	} {
		if got := ParseSignal(name); got != want {
			t.Errorf("%q is %d, not %d", name, int(got), int(want))
		}
	}
}
