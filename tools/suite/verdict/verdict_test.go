package verdict

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// events are lines of go test -json of package p.
func events(lines ...string) string {
	var b strings.Builder
	for _, line := range lines {
		b.WriteString(strings.Replace(line, "{", `{"Package":"p",`, 1) + "\n")
	}
	return b.String()
}

const (
	start  = `{"Action":"start"}`
	runA   = `{"Action":"run","Test":"TestA"}`
	passA  = `{"Action":"pass","Test":"TestA","Elapsed":1.5}`
	ok     = `{"Action":"output","Output":"ok  \tp\t2.0s\n"}`
	passed = `{"Action":"pass","Elapsed":2}`
)

func TestSummary(t *testing.T) {
	for name, c := range map[string]struct {
		input   string
		ended   error
		noSkips bool
		good    bool
		shown   string // in the output before the summary
		says    string // in the summary
	}{
		"good":    {input: events(start, runA, passA, ok, passed), good: true, shown: "ok  \tp\t2.0s\n", says: "1 ok (0 of them cached), 0 failed"},
		"longest": {input: events(start, runA, passA, ok, passed), good: true, says: "    1.5 s  run: p TestA\n"},
		"longest without its wait": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"    a_test.go:5: waited 1.2 s for its turn\n"}`, passA, ok, passed),
			good:  true, says: "    0.3 s  run: p TestA\n",
		},
		"longest with its time in a guest": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"    a_test.go:5: took 3.20 s in the guest\n"}`, passA, ok, passed),
			good:  true, says: "    4.7 s  run: p TestA\n",
		},
		"no skips": {input: events(start, runA, passA, ok, passed), good: true, noSkips: true, says: "skipped tests: none\n"},
		"seed": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"    a_test.go:5: MARGAY_SEED=77\n"}`, passA, ok, passed),
			good:  true, says: "  MARGAY_SEED=77  run: p TestA\n",
		},
		"seed of a failure": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"    a_test.go:5: MARGAY_SEED=77\n"}`,
				`{"Action":"fail","Test":"TestA"}`, `{"Action":"fail"}`),
			ended: errors.New("exit status 1"), shown: "MARGAY_SEED=77\n", says: "  MARGAY_SEED=77  run: p TestA\n",
		},
		"seed of a test that was killed": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"    a_test.go:5: MARGAY_SEED=77\n"}`),
			ended: errors.New("signal: killed"), shown: "MARGAY_SEED=77\n", says: "  MARGAY_SEED=77  run: p TestA\n",
		},
		"cached": {
			input: events(start, runA, passA, `{"Action":"output","Output":"ok  \tp\t(cached)\n"}`, passed),
			good:  true, shown: "(cached)", says: "cached results of earlier runs:\n  run: p\n",
		},
		"skip": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"=== RUN   TestA\n"}`,
				`{"Action":"output","Test":"TestA","Output":"    a_test.go:5: needs a moon\n"}`,
				`{"Action":"output","Test":"TestA","Output":"--- SKIP: TestA (0.00s)\n"}`, `{"Action":"skip","Test":"TestA"}`, ok, passed),
			good: true, says: "skipped tests:\n  run: p TestA: needs a moon\n",
		},
		"forbidden skip": {
			input:   events(start, runA, `{"Action":"skip","Test":"TestA"}`, ok, passed),
			noSkips: true, says: "run: p TestA: no reason given\n",
		},
		"repeated start": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"    g.go:5: the guest was not up, boot 1 of 2: oops\n"}`, passA, ok, passed),
			good:  true, says: "repeated starts of virtual machines:\n  p TestA: g.go:5: the guest was not up, boot 1 of 2: oops\n",
		},
		"failure": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"    a_test.go:5: it is red\n"}`,
				`{"Action":"fail","Test":"TestA"}`, `{"Action":"output","Output":"FAIL\tp\t2.0s\n"}`, `{"Action":"fail"}`),
			ended: errors.New("exit status 1"), shown: "it is red\n", says: "failures:\n  run: p\n  run: p TestA\n",
		},
		"panic outside of tests": {
			input: events(start, `{"Action":"output","Output":"panic: in TestMain\n"}`, `{"Action":"fail"}`),
			ended: errors.New("exit status 1"), shown: "panic: in TestMain\n", says: "failures:\n  run: p\n",
		},
		"killed in a test": {
			input: events(start, runA, `{"Action":"output","Test":"TestA","Output":"so far\n"}`),
			ended: errors.New("signal: killed"), shown: "so far\n", says: "run: p: go test ended without a result of it\n",
		},
		"killed without an error": {input: events(start, runA), says: "run: p: go test ended without a result of it\n"},
		"test without a result":   {input: events(start, runA, ok, passed), says: "run: p: TestA gave no result, and the package passed\n"},
		"no tests run": {
			input: events(start, `{"Action":"output","Output":"ok  \tp\t2.0s [no tests to run]\n"}`, passed), says: "p has tests, but ran none\n",
		},
		"no tests there": {
			input: events(start, runA, passA, ok, passed) +
				`{"Action":"output","Package":"q","Output":"?   \tq\t[no test files]\n"}` + "\n" + `{"Action":"skip","Package":"q"}` + "\n",
			good: true, noSkips: true, says: "1 without tests",
		},
		"nothing at all": {ended: errors.New("no such file"), says: "run: go test named no package\n"},
		"exit status":    {input: events(start, runA, passA, ok, passed), ended: errors.New("exit status 1"), says: "go test failed without reporting a failure: exit status 1\n"},
		"does not build": {
			input: `{"ImportPath":"p","Action":"build-output","Output":"a.go:1: syntax error\n"}` + "\n" + events(start, `{"Action":"fail"}`),
			ended: errors.New("exit status 1"), shown: "a.go:1: syntax error\n", says: "failures:\n  run: p\n",
		},
		"not an event": {input: "go: downloading something\n" + events(start, runA, passA, ok, passed), good: true, shown: "go: downloading something\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var shown, summary strings.Builder
			s := New(&shown)
			s.Read("run", strings.NewReader(c.input))
			s.Ended("run", c.ended)
			if got := s.Summary(&summary, c.noSkips); got != c.good {
				t.Errorf("good: %v, want %v", got, c.good)
			}
			if !strings.Contains(shown.String(), c.shown) || !strings.Contains(summary.String(), c.says) {
				t.Errorf("shown:\n%s\nsummary:\n%s", shown.String(), summary.String())
			}
		})
	}
}

