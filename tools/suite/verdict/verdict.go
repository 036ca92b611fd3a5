// Package verdict reads the output of go test -json, prints the important lines as they arrive, and
// prints a summary at the end: numbers of tests, failures, skipped tests with their reasons, cached
// results, seeds of random tests, repeated starts of virtual machines, and the longest tests.
//
// Success must be explicit. These count as failures: a package without a result, a test without a
// result in a package that passed, a package that ran none of its tests, and a go test that ended
// without output.
package verdict

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Suite collects the events of several runs of go test, which may run in parallel. Its methods are
// safe for concurrent use.
type Suite struct {
	mu       sync.Mutex
	out      io.Writer
	packages []*pkg // in the order of their start
	problems []string
	repeats  []string
}

// New returns an empty suite, which prints progress and failures to out.
func New(out io.Writer) *Suite { return &Suite{out: out} }

// pkg is a package in one run.
type pkg struct {
	run, path string
	verdict   string // "pass", "fail", or "skip" if it has no tests; empty: none yet
	elapsed   float64
	cached    bool
	output    []string // outside of tests, not yet printed
	tests     []*test
	index     map[string]*test
}

// test is a test or a subtest.
type test struct {
	name    string
	verdict string // "pass", "fail" or "skip"; empty: none
	elapsed float64
	waited  float64 // seconds that it waited for its turn, which elapsed is without
	inside  float64 // seconds that it took inside a guest, which elapsed is with
	output  []string
	parent  bool // it has subtests
	oops    bool // its log has a known bug of the emulator
	panics  bool // it ended the test program, so later tests did not run
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// Read reads the output of the go test -json called run to its end. Lines that are not events are
// printed.
func (s *Suite) Read(run string, in io.Reader) {
	found := make(map[string]*pkg)
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			s.line(run, found, line)
		}
		if err != nil {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(found) == 0 {
		s.problem("%s: go test named no package", run)
	}
	for _, p := range s.packages {
		if p == found[p.path] && p.verdict == "" {
			p.verdict = "fail"
			s.dump(p)
			s.problem("%s: %s: go test ended without a result of it", run, p.path)
		}
	}
}

// Ended records the end of a go test. A failed one must have reported a failure.
func (s *Suite) Ended(run string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		return
	}
	for _, p := range s.packages {
		if p.run == run && p.verdict == "fail" {
			return
		}
	}
	s.problem("%s: go test failed without reporting a failure: %v", run, err)
}

func (s *Suite) problem(format string, args ...any) {
	s.problems = append(s.problems, fmt.Sprintf(format, args...))
}

func (s *Suite) line(run string, found map[string]*pkg, line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var e event
	if err := json.Unmarshal([]byte(line), &e); err != nil || e.Action == "" {
		fmt.Fprint(s.out, line)
		return
	}
	if e.Package == "" { // from a build
		if e.Action == "build-output" {
			fmt.Fprint(s.out, e.Output)
		}
		return
	}
	p := found[e.Package]
	if p == nil {
		p = &pkg{run: run, path: e.Package, index: make(map[string]*test)}
		found[e.Package] = p
		s.packages = append(s.packages, p)
	}
	if e.Test == "" {
		s.packageEvent(p, e)
	} else {
		s.testEvent(p, e)
	}
}

func (s *Suite) packageEvent(p *pkg, e event) {
	switch e.Action {
	case "output":
		s.packageOutput(p, e.Output)
	case "pass", "fail", "skip":
		p.verdict, p.elapsed = e.Action, e.Elapsed
		if p.verdict == "fail" {
			s.dump(p)
		}
		for _, t := range p.tests {
			if t.verdict == "" && p.verdict == "pass" {
				s.problem("%s: %s: %s gave no result, and the package passed", p.run, p.path, t.name)
			}
		}
	}
}

// packageOutput prints the closing line of a package, and keeps other output outside of tests in
// case the package fails.
func (s *Suite) packageOutput(p *pkg, text string) {
	switch {
	case strings.HasPrefix(text, "ok  \t"):
		p.cached = strings.Contains(text, "\t(cached)")
		if strings.Contains(text, "[no tests to run]") {
			s.problem("%s: %s has tests, but ran none", p.run, p.path)
		}
		fmt.Fprint(s.out, text)
	case strings.HasPrefix(text, "FAIL\t"), strings.HasPrefix(text, "?   \t"):
		fmt.Fprint(s.out, text)
	default:
		p.output = append(p.output, text)
		s.notice(p, "", text)
	}
}

