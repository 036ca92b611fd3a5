package ctest

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"margay/internal/check"
	"margay/lib/ranktest"
)

func TestContract(t *testing.T) {
	source, err := os.ReadFile("testdata/rank.c")
	if err != nil {
		t.Fatal(err)
	}
	program := build(t, string(source), "../margay.c")
	ranktest.Suite(t, check.Seed(t), func(ctx context.Context, mode ...string) *exec.Cmd { return exec.CommandContext(ctx, program, mode...) })
}

// What the library cannot do without a job it says, and does not crash.
func TestWithoutInit(t *testing.T) {
	source, err := os.ReadFile("testdata/noinit.c")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(build(t, string(source), "../margay.c")).CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
