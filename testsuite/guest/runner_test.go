package guest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/qemu/console"
	"margay/testsuite/guest/report"
)

// endings are packages whose tests end in every possible way.
var endings = []Package{
	{Path: "margay/testsuite/guest/testdata/mixed", All: true, Profile: true},
	{Path: "margay/testsuite/guest/testdata/broken", All: true},
	{Path: "margay/testsuite/guest/testdata/silent", All: true},
	{Path: "margay/testsuite/guest/testdata/hanging", All: true, Timeout: 5 * time.Second},
}

// verdicts checks the results of tests that end in every possible way inside a guest.
func verdicts(t *testing.T, results []Result) {
	wants := []struct {
		tests   string // and their verdicts
		problem string // of the package
	}{
		{"TestGuest pass, TestOutput pass, TestMany pass, TestSub fail, TestSub/good/and_well pass, TestSub/bad fail, " +
			"TestSkipped skip, TestLeavesAProcess pass, TestSleep pass", "exit status 1; left process "},
		{"TestGood pass, TestPanic fail", "exit status 2"},
		{"", "not one test was run"},
		{"TestHangs ", "exit status 2"},
	}
	for i, want := range wants {
		r := results[i]
		tests, rest, err := r.Tests(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, test := range tests {
			got = append(got, test.Name+" "+test.Verdict)
			if test.Name == "TestMany" && test.Took == 0 {
				t.Error("a test that sleeps took no time")
			}
		}
		if all := strings.Join(got, ", "); all != want.tests {
			t.Errorf("%s: tests %s\nwant %s\n%s", r.Package, all, want.tests, r.Output)
		}
		if err := r.Err(tests); err == nil || !strings.Contains(err.Error(), want.problem) {
			t.Errorf("%s: %v, want %s\n%s", r.Package, err, want.problem, rest)
		}
	}
	output := string(results[0].Output)
	for _, want := range []string{
		strings.Repeat("long ", 1000) + "\n", "\x01\x1b[31m\xff ünicode\r\n", "to stderr\n", "no line end", "line 699\n", "this is bad",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if want := "panic: test timed out after 5s"; !strings.Contains(string(results[3].Output), want) {
		t.Errorf("no %q in:\n%s", want, results[3].Output)
	}
	if !strings.HasPrefix(string(results[0].Profile), "mode: ") {
		t.Errorf("coverage profile %q", results[0].Profile)
	}
}

func TestErr(t *testing.T) {
	for verdict, good := range map[string]bool{"pass": true, "fail": false, "skip": false, "": false, "other": false} {
		if err := (Test{Name: "TestX", Verdict: verdict}).Err(); (err == nil) != good {
			t.Errorf("%q: %v", verdict, err)
		}
	}
	one := []Test{{Name: "TestX", Verdict: "pass"}}
	if err := (Result{Ended: true}).Err(one); err != nil {
		t.Error(err)
	}
	if err := (Result{}).Err(one); err == nil {
		t.Error("tests that did not end are well")
	}
}

// A guest has the tests that are compiled for guests alone, and tests of soaks only with their tag.
func TestTagged(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a_test.go": "package x\nfunc TestBoth() {}\n",
		"b_test.go": "//go:build guest\n\n// Words.\npackage x\nfunc TestMain() {}\nfunc TestInside() {}\nfunc (rig) TestNone() {}\nfunc help() {}\n",
		"c_test.go": "//go:build guest && soak && linux\n\npackage x\nfunc TestLong() {}\n",
		"d_test.go": "//go:build !guest\n\npackage x\nfunc TestOutside() {}\n",
		"e_test.go": "//go:build soak\n\npackage x\nfunc TestSoak() {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for tags, want := range map[string]string{"": "TestInside", "soak": "TestInside TestLong"} {
		if names, err := tagged(dir, tags); err != nil || strings.Join(names, " ") != want {
			t.Errorf("with the tags %q: %q, %v", tags, names, err)
		}
	}
	if names, err := tagged(t.TempDir(), ""); err == nil {
		t.Errorf("in a folder without tests: %q", names)
	}
}

// A random test repeats a seed in a guest, too.
func TestPassedOn(t *testing.T) {
	t.Setenv("MARGAY_SEED", "42")
	if words := passedOn(); !slices.Equal(words, []string{"MARGAY_SEED=42"}) {
		t.Errorf("passed on: %q", words)
	}
	os.Unsetenv("MARGAY_SEED")
	if words := passedOn(); len(words) != 0 {
		t.Errorf("passed on without a seed: %q", words)
	}
}

// A guest without the event Done is an error.
func TestNoVerdict(t *testing.T) {
	up, done := report.Event{Kind: report.Up}, report.Event{Kind: report.Done}
	for name, c := range map[string]struct {
		events []report.Event
		noise  string
		want   error
	}{
		"all is well":     {events: []report.Event{up, {Kind: report.Exit}, done}},
		"silence":         {want: errSilent},
		"never up":        {noise: "Kernel panic - not syncing", want: errSilent},
		"died on its way": {events: []report.Event{up, {Kind: report.Output, Data: []byte("=== RUN")}}, want: errSilent},
		"gave up":         {events: []report.Event{up, {Kind: report.Failed, Text: "no room"}}, want: errGaveUp},
		"unknown run":     {events: []report.Event{up, {Kind: report.Exit, Run: 7}}, want: report.ErrDamaged},
		"too fast":        {events: []report.Event{up}, noise: strings.Repeat("noise\n", 2*console.KeepLines), want: report.ErrDamaged},
	} {
		t.Run(name, func(t *testing.T) {
			log, err := console.New(console.Config{})
			if err != nil {
				t.Fatal(err)
			}
			w := report.NewWriter(log)
			for _, e := range c.events {
				if err := w.Write(e); err != nil {
					t.Fatal(err)
				}
			}
			fmt.Fprint(log, c.noise)
			log.Close()
			s := Spec{Packages: []Package{{Path: "one"}}}
			s.complete()
			collected := newCollector(&s)
			if err := collected.follow(t.Context(), log); !errors.Is(err, c.want) {
				t.Errorf("%v, want %v", err, c.want)
			}
			if up := len(c.events) > 0 && c.want != report.ErrDamaged; up && !collected.up {
				t.Error("it was not up")
			}
		})
	}
}

// A guest that stops sending events is an error at the deadline.
func TestDeadline(t *testing.T) {
	log, err := console.New(console.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	late := errors.New("too late")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 10*time.Millisecond, late)
	defer cancel()
	s := Spec{Packages: []Package{{Path: "one"}}}
	s.complete()
	if err := newCollector(&s).follow(ctx, log); !errors.Is(err, late) {
		t.Error(err)
	}
}
