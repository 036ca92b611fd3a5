// Package ofitest tests the libfabric provider (lib/ofi): which receive gets which message, and the
// protocol under it, are state machines in C, which programs of this package run.
package ofitest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"margay/internal/check"
)

// build compiles a program of testdata. Memory that it reads or writes beyond what it has ends it.
func build(t *testing.T, name string, more ...string) string {
	t.Helper()
	return compile(t, name, append([]string{"-fsanitize=address,undefined"}, more...)...)
}

func compile(t *testing.T, name string, more ...string) string {
	t.Helper()
	program := filepath.Join(t.TempDir(), name)
	// Reports of sanitizers name lines with -g1, too, and it compiles in two thirds of the time.
	args := append([]string{"-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fno-sanitize-recover=all", "-I", "..", "-I", "../../c",
		"-o", program, filepath.Join("testdata", name+".c")}, more...)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// A want is a posted receive, and a came a message that no receive has taken.
type (
	want struct {
		id          int
		tag, ignore uint64
		source      int
	}
	came struct {
		id     int
		tag    uint64
		source int
	}
)

func (w want) fits(m came) bool {
	return (w.source < 0 || w.source == m.source) && (w.tag^m.tag)&^w.ignore == 0
}

// model is the reference: it looks through all of them.
type model struct {
	posted     []want
	unexpected []came
}

func (m *model) peek(w want) (at int) {
	for i, c := range m.unexpected {
		if w.fits(c) {
			return i
		}
	}
	return -1
}

func (m *model) post(w want) string {
	if i := m.peek(w); i >= 0 {
		id := m.unexpected[i].id
		m.unexpected = append(m.unexpected[:i], m.unexpected[i+1:]...)
		return strconv.Itoa(id)
	}
	m.posted = append(m.posted, w)
	return "-"
}

func (m *model) arrive(c came) string {
	for i, w := range m.posted {
		if w.fits(c) {
			m.posted = append(m.posted[:i], m.posted[i+1:]...)
			return strconv.Itoa(w.id)
		}
	}
	m.unexpected = append(m.unexpected, c)
	return "-"
}

// TestMatching compares which message each receive gets with the model.
func TestMatching(t *testing.T) {
	r := rand.New(rand.NewPCG(check.Seed(t), 0))
	var m model
	var input bytes.Buffer
	var expected []string
	masks := []uint64{0, 0, 0, 1, 3, 1 << 63, ^uint64(0), ^uint64(0) - 3}
	some := func() want {
		return want{tag: r.Uint64N(4) | r.Uint64N(2)<<63, ignore: masks[r.IntN(len(masks))], source: r.IntN(4) - 1}
	}
	for id := range 20000 {
		switch r.IntN(8) {
		case 0, 1, 2:
			w := some()
			w.id = id
			fmt.Fprintf(&input, "post %d %x %x %d\n", id, w.tag, w.ignore, w.source)
			expected = append(expected, m.post(w))
		case 3, 4, 5:
			c := came{id: id, tag: r.Uint64N(4) | r.Uint64N(2)<<63, source: r.IntN(3)}
			fmt.Fprintf(&input, "arrive %d %x %d\n", id, c.tag, c.source)
			expected = append(expected, m.arrive(c))
		case 6:
			w := some()
			fmt.Fprintf(&input, "peek %x %x %d\n", w.tag, w.ignore, w.source)
			if i := m.peek(w); i >= 0 {
				expected = append(expected, strconv.Itoa(m.unexpected[i].id))
			} else {
				expected = append(expected, "-")
			}
		case 7:
			if len(m.posted) > 0 {
				i := r.IntN(len(m.posted))
				fmt.Fprintf(&input, "cancel %d\n", m.posted[i].id)
				m.posted = append(m.posted[:i], m.posted[i+1:]...)
			}
		}
	}
	lines := strings.Split(input.String(), "\n")
	cmd := exec.Command(build(t, "match"))
	cmd.Env = append(cmd.Environ(), "ASAN_OPTIONS=detect_leaks=0")
	cmd.Stdin = &input
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	if len(got) != len(expected) {
		t.Fatalf("%d answers, want %d", len(got), len(expected))
	}
	at := 0
	for _, line := range lines {
		if line == "" || strings.HasPrefix(line, "cancel") {
			continue
		}
		if got[at] != expected[at] {
			t.Fatalf("%s: %s, want %s", line, got[at], expected[at])
		}
		at++
	}
}

// lower are limits that a simulation reaches all the time.
var lower = []string{"-DENGINE_CREDITS=3", "-DENGINE_LONG=4", "-DRMA_SLOTS=3", "-DRMA_EVENTS=2"}

const steps = 10000 // of a simulation

// simulate runs a simulation of a state machine in some modes, built with some flags.
func simulate(t *testing.T, name, machine string, flags []string, modes ...string) {
	t.Helper()
	program := build(t, name, append(flags, machine)...)
	seed := check.Seed(t)
	for i := range uint64(check.Rounds(4, 100)) {
		for _, mode := range modes {
			cmd := exec.Command(program, strconv.FormatUint(seed+i, 10), strconv.Itoa(steps), mode)
			cmd.Env = append(cmd.Environ(), "ASAN_OPTIONS=detect_leaks=0")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%s, seed %d: %v: %s", mode, seed+i, err, out)
			}
			t.Logf("%s, seed %d: %s", mode, seed+i, out)
		}
	}
}

