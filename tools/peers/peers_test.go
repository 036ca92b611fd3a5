package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/nimble/bench"
)

// TestMain makes this binary a child that stands in for the one that uses the
// kernel, which no test on the machine itself does.
func TestMain(m *testing.M) {
	if len(os.Args) != 2 || os.Args[1] != "-kernel" {
		os.Exit(m.Run())
	}
	for d, e := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout); ; {
		var q question
		if d.Decode(&q) != nil {
			return
		}
		p, err := bench.Find(q.Program)
		switch {
		case err != nil || q.Program == "service":
			_ = e.Encode(answer{Error: "no such service"})
		case q.Program == "alu" && q.Runs > 1:
			return
		case q.Program == "primes":
			time.Sleep(time.Hour) // without a goroutine that can go on, Go would end it
		default:
			_ = e.Encode(answer{Took: time.Millisecond, Size: 100, R0: p.Bounded().Want, Each: 1000})
		}
	}
}

// standIn makes a contender of this binary.
func standIn(t *testing.T, patience time.Duration) bench.Contender {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := &child{ctx: t.Context(), argv: []string{self, "-kernel"}, wait: patience}
	t.Cleanup(func() {
		if err := c.end(); err != nil {
			t.Error(err)
		}
	})
	return bench.Contender{Name: kernel, Bounded: true, Once: true, Insert: c.insert}
}

// TestChild asks a child that answers, refuses, ends too early and hangs.
func TestChild(t *testing.T) {
	measure := func(c bench.Contender, program string) bench.Result {
		p, err := bench.Find(program)
		if err != nil {
			t.Fatal(err)
		}
		return p.Measure([]bench.Contender{c}, bench.Plan{Rounds: 2, Turn: 2 * time.Microsecond})[0]
	}
	c := standIn(t, time.Minute)
	if r := measure(c, "mod"); r.Err != nil || r.Run != 1000 || r.Insert != time.Millisecond || r.Size != 100 {
		t.Errorf("%+v", r)
	}
	for _, step := range []struct{ program, want string }{
		{"service", "no such service"},
		{"alu", "the process that uses the kernel has ended"},
		{"mod", "the process that uses the kernel has ended"},
	} {
		if r := measure(c, step.program); r.Err == nil || r.Err.Error() != step.want {
			t.Errorf("%s: %+v, want %s", step.program, r, step.want)
		}
	}
	hanging := standIn(t, 10*time.Millisecond)
	for range 2 {
		if r := measure(hanging, "primes"); r.Err == nil || r.Err.Error() != "no answer within 10ms" {
			t.Errorf("%+v", r)
		}
	}
	nothing, _ := kernelContender(t.Context(), "/nonexistent")
	if r := measure(nothing, "mod"); r.Err == nil {
		t.Errorf("%+v", r)
	}
}

// TestAnswers measures every program a little: engines and wazero give the same
// answers, since there are figures of all.
func TestAnswers(t *testing.T) {
	all, end, err := contenders(t.Context(), "false")
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	for _, c := range all {
		if !c.Bounded {
			t.Errorf("%s has more rounds than the kernel", c.Name)
		}
	}
	for _, p := range bench.Programs() {
		for i, r := range p.Measure(all, bench.Plan{Turn: time.Microsecond}) {
			if all[i].Name != kernel && (r.Err != nil || r.Run <= 0 || r.Instructions == 0) {
				t.Errorf("%s, %s: %+v", p.Name, all[i].Name, r)
			}
		}
	}
}

func TestRun(t *testing.T) {
	name := filepath.Join(t.TempDir(), "figures")
	var out strings.Builder
	err := run(t.Context(), []string{"-rounds=1", "-turn=1us", "-json", name, "-markdown", name + ".md", "pick", "straight"}, nil, &out, io.Discard)
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
		if f.NsPerCall <= 0 || f.NsPerInstruction <= 0 || (f.Ratios[compiler] > 0) == slices.Contains(peers, f.Contender) ||
			(f.CodeBytes > 0) == strings.HasPrefix(f.Contender, "wazero") {
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
		if err := run(t.Context(), strings.Fields(args), nil, io.Discard, io.Discard); err == nil {
			t.Errorf("%s is accepted", args)
		}
	}
}

// TestQuestions asks what no kernel is needed for.
func TestQuestions(t *testing.T) {
	var out strings.Builder
	in := strings.NewReader(`{"Program": "nothing"} {"Program": "mod", "Runs": 1}`)
	if err := run(t.Context(), []string{"-kernel"}, in, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`there is no program \"nothing\"`, `program \"mod\" is not loaded`} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %s in %s", want, &out)
		}
	}
	if err := serveKernel(strings.NewReader("what?"), io.Discard); err == nil {
		t.Error("nonsense is answered")
	}
}

// TestReport makes tables of what did not go well.
func TestReport(t *testing.T) {
	p := bench.Programs()[0]
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
	for _, want := range []string{"mod      good             10         2.00", "n/a (no)\n", "20*", "  4.00  "} {
		if !strings.Contains(table.String(), want) {
			t.Errorf("no %q in\n%s", want, &table)
		}
	}
	if want := "| mod | 2.00 | n/a | 0.500* |\n"; !strings.Contains(markdown.String(), want) {
		t.Errorf("no %q in\n%s", want, &markdown)
	}
}
