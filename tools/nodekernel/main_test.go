package main

import (
	"strings"
	"testing"

	"margay/kernel/abi/node"
)

// Started by hand, it leaves the system as it is: it would mount over the root and withhold keys
// and user namespaces from every process.
func TestRefused(t *testing.T) {
	for _, args := range [][]string{nil, {node.Hosted}, {node.Hosted, "config", "root", "jobinit"}} {
		if err := run(2, args); err == nil || !strings.Contains(err.Error(), "margay machine up starts it") {
			t.Errorf("arguments %q: %v", args, err)
		}
	}
	if err := run(1, []string{"nonsense"}); err == nil || !strings.Contains(err.Error(), `"nonsense"`) {
		t.Errorf("an unknown argument: %v", err)
	}
}
