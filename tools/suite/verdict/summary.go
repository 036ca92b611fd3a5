package verdict

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"
	"strings"
)

// Numbers of the longest packages and tests in the summary.
const (
	longestPackages = 10
	longestTests    = 25
)

// Summary prints the summary of all runs, and reports whether all tests passed. With noSkips a
// skipped test is a failure.
func (s *Suite) Summary(out io.Writer, noSkips bool) (good bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	failures := slices.Clone(s.problems)
	for _, p := range s.packages {
		if p.verdict == "fail" {
			failures = append(failures, fmt.Sprintf("%s: %s", p.run, p.path))
		}
		for _, t := range p.tests {
			if t.verdict == "fail" {
				failures = append(failures, fmt.Sprintf("%s: %s %s", p.run, p.path, t.name))
			}
		}
	}
	skips := s.skips()
	section(out, "longest packages", s.longest(longestPackages, packageTimes))
	section(out, "longest tests", s.longest(longestTests, testTimes))
	section(out, "seeds of random tests", s.seeds())
	section(out, "cached results of earlier runs", s.cached())
	section(out, "repeated starts of virtual machines", s.repeats)
	section(out, "skipped tests", skips)
	section(out, "failures", failures)
	fmt.Fprintf(out, "\nsuite: %s\n", s.counts())
	if noSkips && len(skips) > 0 {
		fmt.Fprintln(out, "suite: tests were skipped, which CI does not allow")
		return false
	}
	return len(failures) == 0
}

// section prints lines below a title, or "none".
func section(out io.Writer, title string, lines []string) {
	if len(lines) == 0 {
		fmt.Fprintf(out, "\n%s: none\n", title)
		return
	}
	fmt.Fprintf(out, "\n%s:\n", title)
	for _, line := range lines {
		fmt.Fprintf(out, "  %s\n", line)
	}
}

// span is the duration of a package or test.
type span struct {
	seconds float64
	what    string
}

func packageTimes(p *pkg) []span { return []span{{p.elapsed, p.run + ": " + p.path}} }

func testTimes(p *pkg) (spans []span) {
	for _, t := range p.tests {
		if !t.parent {
			spans = append(spans, span{t.elapsed, p.run + ": " + p.path + " " + t.name})
		}
	}
	return spans
}

// longest returns the n longest spans of packages with results that are not cached.
func (s *Suite) longest(n int, of func(*pkg) []span) (lines []string) {
	var all []span
	for _, p := range s.packages {
		if !p.cached {
			all = append(all, of(p)...)
		}
	}
	slices.SortStableFunc(all, func(a, b span) int { return cmp.Compare(b.seconds, a.seconds) })
	for _, x := range all[:min(n, len(all))] {
		lines = append(lines, fmt.Sprintf("%7.1f s  %s", x.seconds, x.what))
	}
	return lines
}

// Times returns the tests of this run with their times, as in the summary, the longest first.
func (s *Suite) Times() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.longest(math.MaxInt, testTimes)
}

func (s *Suite) seeds() (lines []string) {
	for _, p := range s.packages {
		for _, t := range p.tests {
			for _, line := range t.output {
				if found := seed.FindString(line); found != "" {
					lines = append(lines, fmt.Sprintf("%s  %s: %s %s", found, p.run, p.path, t.name))
				}
			}
		}
	}
	return lines
}

func (s *Suite) cached() (lines []string) {
	for _, p := range s.packages {
		if p.cached {
			lines = append(lines, p.run+": "+p.path)
		}
	}
	return lines
}

// where matches the file and line of a log line.
var where = regexp.MustCompile(`^\s*\S+\.go:\d+: `)

// skips returns each skipped test with its output as the reason.
func (s *Suite) skips() (lines []string) {
	for _, p := range s.packages {
		for _, t := range p.tests {
			if t.verdict != "skip" {
				continue
			}
			var words []string
			for _, line := range t.output {
				if !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(strings.TrimSpace(line), "--- ") {
					words = append(words, strings.TrimSpace(where.ReplaceAllString(line, "")))
				}
			}
			lines = append(lines, fmt.Sprintf("%s: %s %s: %s", p.run, p.path, t.name, cmp.Or(strings.Join(words, " "), "no reason given")))
		}
	}
	return lines
}

func (s *Suite) counts() string {
	packages, tests := make(map[string]int), make(map[string]int)
	cached := 0
	for _, p := range s.packages {
		packages[p.verdict]++
		if p.cached {
			cached++
		}
		for _, t := range p.tests {
			tests[t.verdict]++
		}
	}
	return fmt.Sprintf("packages: %d ok (%d of them cached), %d failed, %d without tests; tests and subtests: %d passed, %d failed, %d skipped, %d without a result",
		packages["pass"], cached, packages["fail"], packages["skip"], tests["pass"], tests["fail"], tests["skip"], tests[""])
}

// inGuest matches a test that ran inside a guest: the outer test, then package and test inside.
var inGuest = regexp.MustCompile(`^Test\w*/(margay/.+?)/(Test\w+.*)$`)

// Passed returns the tests that passed, in this run or with a cached result, as "PACKAGE TEST". A
// test that ran inside a guest is also listed under its own package.
func (s *Suite) Passed() []string { return s.named("pass") }

// Skipped returns the skipped tests in the form of Passed.
func (s *Suite) Skipped() []string { return s.named("skip") }

func (s *Suite) named(verdict string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var lines []string
	for _, p := range s.packages {
		for _, t := range p.tests {
			if t.verdict != verdict {
				continue
			}
			lines = append(lines, p.path+" "+t.name)
			if inside := inGuest.FindStringSubmatch(t.name); inside != nil {
				lines = append(lines, inside[1]+" "+inside[2])
			}
		}
	}
	slices.Sort(lines)
	return slices.Compact(lines)
}
