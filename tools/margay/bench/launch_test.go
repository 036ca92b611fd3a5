package bench

import (
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/tools/margay/command"
)

// Wrong flags are refused before anything is measured.
func TestLaunchFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"--against LAM: it is one of MPICH hydra, pdsh, Slurm, fork and exec":            {"--against", "LAM"},
		"--nodes 0: a machine has 1 to ":                                                 {"--nodes", "0"},
		"--rounds 3, 2: it is one number from 1, or one for each of the 3 in --nodes":    {"--rounds", "3,2"},
		"--rounds 3, 0: it is one number from 1, or one for each of the 2 in --nodes":    {"--nodes", "1,2", "--rounds", "3,0"},
		"--rounds 3, 2, 1: it is one number from 1, or one for each of the 2 in --nodes": {"--nodes", "1,2", "--rounds", "3,2,1"},
		"--sizes 0: a program has 1 to ":                                                 {"--sizes", "0"},
		"--jobs -1: a turn has 1 to ":                                                    {"--jobs", "-1"},
		"--pause 0s: it must be more than 0":                                             {"--pause", "0"},
	} {
		c := commands{new(command.App)}.benchLaunchCommand()
		c.SetArgs(args)
		c.SilenceErrors, c.SilenceUsage = true, true
		if err := c.Execute(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", args, err)
		}
	}
}

// Each number of nodes has its rounds. Many jobs have as many as the first.
func TestLaunchRounds(t *testing.T) {
	b := &launchBench{launchFlags: launchFlags{nodes: []int{8, 1000}, rounds: []int{9, 3}, sizes: []int{12}, jobs: 50}}
	var got []int
	for _, p := range b.places() {
		got = append(got, p.nodes, p.rounds, p.jobs, len(p.works))
	}
	if want := []int{8, 9, 0, 2, 1000, 3, 0, 2, 1, 9, 50, 1}; !slices.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

// Turns on one node begin after the pause. Nodes that prepare in turns must be at rest for longer
// than the time between two of them.
func TestRestWindow(t *testing.T) {
	m := new(benchMachine)
	const pause = 500 * time.Millisecond
	if r := m.rest(1, pause); r.Window != pause {
		t.Errorf("1 node: %v", r.Window)
	}
	many := 1000 * runtime.NumCPU()
	if r := m.rest(many, pause); r.Window <= 2*pause || r.Patience < time.Minute {
		t.Errorf("%d nodes: %v, %v", many, r.Window, r.Patience)
	}
}
