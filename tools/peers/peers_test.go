package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"margay/nimble/bench"
)

// TestAnswers measures every program a little: all contenders give the same
// answers, since there are figures of all.
func TestAnswers(t *testing.T) {
	all, end, err := contenders(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for _, p := range bench.Programs {
		for i, r := range p.Measure(all, bench.Plan{Turn: time.Microsecond}) {
			if r.Err != nil || r.Run <= 0 || r.Instructions == 0 {
				t.Errorf("%s, %s: %+v", p.Name, all[i].Name, r)
			}
		}
	}
}

func TestRun(t *testing.T) {
	name := filepath.Join(t.TempDir(), "figures")
	var out strings.Builder
	err := run(t.Context(), []string{"-rounds=1", "-turn=1us", "-json", name, "-markdown", name + ".md", "pick", "straight"}, &out, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var r report
	if err := json.Unmarshal(text, &r); err != nil || len(r.Programs) != 2 {
		t.Fatalf("%v in %s", err, text)
	}
	for _, f := range r.Programs[0].Contenders {
		peer := strings.HasPrefix(f.Contender, "wazero")
		if f.NsPerCall <= 0 || f.NsPerInstruction <= 0 || (f.Ratios[compiler] > 0) == peer || (f.CodeBytes > 0) == peer {
			t.Errorf("%+v", f)
		}
	}
	for _, f := range r.Programs[1].Contenders {
		if f.UsPer1000 <= 0 {
			t.Errorf("%+v", f)
		}
	}
	if lines := strings.Count(out.String(), "\n"); lines < 2*len(r.Programs[0].Contenders) {
		t.Errorf("the table is\n%s", &out)
	}
	markdown, err := os.ReadFile(name + ".md")
	if err != nil || !strings.Contains(string(markdown), "\n| pick: call from Go | ") {
		t.Errorf("%v\n%s", err, markdown)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range []string{"nothing", "-rounds=x", "-json=/nonexistent/file pick -rounds=1"} {
		if err := run(t.Context(), strings.Fields(args), io.Discard, io.Discard); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
}

// TestReport makes tables of what did not go well.
func TestReport(t *testing.T) {
	p := bench.Programs[0]
	r := newReport(1)
	r.add(&p, []bench.Contender{{Name: "good"}, {Name: "bad"}, {Name: compiler, Bounded: true}}, []bench.Result{
		{Instructions: 10, Run: 20, Insert: time.Second, Size: 30},
		{Err: errors.New("no\nroom")},
		{Instructions: 20, Run: 10},
	})
	var table, markdown strings.Builder
	if err := errors.Join(r.writeTable(&table), r.writeMarkdown(&markdown)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"mod      good             10         2.00", "n/a (no)\n", "20*", "4.00\n"} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, &table)
		}
	}
	if want := "| mod | 2.00 | n/a | 0.500* |\n"; !strings.Contains(markdown.String(), want) {
		t.Errorf("no %q in\n%s", want, &markdown)
	}
}
