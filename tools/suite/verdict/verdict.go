// Package verdict reads what go test -json prints, shows what matters of it while it arrives, and sums it up at the end: what
// ran, what failed, what was skipped and why, which results are cached, with which seeds random tests ran, which starts of
// virtual machines were repeated, and what took longest.
//
// A run is good only if it says so: a package without a result, a test without one in a package that passed, a package that ran
// none of its tests, and a go test that ended without a word are failures.
package verdict

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
)

// Suite collects the events of several runs of go test, which may go on side by side. Its methods are safe for concurrent use.
type Suite struct {
	mu       sync.Mutex
	out      io.Writer
	packages []*pkg // in the order of their start
	problems []string
	repeats  []string
}

// New returns an empty suite, which shows what happens on out.
func New(out io.Writer) *Suite { return &Suite{out: out} }

// pkg is a package in one run.
type pkg struct {
	run, path string
	verdict   string // "pass", "fail", or "skip" when it has no tests; empty: none yet
	elapsed   float64
	cached    bool
	output    []string // outside of tests, and not shown
	tests     []*test
	index     map[string]*test
}

// test is a test or a subtest.
type test struct {
	name    string
	verdict string // "pass", "fail" or "skip"; empty: none
	elapsed float64
	waited  float64 // of that, for its turn
	output  []string
	parent  bool // it has subtests
}

// event is a line of go test -json (go doc test2json).
type event struct {
	Action, Package, Test, Output, ImportPath string
	Elapsed                                   float64
}

// Read takes in the output of one go test -json, whose name is run, to its end. Lines that are no events are shown.
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

// Ended notes how a go test ended. One that fails must have said why.
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
	s.problem("%s: go test failed and named no failure: %v", run, err)
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
	if e.Package == "" { // building something
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

// packageOutput shows the closing line of a package, and keeps what else comes outside of tests for the case that it fails.
func (s *Suite) packageOutput(p *pkg, text string) {
	switch {
	case strings.HasPrefix(text, "ok  \t"):
		p.cached = strings.Contains(text, "\t(cached)")
		if strings.Contains(text, "[no tests to run]") {
			s.problem("%s: %s ran no test, and it has some", p.run, p.path)
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
		if found := waited.FindStringSubmatch(e.Output); found != nil {
			t.waited, _ = strconv.ParseFloat(found[1], 64)
		}
	case "pass", "fail", "skip":
		t.verdict, t.elapsed = e.Action, max(e.Elapsed-t.waited, 0)
		switch t.verdict {
		case "fail":
			s.show(p.path, t)
		case "pass":
			t.forget()
		}
	}
}

// forget drops what a test has printed but for its seeds.
func (t *test) forget() {
	t.output = slices.DeleteFunc(t.output, func(line string) bool { return !seed.MatchString(line) })
}

var (
	seed = regexp.MustCompile(`MARGAY_SEED=(\d+)`)
	// repeat is what a test logs of a virtual machine that died before it was up.
	repeat = regexp.MustCompile(`the guest was not up, boot \d+ of|started once more`)
	// waited is what a test logs that waited for others to be over, which is no time of its own.
	waited = regexp.MustCompile(`: waited (\d+\.\d+) s for its turn\n`)
)

// notice looks for what the summary has to say of a line of output.
func (s *Suite) notice(p *pkg, test, text string) {
	if repeat.MatchString(text) {
		s.repeats = append(s.repeats, fmt.Sprintf("%s %s: %s", p.path, test, strings.TrimSpace(text)))
	}
}

// show prints all that a failed test has printed.
func (s *Suite) show(path string, t *test) {
	fmt.Fprintf(s.out, "=== %s %s\n%s", path, t.name, strings.Join(t.output, ""))
	t.forget()
}

// dump prints what a failed package printed outside of tests, and in those that gave no result.
func (s *Suite) dump(p *pkg) {
	for _, t := range p.tests {
		if t.verdict == "" {
			s.show(p.path, t)
		}
	}
	fmt.Fprint(s.out, strings.Join(p.output, ""))
	p.output = nil
}