func (s *Suite) testEvent(p *pkg, e event) {
	t := p.index[e.Test]
	if t == nil {
		t = &test{name: e.Test}
		p.index[e.Test] = t
		p.tests = append(p.tests, t)
		for at, c := range e.Test {
			if outer := p.index[e.Test[:at]]; c == '/' && outer != nil {
				outer.parent = true
			}
		}
	}
	switch e.Action {
	case "output":
		t.output = append(t.output, e.Output)
		s.notice(p, e.Test, e.Output)
		t.oops = t.oops || oops.MatchString(e.Output)
		t.panics = t.panics || panics.MatchString(e.Output)
		seconds(waited, e.Output, &t.waited)
		seconds(inside, e.Output, &t.inside)
	case "pass", "fail", "skip":
		t.verdict, t.elapsed = e.Action, max(e.Elapsed-t.waited, 0)+t.inside
		switch t.verdict {
		case "fail":
			s.show(p.path, t)
		case "pass":
			t.forget()
		}
	}
}

// Spoiled takes out the tests of a run that failed by a known bug of the emulator, with their
// subtests, and returns their names, for another run. The summary lists them.
func (s *Suite) Spoiled(run string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.packages {
		if p.run != run || p.verdict != "fail" {
			continue
		}
		bug := make(map[string]bool) // tests without subtests above failures; true: all are by the bug
		for _, t := range p.tests {
			if top := t.top(); t.verdict == "fail" && !t.parent {
				all, failed := bug[top]
				bug[top] = t.oops && !t.panics && (all || !failed)
			}
		}
		maps.DeleteFunc(bug, func(_ string, all bool) bool { return !all })
		if len(bug) == 0 {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(bug)) {
			names = append(names, name)
			s.repeats = append(s.repeats, fmt.Sprintf("%s %s: a CPU of a guest ran what Linux had replaced; the test ran again", p.path, name))
		}
		p.tests = slices.DeleteFunc(p.tests, func(t *test) bool { return bug[t.top()] })
		if !slices.ContainsFunc(p.tests, func(t *test) bool { return t.verdict == "fail" || t.verdict == "" }) {
			p.verdict = "pass"
		}
	}
	return names
}

// top returns the name of the test that contains this one, or its own.
func (t *test) top() string {
	name, _, _ := strings.Cut(t.name, "/")
	return name
}

// forget drops the output of a test except its seeds.
func (t *test) forget() {
	t.output = slices.DeleteFunc(t.output, func(line string) bool { return !seed.MatchString(line) })
}

var (
	seed = regexp.MustCompile(`MARGAY_SEED=(\d+)`)
	// repeat matches the log line of a virtual machine that died before it was up.
	repeat = regexp.MustCompile(`the guest was not up, boot \d+ of|started once more|it is being restarted`)
	// oops matches the end of a guest whose CPU ran what Linux had replaced, which is a bug of the
	// emulator (see RATIONALE, "Why a private QEMU on Debian 12?").
	oops = regexp.MustCompile(`\bOops: int3: `)
	// panics matches the end of a test program. The log of a test is indented.
	panics = regexp.MustCompile(`^(panic|fatal error): `)
	// waited matches the log line of a test that waited for its turn, which does not count as its
	// time.
	waited = regexp.MustCompile(`: waited (\d+\.\d+) s for its turn\n`)
	// inside matches the log line of a test that ran inside a guest, which took no time outside.
	inside = regexp.MustCompile(`: took (\d+\.\d+) s in the guest\n`)
)

// seconds sets what a log line of the pattern says.
func seconds(pattern *regexp.Regexp, line string, to *float64) {
	if found := pattern.FindStringSubmatch(line); found != nil {
		*to, _ = strconv.ParseFloat(found[1], 64)
	}
}

// notice collects lines of output for the summary.
func (s *Suite) notice(p *pkg, test, text string) {
	if repeat.MatchString(text) {
		s.repeats = append(s.repeats, fmt.Sprintf("%s %s: %s", p.path, test, strings.TrimSpace(text)))
	}
}

// show prints the output of a failed test.
func (s *Suite) show(path string, t *test) {
	fmt.Fprintf(s.out, "=== %s %s\n%s", path, t.name, strings.Join(t.output, ""))
	t.forget()
}

// dump prints the output of a failed package outside of tests, and the output of tests without a
// result.
func (s *Suite) dump(p *pkg) {
	for _, t := range p.tests {
		if t.verdict == "" {
			s.show(p.path, t)
		}
	}
	fmt.Fprint(s.out, strings.Join(p.output, ""))
	p.output = nil
}