// Every message reaches the right receive, whole and once, whatever the order of messages, receives
// and progress; what a rank keeps for others is bounded.
func TestEngines(t *testing.T) { simulate(t, "simulate", "../engine.c", nil, "honest") }

// The same where ranks are at their limits, and messages leave as soon as they can. A rank that
// drops its sends and receives, and goes on, sends no nonsense, and its memory is its own at once.
// No receive waits for a message that it has dropped. A rank that sends bytes at random disturbs
// neither the memory nor the messages of the others.
func TestLimits(t *testing.T) {
	simulate(t, "simulate", "../engine.c", lower, "honest", "reopen", "hostile")
}

// Every read and write of other ranks' memory takes effect once, and where it may, or is refused.
func TestRemote(t *testing.T) { simulate(t, "simulate_rma", "../rma.c", nil, "honest") }

// The same where ranks are at their limits. A rank that drops its operations, and goes on, sends no
// nonsense, and owes the others nothing in the end. A rank that sends bytes at random changes no
// memory but that which it may write.
func TestRemoteLimits(t *testing.T) {
	simulate(t, "simulate_rma", "../rma.c", lower, "honest", "reopen", "hostile")
}

// provider are the sources of the provider, but for the library, which programs play.
var provider = []string{"../provider.c", "../endpoint.c", "../onesided.c", "../region.c", "../atomic.c", "../queue.c", "../vector.c", "../engine.c",
	"../rma.c", "-lfabric"}

// Several threads use one endpoint, under the thread sanitizer.
func TestThreads(t *testing.T) {
	program := compile(t, "threads", append([]string{"-fsanitize=thread"}, provider...)...)
	cmd := exec.Command(program, "4", strconv.Itoa(check.Rounds(300, 20000)))
	cmd.Dir = t.TempDir() // libraries of hardware leave files where a program crashes
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "threads: ok\n" {
		t.Errorf("%v: %s", err, out)
	}
}

// A rank copies data once from where another one says that they are, but neither from its own
// memory nor from a process without the mark, nor from a place that was withdrawn.
func TestPlaces(t *testing.T) {
	program := compile(t, "place", provider...)
	cmd := exec.Command(program)
	cmd.Dir = t.TempDir()
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.HasPrefix(string(out), "place: ok") {
		t.Errorf("%v: %s", err, out)
	}
	t.Log(string(out))
}
