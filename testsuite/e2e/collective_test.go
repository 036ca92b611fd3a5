package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"margay/internal/check"
)

// collectivePrograms compiles the ranks of the libraries' contract suite, in C and in Go.
func collectivePrograms(t *testing.T) (inC, inGo string) {
	t.Helper()
	inC, inGo = filepath.Join(t.TempDir(), "c"), filepath.Join(t.TempDir(), "go")
	const source = "../../lib/c/ctest/testdata/"
	build := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", inGo, "margay/lib/margay")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	for _, c := range []*exec.Cmd{
		exec.Command("gcc", "-O2", "-static", "-I", "../../lib/c", source+"rank.c", source+"collect.c", filepath.Join(bin, "libmargay.a"), "-lm", "-o", inC),
		build,
	} {
		if out, err := c.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	return inC, inGo
}

// Ranks in C and in Go make random collective calls together, with ranks of their node and of
// others, and all get the same results; and when one ends instead, the job ends and says so.
func TestCollectives(t *testing.T) {
	inC, inGo := collectivePrograms(t)
	seed := check.Seed(t)
	onBoth(t, func(t *testing.T, m *machine) {
		script := fmt.Sprintf("case $MARGAY_RANK in 0|3) exec %s collect %d 60 ;; *) exec %s rank collect %[2]d 60 ;; esac", inC, seed, inGo)
		r := m.run(0, "-n", "4", "--with", inC, "--with", inGo, "sh", "-c", script)
		lines := strings.Fields(r.stdout)
		if len(lines) != 4 || strings.Count(r.stdout, lines[0]) != 4 {
			t.Errorf("the results are not equal: %v", r)
		}
		r = m.run(125, "-n", "4", "--with", inC, "--with", inGo, "sh", "-c", "if [ $MARGAY_RANK = 3 ]; then exit 0; fi; "+script)
		if !strings.Contains(r.stderr, "to rank 3") || !strings.Contains(r.stderr, "which has ended") {
			t.Errorf("the job does not say that rank 3 has ended: %v", r)
		}
	})
}
