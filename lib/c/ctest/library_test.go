package ctest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"margay/internal/check"
	"margay/lib/ranktest"
)

// library is the source of the library.
var library = []string{"../margay.c", "../collective.c", "../group.c", "../window.c", "../commit.c"}

func TestContract(t *testing.T) {
	source, err := os.ReadFile("testdata/rank.c")
	if err != nil {
		t.Fatal(err)
	}
	program := command(build(t, string(source), append([]string{"testdata/collect.c", "testdata/windows.c", "testdata/commit.c"}, library...)...))
	ranktest.Suite(t, check.Seed(t), program)
	t.Run("forked", func(t *testing.T) {
		k := ranktest.Start(t, program, "forked")
		k.Greet()
		if out, _ := k.Ended(0); out != "a forked process does not have its parent's place in the job" {
			t.Errorf("it says %s", out)
		}
	})
}

// command returns commands that run a program.
func command(program string) ranktest.Program {
	return func(ctx context.Context, mode ...string) *exec.Cmd { return exec.CommandContext(ctx, program, mode...) }
}

// Ranks with this library and Go ranks make collective calls together.
func TestMixed(t *testing.T) {
	source, err := os.ReadFile("testdata/rank.c")
	if err != nil {
		t.Fatal(err)
	}
	inC := build(t, string(source), append([]string{"testdata/collect.c", "testdata/windows.c", "testdata/commit.c"}, library...)...)
	inGo := filepath.Join(t.TempDir(), "rank")
	if out, err := exec.Command("go", "test", "-c", "-o", inGo, "margay/lib/margay").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seed, goes := check.Seed(t), func(ctx context.Context, mode ...string) *exec.Cmd {
		return exec.CommandContext(ctx, inGo, append([]string{"rank"}, mode...)...)
	}
	t.Run("collectives", func(t *testing.T) { ranktest.Collectives(t, seed, command(inC), goes) })
	t.Run("commits", func(t *testing.T) { ranktest.Commits(t, command(inC), goes) })
	t.Run("windows", func(t *testing.T) { ranktest.Windows(t, seed, command(inC), goes) })
}

// What the library cannot do without a job it says, and does not crash.
func TestWithoutInit(t *testing.T) {
	source, err := os.ReadFile("testdata/noinit.c")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(build(t, string(source), library...)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
