package bench

import (
	"fmt"
	"regexp"
	"testing"
)

// Results are lines that all runs of the peer have. Figures of time are none, and the order and the
// names of hosts do not count.
func TestResults(t *testing.T) {
	for name, c := range map[string]struct {
		compared     string
		ours, peers  []string
		verdict, err string
	}{
		"order, hosts and times": {
			ours:    []string{"rank 1 on node1\nrank 0 on node0\nin 9 s\n"},
			peers:   []string{"rank 0 on here\nrank 1 on here\nin 3 s\n", "rank 0 on here\nin 4 s\nrank 1 on here\n"},
			verdict: "2 of 3 lines are the same in all runs under mpiexec, and all runs under Margay have them",
		},
		"another result": {
			ours: []string{"sum 3\n", "sum 4\n"}, peers: []string{"sum 3\n", "sum 3\n"},
			err: `a run under Margay lacks a line that all runs under mpiexec have: "sum 3"`,
		},
		"a line once that is there twice": {
			ours: []string{"ok\nno\n"}, peers: []string{"ok\nok\n"},
			err: `a run under Margay lacks a line that all runs under mpiexec have: "ok"`,
		},
		"a line more": {
			ours: []string{"ok\nerror\n"}, peers: []string{"ok\n", "ok\n"},
			err: "a run under Margay has 2 lines, and each under mpiexec has 1",
		},
		"as many lines as it likes": {
			ours: []string{"ok\n1\n2\n3\n"}, peers: []string{"ok\n1\n", "ok\n"},
			verdict: "1 of 2 lines are the same in all runs under mpiexec, and all runs under Margay have them",
		},
		"no part of a name": {
			ours: []string{"node1 is there\n"}, peers: []string{"nowhere is there\n"},
			err: `a run under Margay lacks a line that all runs under mpiexec have: "nowhere is there"`,
		},
		"lines that are compared": {
			compared: "^sum", ours: []string{"sum 3\n0 ticks\n"}, peers: []string{"sum 3\n1 ticks\n"},
			verdict: "1 of 1 lines are the same in all runs under mpiexec, and all runs under Margay have them",
		},
		"no run of the peer": {
			ours: []string{"ok\n"}, verdict: "results are not compared: there is no run of both that has ended",
		},
		"no run of ours": {
			peers: []string{"ok\n"}, verdict: "results are not compared: there is no run of both that has ended",
		},
	} {
		r := newResults("here", regexp.MustCompile(c.compared))
		for _, output := range c.ours {
			r.ours = append(r.ours, r.lines(output))
		}
		for _, output := range c.peers {
			r.peers = append(r.peers, r.lines(output))
		}
		verdict, err := r.verdict()
		if verdict != c.verdict || c.err == "" && err != nil || c.err != "" && fmt.Sprint(err) != c.err {
			t.Errorf("%s: %q, %v", name, verdict, err)
		}
	}
}
