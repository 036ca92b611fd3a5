package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/testsuite/sim"
)

func call(t *testing.T, args ...string) (stdout string, err error) {
	t.Helper()
	var out, errors strings.Builder
	err = run(args, &out, &errors)
	return out.String(), err
}

func TestTables(t *testing.T) {
	out, err := call(t, "--nodes", "1,100")
	if err != nil || !strings.Contains(out, "\n| 100 | ") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestJSON(t *testing.T) {
	out, err := call(t, "--nodes", "10", "--json")
	var figures sim.Figures
	if err != nil || json.Unmarshal([]byte(out), &figures) != nil || len(figures.Cluster) != 1 || figures.Cluster[0].Star <= 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// The tables go between the two lines of the page, and the plot beside it.
func TestDocs(t *testing.T) {
	folder := t.TempDir()
	if _, err := call(t, "--nodes", "10,20", "--docs", folder); err == nil {
		t.Error("a folder without a page is written into")
	}
	page := filepath.Join(folder, "scale.md")
	before := "before\n<!-- begin: written by testsuite/sim/scale -->\nstale\n<!-- end: written by testsuite/sim/scale -->\nafter\n"
	if err := os.WriteFile(page, []byte(before), 0o644); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := call(t, "--nodes", "10,20", "--docs", folder); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(page)
		if got := string(text); err != nil || !strings.HasPrefix(got, "before\n") || !strings.HasSuffix(got, "after\n") || strings.Contains(got, "stale") || strings.Count(got, "\n| 20 |") != 2 {
			t.Errorf("%v: %s", err, got)
		}
	}
	if plot, err := os.ReadFile(filepath.Join(folder, "scale.svg")); err != nil || !strings.HasPrefix(string(plot), "<svg") {
		t.Errorf("%v: %.40s", err, plot)
	}
}

func TestRefused(t *testing.T) {
	for _, args := range [][]string{{"--nodes", "0"}, {"--nodes", "x"}, {"--nodes", ""}, {"--nodes", "1,2000000"}, {"--unknown"}} {
		if out, err := call(t, args...); err == nil {
			t.Errorf("%q: %s", args, out)
		}
	}
	if _, err := call(t, "--help"); err != nil {
		t.Error(err)
	}
}

// FuzzNodes reads lists of numbers of nodes.
func FuzzNodes(f *testing.F) {
	f.Add("1,1000")
	f.Add("0,")
	f.Fuzz(func(t *testing.T, text string) {
		nodes, err := parse(text)
		for _, n := range nodes {
			if err == nil && (n < 1 || n > most) {
				t.Errorf("%q is %d nodes", text, n)
			}
		}
	})
}
