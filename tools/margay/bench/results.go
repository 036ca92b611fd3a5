package bench

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// results are what the ranks of a program have printed in each run, to be compared: figures of time
// differ from run to run, and the order of ranks does.
type results struct {
	host        *regexp.Regexp // names of hosts, which count as equal
	compared    *regexp.Regexp // parts of the lines that are compared
	ours, peers [][]string     // lines of each run, in order
}

// newResults compares outputs of a program whose ranks may print the name of this host, or of
// nodes.
func newResults(host string, compared *regexp.Regexp) *results {
	return &results{host: regexp.MustCompile(`\b(` + regexp.QuoteMeta(host) + `|node\d+)\b`), compared: compared}
}

// lines returns the lines of an output that are compared, in order.
func (r *results) lines(output string) []string {
	lines := strings.Split(strings.TrimSuffix(r.host.ReplaceAllString(output, "HOST"), "\n"), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return !r.compared.MatchString(line) })
	slices.Sort(lines)
	return lines
}

// verdict compares the runs. Lines that all runs of the peers have are results, and each of our
// runs must have them. If all runs of the peers have as many lines, ours must have as many. The
// error is that a run of ours differs.
func (r *results) verdict() (string, error) {
	if len(r.peers) == 0 || len(r.ours) == 0 {
		return "results are not compared: there is no run of both that has ended", nil
	}
	common, same := r.peers[0], true
	for _, lines := range r.peers[1:] {
		same = same && len(lines) == len(r.peers[0])
		common, _ = both(common, lines)
	}
	for _, lines := range r.ours {
		if _, missing := both(common, lines); len(missing) > 0 {
			return "", fmt.Errorf("a run under Margay lacks a line that all runs under mpiexec have: %q", missing[0])
		}
		if same && len(lines) != len(r.peers[0]) {
			return "", fmt.Errorf("a run under Margay has %d lines, and each under mpiexec has %d", len(lines), len(r.peers[0]))
		}
	}
	return fmt.Sprintf("%d of %d lines are the same in all runs under mpiexec, and all runs under Margay have them", len(common), len(r.peers[0])), nil
}

// both returns the lines of a that are also in b, each as often as in both, and those that are not.
// Both are in order.
func both(a, b []string) (common, missing []string) {
	for _, line := range a {
		for len(b) > 0 && b[0] < line {
			b = b[1:]
		}
		if len(b) > 0 && b[0] == line {
			common, b = append(common, line), b[1:]
		} else {
			missing = append(missing, line)
		}
	}
	return common, missing
}
