package command

import (
	"syscall"
	"testing"

	"margay/cluster/control"
)

func TestNodeValue(t *testing.T) {
	node := int32(control.None)
	v := nodeValue{&node}
	if v.String() != "" {
		t.Errorf("no node is written %q", v)
	}
	if err := v.Set("3"); err != nil || node != 3 || v.String() != "node3" {
		t.Errorf("3: node %d, %v, written %q", node, err, v)
	}
	if err := v.Set("three"); err == nil {
		t.Error("a word is taken for a node")
	}
}

func TestParseSignal(t *testing.T) {
	for text, want := range map[string]syscall.Signal{"9": syscall.SIGKILL, "usr1": syscall.SIGUSR1, "SIGTERM": syscall.SIGTERM, "64": 64} {
		if sig, err := ParseSignal(text); err != nil || sig != want {
			t.Errorf("%q: %d, %v", text, sig, err)
		}
	}
	for _, text := range []string{"", "0", "65", "-1", "SIGFROB"} {
		if sig, err := ParseSignal(text); err == nil {
			t.Errorf("%q is taken for signal %d", text, sig)
		}
	}
}
