package command

import (
	"strings"
	"syscall"
	"testing"

	"margay/cluster/control"
)

func TestParseNode(t *testing.T) {
	for text, want := range map[string]uint32{"0": 0, "2": 2, "node2": 2, "node017": 17} {
		if node, err := ParseNode(text); err != nil || node != want {
			t.Errorf("%q: node %d, %v", text, node, err)
		}
	}
	for _, text := range []string{"", "node", "-1", "nodes", "node1x", "4294967296"} {
		if node, err := ParseNode(text); err == nil || !strings.Contains(err.Error(), "margay nodes") {
			t.Errorf("%q: node %d, %v", text, node, err)
		}
	}
}

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