// Only tests that failed by the bug of the emulator are run again, whole, and their second run
// counts.
func TestSpoiled(t *testing.T) {
	const machine = `{"Action":"run","Test":"TestB"}` + "\n" + `{"Action":"run","Test":"TestB/qemu"}` + "\n"
	const bug = `{"Action":"output","Test":"TestB/qemu","Output":"Oops:\u0020int3:\u0020\n"}` + "\n"
	const fails = `{"Action":"fail","Test":"TestB/qemu"}` + "\n" + `{"Action":"fail","Test":"TestB"}` + "\n"
	const other = `{"Action":"run","Test":"TestB/hosted"}` + "\n" + `{"Action":"fail","Test":"TestB/hosted"}` + "\n"
	const failed = `{"Action":"fail"}`
	for name, c := range map[string]struct {
		input string
		again []string
		good  bool
	}{
		"by the bug":              {machine + bug + fails, []string{"TestB"}, true},
		"by something else":       {machine + fails, nil, false},
		"by something else, too":  {machine + bug + other + fails, nil, false},
		"another test failed":     {machine + bug + fails + `{"Action":"run","Test":"TestC"}` + "\n" + `{"Action":"fail","Test":"TestC"}`, []string{"TestB"}, false},
		"and the program ended":   {machine + bug + strings.ReplaceAll(bug, "Oops:\\u0020int3:", "panic:") + fails, nil, false},
		"another has no result":   {machine + bug + fails + `{"Action":"run","Test":"TestC"}`, []string{"TestB"}, false},
		"only the package failed": {"", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			var summary strings.Builder
			s := New(&strings.Builder{})
			s.Read("run", strings.NewReader(events(slices.Concat([]string{start, runA, passA}, strings.Fields(c.input), []string{failed})...)))
			s.Ended("run", errors.New("exit status 1"))
			if got := s.Spoiled("run"); !slices.Equal(got, c.again) {
				t.Errorf("%q are run again, want %q", got, c.again)
			}
			if got := s.Summary(&summary, true); got != c.good {
				t.Errorf("good: %v\n%s", got, &summary)
			}
			if listed := strings.Contains(summary.String(), "TestB: a CPU of a guest"); listed != (c.again != nil) {
				t.Errorf("listed: %v\n%s", listed, &summary)
			}
		})
	}
}

// Passed and skipped tests are listed, tests in guests also under their own package.
func TestPassed(t *testing.T) {
	const inside = "TestInGuest/margay/kernel/task/TestFreezeRank"
	s := New(&strings.Builder{})
	s.Read("run", strings.NewReader(events(start, runA, passA, `{"Action":"run","Test":"TestB"}`, `{"Action":"fail","Test":"TestB"}`,
		`{"Action":"run","Test":"TestC"}`, `{"Action":"skip","Test":"TestC"}`,
		`{"Action":"run","Test":"`+inside+`"}`, `{"Action":"pass","Test":"`+inside+`"}`, `{"Action":"fail"}`)))
	want := []string{"margay/kernel/task TestFreezeRank", "p TestA", "p " + inside}
	if got := s.Passed(); !slices.Equal(got, want) {
		t.Errorf("passed: %q, want %q", got, want)
	}
	if got := s.Skipped(); !slices.Equal(got, []string{"p TestC"}) {
		t.Errorf("skipped: %q", got)
	}
}

// All tests are listed by their times, without the time that they waited and without those that
// only have subtests.
func TestTimes(t *testing.T) {
	s := New(&strings.Builder{})
	s.Read("run", strings.NewReader(events(start, `{"Action":"run","Test":"TestA"}`, `{"Action":"pass","Test":"TestA","Elapsed":1}`,
		`{"Action":"run","Test":"TestB"}`, `{"Action":"run","Test":"TestB/x"}`, `{"Action":"fail","Test":"TestB/x","Elapsed":2.5}`,
		`{"Action":"fail","Test":"TestB","Elapsed":2.5}`, `{"Action":"fail"}`)))
	want := []string{"    2.5 s  run: p TestB/x", "    1.0 s  run: p TestA"}
	if got := s.Times(); !slices.Equal(got, want) {
		t.Errorf("times: %q, want %q", got, want)
	}
}
