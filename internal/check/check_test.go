package check

import (
	"os"
	"strings"
	"testing"
	"time"
)

// recorder is a test that records its failures.
type recorder struct {
	testing.TB
	said     strings.Builder
	cleanups []func()
}

func (r *recorder) Helper()                   {}
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Cleanup(f func())          { r.cleanups = append(r.cleanups, f) }
func (r *recorder) Fatal(args ...any)         { r.said.WriteString("fatal"); panic(r) }
func (r *recorder) Fatalf(f string, _ ...any) { r.said.WriteString(f); panic(r) }

// fails reports whether f makes the test fail.
func (r *recorder) fails(f func()) (failed bool) {
	defer func() {
		if v := recover(); v != nil && v != any(r) {
			panic(v)
		}
		failed = r.said.Len() > 0
	}()
	f()
	return false
}

func TestAwait(t *testing.T) {
	n := 0
	Await(t, "third look", func() bool { n++; return n == 3 })
	r := &recorder{TB: t}
	if !r.fails(func() { AwaitFor(r, time.Millisecond, "end", func() bool { return false }) }) {
		t.Error("a wait that timed out did not fail the test")
	}
}

func TestSeed(t *testing.T) {
	t.Setenv("MARGAY_SEED", "42")
	if seed := Seed(t); seed != 42 {
		t.Errorf("seed %d", seed)
	}
	t.Setenv("MARGAY_SEED", "x")
	if r := (&recorder{TB: t}); !r.fails(func() { Seed(r) }) {
		t.Error("a seed that is not a number was accepted")
	}
}

func TestLeaks(t *testing.T) {
	r := &recorder{TB: t}
	Leaks(r)
	if r.fails(func() { r.cleanups[0]() }) {
		t.Errorf("a test that leaves nothing fails: %s", r.said.String())
	}
	patience = 50 * time.Millisecond
	defer func() { patience = leakPatience }()
	r = &recorder{TB: t}
	Leaks(r)
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !r.fails(func() { r.cleanups[0]() }) {
		t.Error("a descriptor that was left open did not fail the test")
	}
}
