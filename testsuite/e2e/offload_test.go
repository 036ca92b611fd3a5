package e2e

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// An all-reduce in the node kernels gives the same results as the library's, in C and in Go, for
// ranks with cores of their own and ranks that share them. It leaves no extension behind.
func TestOffload(t *testing.T) {
	inTurns(t, turnOf{"hosted", expect("hosted"), func(t *testing.T, m *machine) {
		for _, args := range [][]string{{"-n", "4"}, {"-n", "10", "--ppn", "5"}} {
			var fingerprints []string
			for _, program := range []string{"offload", "offload-c"} {
				r := m.run(0, append(args, filepath.Join(bin, program), "20")...)
				line := regexp.MustCompile(`(?m)^20 all-reduces of \d+ ranks, nodes: 2, equal results, fingerprint (.*)$`).FindStringSubmatch(r.stdout)
				if line == nil || !strings.Contains(r.stdout, "\nextension ") {
					t.Fatal(r)
				}
				fingerprints = append(fingerprints, line[1])
			}
			if fingerprints[0] != fingerprints[1] {
				t.Errorf("%q: the two programs have the fingerprints %q", args, fingerprints)
			}
		}
		if list := m.margay("ext", "list").stdout; strings.Contains(list, " active") {
			t.Errorf("extensions are left:\n%s", list)
		}
	}})
}
