package plain

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A package counts by its own files, by its tests and by what these import, and packages without
// tests are left out.
func TestPackages(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package p\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("plain.go", "func f() {}\n")
	write("statement.go", "func f() { go f() }\n")
	write("group.go", "func f() { var w sync.WaitGroup; w.Go(f) }\n")
	write("value.go", "var later = time.AfterFunc\n")
	write("words.go", "// go f()\nvar s = \"go f()\"\n")
	test := []string{"plain.go"}
	all := []Package{
		{ImportPath: "words", GoFiles: []string{"words.go"}, TestGoFiles: test, Imports: []string{"fmt"}},
		{ImportPath: "no tests", GoFiles: test},
		{ImportPath: "statement", GoFiles: []string{"statement.go"}, XTestGoFiles: test},
		{ImportPath: "value", GoFiles: []string{"value.go"}, TestGoFiles: test},
		{ImportPath: "in test", GoFiles: test, TestGoFiles: []string{"group.go"}},
		{ImportPath: "in outer test", GoFiles: test, TestGoFiles: test, XTestGoFiles: []string{"group.go"}},
		{ImportPath: "far import", GoFiles: test, TestGoFiles: test, Imports: []string{"importer"}},
		{ImportPath: "import of test", GoFiles: test, XTestGoFiles: test, XTestImports: []string{"importer"}},
		{ImportPath: "pointers", GoFiles: test, TestGoFiles: test, Imports: []string{"unsafe"}},
		{ImportPath: "pointers in test", GoFiles: test, TestGoFiles: test, TestImports: []string{"unsafe"}},
		{ImportPath: "importer", GoFiles: test, Imports: []string{"words", "statement"}},
		// The goroutines of a test do not reach importers of its package.
		{ImportPath: "importer of tested", GoFiles: test, TestGoFiles: test, Imports: []string{"in test"}},
	}
	for i := range all {
		all[i].Dir = dir
	}
	got, err := Packages(all)
	if want := []string{"words", "importer of tested"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	write("plain.go", "func {\n")
	if got, err := Packages(all); err == nil {
		t.Errorf("%q with a file that is no Go", got)
	}
}

func TestDecode(t *testing.T) {
	all, err := Decode(strings.NewReader(`{"ImportPath": "a", "GoFiles": ["x.go"]} {"ImportPath": "b"}`))
	if err != nil || len(all) != 2 || all[0].GoFiles[0] != "x.go" || all[1].ImportPath != "b" {
		t.Errorf("%+v, %v", all, err)
	}
	if _, err := Decode(strings.NewReader(`{"ImportPath": 1}`)); err == nil {
		t.Error("a number is no import path")
	}
}
