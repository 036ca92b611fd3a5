package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The examples for newcomers succeed each time, with more ranks than the host has CPUs.
func TestExamples(t *testing.T) {
	examples(t, 10)
}

func examples(t *testing.T, times int) {
	t.Helper()
	text := filepath.Join(scratch, "words.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("the quick brown fox and the lazy dog\n", 500)), 0o644); err != nil {
		t.Fatal(err)
	}
	var greetings, places []string
	for rank := range 8 {
		greetings = append(greetings, fmt.Sprintf("rank %d of 8 on node %d: hello from rank %d on node %d\n", rank, rank/2, (rank+7)%8, (rank+7)%8/2))
		places = append(places, fmt.Sprintf("hello from rank %d of 8 on node %d, core %d\n", rank, rank/2, rank%2+1))
	}
	histogram := []string{"      1000  the\n", "4000 words, 7 different,"}
	var tests []turnOf
	for _, c := range []struct {
		program string
		args    []string
		want    []string // in any order
		lines   int
	}{
		{"hello", nil, greetings, 8},
		{"hello-c", nil, places, 8},
		{"histogram", []string{text}, histogram, 10},
		{"histogram-c", []string{text}, histogram, 10},
		{"plain", []string{text}, histogram, 8 * 9},
	} {
		tests = append(tests, turnOf{c.program, expect("hosted"), func(t *testing.T, m *machine) {
			for i := range times {
				r := m.run(0, append([]string{"-n", "8", "--with", text, filepath.Join(bin, c.program)}, c.args...)...)
				if n := strings.Count(r.stdout, "\n"); n != c.lines {
					t.Fatalf("run %d: %d lines, not %d: %v", i, n, c.lines, r)
				}
				for _, line := range c.want {
					if !strings.Contains(r.stdout, line) {
						t.Fatalf("run %d: no %q: %v", i, line, r)
					}
				}
			}
		}})
	}
	inTurns(t, tests...)
}

// So does the example that measures, which shares cores and inserts extensions: four jobs of three
// ranks at once.
func TestLatencyEndsWell(t *testing.T) {
	latencyEndsWell(t, 1)
}

func latencyEndsWell(t *testing.T, rounds int) {
	t.Helper()
	m := useRealTime(t)
	for round := range rounds {
		var jobs []*command
		for range m.nodes {
			jobs = append(jobs, m.start("run", "-n", "3", "--per-core", "2", filepath.Join(bin, "latency"), "2", "20"))
		}
		for _, job := range jobs {
			// The cost of a switch is one more line, unless it is lost in noise.
			if r := job.wait(); r.code != 0 || strings.Count(r.stdout, "\n")-strings.Count(r.stdout, "two that compute, ") != 7 || !strings.Contains(r.stdout, " results of computing, 0 not those of an undisturbed run") {
				t.Errorf("round %d: %v", round, r)
			}
		}
	}
}

// The example that make run runs prints only why its machine did not come up, and passes on flags
// for that machine.
func TestDemoWithoutMachine(t *testing.T) {
	text := filepath.Join(scratch, "few.txt")
	if err := os.WriteFile(text, []byte("few words\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for flags, want := range map[string]string{
		"":                                  "margay: there is no substrate \"none\": use qemu, hosted, hosts or metal\n",
		"--boot-timeout 3m --message-queue": "margay: machine up has no --message-queue: margay machine up --help lists its flags\n",
	} {
		cmd := exec.Command("../../examples/histogram/demo", text)
		cmd.Env = append(os.Environ(), "SUBSTRATE=none", "UP_FLAGS="+flags)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		if err := cmd.Run(); err == nil || cmd.ProcessState.ExitCode() != 125 || stderr.String() != want {
			t.Errorf("%q: %v, %q", flags, err, stderr.String())
		}
	}
}
