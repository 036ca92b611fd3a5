// Package layout holds the tree to the rules that ARCHITECTURE.md states.
package layout

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "margay/"

// pkg is a package as go list describes it.
type pkg struct {
	ImportPath              string
	Name                    string
	Imports                 []string
	TestImports             []string
	XTestImports            []string
	CgoFiles                []string
	GoFiles, IgnoredGoFiles []string
	Dir                     string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json", "./...")
	cmd.Dir = "../.."
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// table reads the table of ARCHITECTURE.md: which folders a folder may import.
func table(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rows, ok := strings.Cut(string(text), "| folder | may import |\n|---|---|\n")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no table of imports")
	}
	m := make(map[string][]string)
	comment := regexp.MustCompile(`\(.*\)`)
	for line := range strings.Lines(rows) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) != 4 {
			break
		}
		for folder := range strings.SplitSeq(cells[1], ",") {
			var may []string
			for word := range strings.SplitSeq(comment.ReplaceAllString(cells[2], ""), ",") {
				may = append(may, strings.TrimSpace(word))
			}
			m[strings.TrimSpace(folder)] = may
		}
	}
	return m
}

// folder returns the row that a package belongs to: the longest one that its path begins with.
func folder(rows map[string][]string, path string) string {
	best := ""
	for row := range rows {
		if (path == row || strings.HasPrefix(path, row+"/")) && len(row) > len(best) {
			best = row
		}
	}
	return best
}

func TestImports(t *testing.T) {
	rows := table(t)
	if len(rows) < 10 {
		t.Fatalf("the table has only the rows %v", rows)
	}
	seen := 0
	for _, p := range packages(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		own := folder(rows, from)
		if own == "" {
			t.Errorf("%s is in no row of the table", from)
			continue
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, module)
			if !ours {
				continue
			}
			seen++
			target := folder(rows, to)
			may := rows[own]
			if target == own || slices.Contains(may, target) || slices.Contains(may, "everything") ||
				slices.Contains(may, "everything but testsuite") && target != "testsuite" || slices.Contains(may, strings.Split(target, "/")[0]) {
				continue
			}
			t.Errorf("%s imports %s, which the row of %s does not allow", from, to, own)
		}
	}
	if seen < 50 {
		t.Errorf("only %d imports were looked at", seen)
	}
}

// Leaves use the standard library alone.
func TestLeaves(t *testing.T) {
	leaves := []string{"kernel/abi/slot", "kernel/abi/wire", "kernel/abi/node", "nimble/isa"}
	for _, p := range packages(t) {
		if !slices.Contains(leaves, strings.TrimPrefix(p.ImportPath, module)) {
			continue
		}
		for _, imported := range p.Imports {
			if strings.Contains(strings.Split(imported, "/")[0], ".") || strings.HasPrefix(imported, module) {
				t.Errorf("%s is a leaf and imports %s", p.ImportPath, imported)
			}
		}
	}
}

// Engines are chosen by main packages, their list and tests, and do not know each other.
func TestEngines(t *testing.T) {
	const engines = "margay/nimble/engine/"
	const all = engines + "list"
	shared := []string{engines + "enginetest"}
	// It takes no engine from there, but the translation of programs into parts of one that it loads itself.
	const loader, translation = "margay/kernel/sched/schedext", engines + "linux"
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			if p.ImportPath == loader && imported == translation {
				continue
			}
			if strings.HasPrefix(imported, engines) && !slices.Contains(shared, imported) && p.Name != "main" && (p.ImportPath != all || imported == all) {
				t.Errorf("%s imports the engine %s", p.ImportPath, imported)
			}
			if slices.Contains(shared, imported) {
				t.Errorf("%s, which is no test, imports %s", p.ImportPath, imported)
			}
		}
	}
}

// Every package says what it is.
func TestPackageComments(t *testing.T) {
	for _, p := range packages(t) {
		found := false
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(path.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			before, _, ok := strings.Cut(string(text), "\npackage "+p.Name)
			if ok && (strings.HasPrefix(lastBlock(before), "// Package "+p.Name) || strings.HasPrefix(lastBlock(before), "// Command ")) {
				found = true
			}
		}
		if !found && len(p.GoFiles) > 0 && !strings.HasSuffix(p.Dir, "/deps") {
			t.Errorf("%s has no package comment", p.ImportPath)
		}
	}
}

// lastBlock returns the comment that directly precedes the end of text.
func lastBlock(text string) string {
	lines := strings.Split(text, "\n")
	at := len(lines)
	for at > 0 && strings.HasPrefix(lines[at-1], "//") {
		at--
	}
	return strings.Join(lines[at:], "\n")
}

// There is no cgo, and nothing reaches into other packages by linkname.
func TestNoShortcuts(t *testing.T) {
	linkname := regexp.MustCompile(`(?m)^//go:linkname`)
	for _, p := range packages(t) {
		if len(p.CgoFiles) > 0 {
			t.Errorf("%s uses cgo: %v", p.ImportPath, p.CgoFiles)
		}
		unsafe := slices.Contains(p.Imports, "unsafe")
		for _, file := range p.GoFiles {
			text, err := os.ReadFile(path.Join(p.Dir, file))
			if err != nil {
				t.Fatal(err)
			}
			if linkname.Match(text) {
				t.Errorf("%s/%s uses go:linkname", p.ImportPath, file)
			}
			if unsafe && strings.Contains(string(text), "\n\t\"unsafe\"\n") && !strings.Contains(file, "_unsafe") {
				t.Errorf("%s/%s imports unsafe: its name does not say so", p.ImportPath, file)
			}
		}
	}
}
