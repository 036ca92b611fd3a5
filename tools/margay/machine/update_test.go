package machine_test

import (
	"strings"
	"testing"

	"margay/tools/margay/margaytest"
)

// Mistakes are refused before anything is built. A machine that is not there has no nodes to
// update.
func TestUpdateRefused(t *testing.T) {
	t.Setenv("MARGAY_DIR", t.TempDir())
	for args, want := range map[string]string{
		"node update":                 "node update: NODE is missing",
		"node update x":               `"x" is not a node`,
		"node update 0 --image=":      "node update: --image is empty",
		"node update 0 --rolling 0":   "--rolling is a number of nodes from 1",
		"node update 0 --timeout -1s": "--timeout a time",
		"node update 0":               "machine up",
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields(args)...)
		margaytest.Wants(t, status, 125, stdout+stderr, want)
	}
}
