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

// library returns the objects of the library.
func library(t *testing.T) []string {
	t.Helper()
	return objects(t, "../margay.c", "../collective.c", "../group.c", "../window.c", "../commit.c")
}

// rank returns the program for the tests of package ranktest, in C.
func rank(t *testing.T) ranktest.Program {
	t.Helper()
	source, err := os.ReadFile("testdata/rank.c")
	if err != nil {
		t.Fatal(err)
	}
	return command(build(t, string(source), append(library(t), "testdata/collect.c", "testdata/windows.c", "testdata/commit.c")...))
}

func TestContract(t *testing.T) {
	program := rank(t)
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
	inC := rank(t)
	inGo := filepath.Join(t.TempDir(), "rank")
	// Like the other programs of the suite, so that nothing is compiled for it alone.
	cmd := exec.Command("go", "test", "-c", "-ldflags=-s -w", "-o", inGo, "margay/lib/margay")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	seed, goes := check.Seed(t), func(ctx context.Context, mode ...string) *exec.Cmd {
		return exec.CommandContext(ctx, inGo, append([]string{"rank"}, mode...)...)
	}
	t.Run("collectives", func(t *testing.T) { ranktest.Collectives(t, seed, inC, goes) })
	t.Run("commits", func(t *testing.T) { ranktest.Commits(t, inC, goes) })
	t.Run("windows", func(t *testing.T) { ranktest.Windows(t, seed, inC, goes) })
}

// What the library cannot do without a job it says, and does not crash.
func TestWithoutInit(t *testing.T) {
	source, err := os.ReadFile("testdata/noinit.c")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(build(t, string(source), library(t)...)).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
