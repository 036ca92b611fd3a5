package main

import (
	"strings"
	"testing"
)

// Only the first process of a PID namespace may become a job init, and only for a node kernel of
// the same build.
func TestRefused(t *testing.T) {
	for _, k := range []struct {
		pid  int
		args []string
		want string
	}{
		{2, []string{version}, "node kernels start it"},
		{1, nil, "node kernels start it"},
		{1, []string{version, "group", "ahead", "more"}, "node kernels start it"},
		{1, []string{"v9", "group"}, "version unknown was started by a node kernel of version v9; use the jobinit and the nodekernel of one build"},
	} {
		if err := run(k.pid, k.args); err == nil || !strings.Contains(err.Error(), k.want) {
			t.Errorf("process %d, arguments %q: %v", k.pid, k.args, err)
		}
	}
}
