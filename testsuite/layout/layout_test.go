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
	ImportPath, Name, Dir              string
	Imports, TestImports, XTestImports []string
	GoFiles, CgoFiles                  []string
}

// packages returns all packages as they are built here.
func packages(t *testing.T) []pkg {
	t.Helper()
	return listed(t, "")
}

// everyVariant returns all packages, with the files that have the tags of tests, for each
// architecture.
func everyVariant(t *testing.T) []pkg {
	t.Helper()
	return slices.Concat(listed(t, "amd64"), listed(t, "arm64"), packages(t))
}

// lists are the results of go list by architecture, which takes a second for each.
var lists = make(map[string][]pkg)

// listed returns the packages for an architecture with the tags of tests, or those that are built
// here. Tests call it one after the other.
func listed(t *testing.T, arch string) []pkg {
	t.Helper()
	if list, ok := lists[arch]; ok {
		return list
	}
	args, env := []string{"list", "-json=ImportPath,Name,Imports,TestImports,XTestImports,CgoFiles,GoFiles,Dir"}, os.Environ()
	if arch != "" {
		args, env = append(args, "-tags", "guest,soak"), append(env, "GOARCH="+arch)
	}
	cmd := exec.Command("go", append(args, "./...")...)
	cmd.Dir, cmd.Env, cmd.Stderr = "../..", env, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var list []pkg
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			lists[arch] = list
			return list
		} else if err != nil {
			t.Fatal(err)
		}
		list = append(list, p)
	}
}

// table reads the tables of ARCHITECTURE.md.
func table(t *testing.T) Table {
	t.Helper()
	text, err := os.ReadFile("../../ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	table, err := ParseTables(string(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := table.CheckOrder(); err != nil {
		t.Error(err)
	}
	return table
}

// Packages and their tests import only packages that the table allows, with every build tag and on
// both architectures.
func TestImports(t *testing.T) {
	rows := table(t)
	seen := 0
	for _, p := range everyVariant(t) {
		from := strings.TrimPrefix(p.ImportPath, module)
		for i, list := range [][]string{p.Imports, p.TestImports, p.XTestImports} {
			for _, imported := range list {
				to, ours := strings.CutPrefix(imported, module)
				if !ours {
					continue
				}
				seen++
				if err := rows.Check(from, to, i > 0); err != nil {
					t.Error(err)
				}
			}
		}
	}
	if seen < 500 {
		t.Errorf("only %d imports were looked at", seen)
	}
}

// C files include only headers of packages that the table allows their package to import.
func TestIncludes(t *testing.T) {
	rows := table(t)
	all, err := Includes(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 30 {
		t.Errorf("only %d includes were looked at", len(all))
	}
	for _, include := range all {
		if err := rows.Check(include.From, include.To, include.Test); err != nil {
			t.Errorf("%s: %v", include.File, err)
		}
	}
}

// Each row of the table covers a package, or a folder of C files.
func TestRows(t *testing.T) {
	rows := table(t)
	all, err := Includes(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, include := range all {
		names = append(names, include.From)
	}
	for _, p := range packages(t) {
		names = append(names, strings.TrimPrefix(p.ImportPath, module))
	}
	for i, r := range rows {
		if !slices.ContainsFunc(names, func(name string) bool { return rows.row(name) == i }) {
			t.Errorf("the row of %s covers nothing", r.Of)
		}
	}
}

// Leaves import only the standard library; borders also import each other.
func TestLeaves(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, module)
		if !strings.HasPrefix(name, "kernel/abi/") && name != "nimble/isa" {
			continue
		}
		for _, imported := range p.Imports {
			third := strings.Contains(strings.Split(imported, "/")[0], ".")
			if third || strings.HasPrefix(imported, module) && !strings.HasPrefix(imported, module+"kernel/abi/") {
				t.Errorf("%s is a leaf and imports %s", p.ImportPath, imported)
			}
		}
	}
}

// Only main packages, the packages of the command margay, the list of engines and tests import
// engines. Engines do not import each other.
func TestEngines(t *testing.T) {
	const engines = "margay/nimble/engine/"
	const all = engines + "list"
	shared := []string{engines + "enginetest"}
	// Loaders do not run programs on this engine. They import the translation of programs, and load
	// the result themselves.
	loaders, translation := []string{"margay/kernel/sched/schedext", "margay/kernel/border"}, engines+"linux"
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			if slices.Contains(loaders, p.ImportPath) && imported == translation {
				continue
			}
			if strings.HasPrefix(imported, engines) && !slices.Contains(shared, imported) && p.Name != "main" && !strings.HasPrefix(p.ImportPath, module+"tools/margay/") && (p.ImportPath != all || imported == all) {
				t.Errorf("%s imports the engine %s", p.ImportPath, imported)
			}
			if slices.Contains(shared, imported) {
				t.Errorf("%s, which is not a test, imports %s", p.ImportPath, imported)
			}
		}
	}
}

// Every package has a package comment.
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

// No package uses cgo, or reaches into another package by linkname. A name without a dot, such as
// MPIR_proctable, belongs to no package.
func TestNoShortcuts(t *testing.T) {
	linkname := regexp.MustCompile(`(?m)^\s*//go:linkname(\s+\w+)?(\s*$|\s+\S*\.)`)
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
				t.Errorf("%s/%s imports unsafe, but its name does not contain _unsafe", p.ImportPath, file)
			}
		}
	}
}
