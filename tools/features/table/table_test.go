package table

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

const root = "../../.."

const example = `// a comment
# One: a system
A1 holds: It goes up.
  by: kernel TestUp TestUp/far, cluster/serve TestStart

A2 partly: It goes | down.
  but: not far
# Two: another
B1 not wanted: It goes round.
  but: nobody asks
B2 not yet: It flies.
  but: no wings
`

func TestParse(t *testing.T) {
	table, err := Parse(example)
	if err != nil {
		t.Fatal(err)
	}
	page := table.Markdown()
	for _, want := range []string{
		"| | holds | partly | not yet | not wanted | rows |\n",
		"| One | 1 | 1 | 0 | 0 | 2 |\n| Two | 0 | 0 | 1 | 1 | 2 |\n| all | 1 | 1 | 1 | 1 | 4 |\n",
		"\n## One: a system\n",
		"| A1 | It goes up. | holds |  | kernel: `TestUp`, `TestUp/far`; cluster/serve: `TestStart` |\n",
		`| A2 | It goes \| down. | partly | not far |  |` + "\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("no %q in\n%s", want, page)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"row without system":   {"A1 holds: x\n", "before the first system"},
		"text without row":     {"# One\n  but: x\n", "before the first row"},
		"unknown state":        {"# One\nA1 holds: x\n  by: a TestX\nA2 maybe: x\n", "is neither a row nor part of one"},
		"without feature":      {"# One\nA1 holds: x\n  by: a TestX\nA2 holds:\n", "is neither a row nor part of one"},
		"second but":           {"# One\nA1 partly: x\n  but: a\n  but: b\n", "is neither a row nor part of one"},
		"holds by nothing":     {"# One\nA1 holds: x\n", "names no test"},
		"lacks nothing":        {"# One\nA1 partly: x\n", "not given"},
		"not yet without why":  {"# One\nA1 not yet: x\n", "not given"},
		"not wanted, tested":   {"# One\nA1 not wanted: x\n  but: y\n  by: a TestX\n", "has tests"},
		"twice":                {"# One\nA1 partly: x\n  but: y\nA1 partly: x\n  but: y\n", "there are two"},
		"folder without tests": {"# One\nA1 holds: x\n  by: kernel\n", "not a folder with tests"},
		"name of no test":      {"# One\nA1 holds: x\n  by: kernel up\n", "is not the name of a test"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(c.text); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

func TestUnproved(t *testing.T) {
	table, err := Parse(example)
	if err != nil {
		t.Fatal(err)
	}
	passed := []string{"margay/kernel TestUp", "margay/kernel TestUp/far", "margay/cluster/serve TestStart"}
	if lines := table.Unproved(passed); lines != nil {
		t.Errorf("%q", lines)
	}
	lines := table.Unproved([]string{"margay/kernel TestUp", "margay/kernel TestUp/near", "margay/cluster TestStart"})
	if len(lines) != 2 || !strings.Contains(lines[0], "A1: kernel TestUp/far has not passed") || !strings.Contains(lines[1], "cluster/serve TestStart") {
		t.Errorf("%q", lines)
	}
}

// features is the table of this tree.
func features(t *testing.T) Table {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "docs", "features.txt"))
	if err != nil {
		t.Fatal(err)
	}
	table, err := Parse(string(text))
	if err != nil {
		t.Fatal("docs/features.txt: ", err)
	}
	return table
}

// Every test that docs/features.txt names is there, its subtests by their names or their parts, and
// the page is made of it.
func TestFeatures(t *testing.T) {
	table := features(t)
	folders := make(map[string]*names)
	for _, test := range table.Tests() {
		n := folders[test.Folder]
		if n == nil {
			n = new(names)
			n.read(t, test.Folder, true)
			folders[test.Folder] = n
		}
		parts := strings.Split(test.Name, "/")
		if !n.tests[parts[0]] {
			t.Errorf("%s has no test %s", test.Folder, parts[0])
		}
		for _, part := range parts[1:] {
			if _, err := strconv.Atoi(part); err != nil && !n.words[part] {
				t.Errorf("%s: nothing in %s names the subtest %q", test, test.Folder, part)
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "features.md"))
	if err != nil {
		t.Fatal(err)
	}
	if string(page) != table.Markdown() {
		t.Error("docs/features.md is not what tools/features makes of docs/features.txt: make generate")
	}
	if len(table) != 5 || len(table.Tests()) < 100 {
		t.Errorf("%d systems, %d tests", len(table), len(table.Tests()))
	}
}

// names are those that tests of a folder have or may give.
type names struct {
	tests map[string]bool // functions
	words map[string]bool // strings and methods, which name subtests; blanks are underscores
}

// read reads the Go files of a folder, and of the packages of this module for tests that its tests
// import.
func (n *names) read(t *testing.T, folder string, isPackage bool) {
	t.Helper()
	if n.tests == nil {
		n.tests, n.words = make(map[string]bool), make(map[string]bool)
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%s has no Go files (%v)", folder, err)
	}
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			switch x := node.(type) {
			case *ast.FuncDecl:
				if isPackage && x.Recv == nil && strings.HasSuffix(name, "_test.go") {
					n.tests[x.Name.Name] = true
				}
			case *ast.BasicLit:
				if text, err := strconv.Unquote(x.Value); err == nil {
					n.words[strings.ReplaceAll(text, " ", "_")] = true
				}
			}
			return true
		})
		for _, i := range file.Imports {
			path, _ := strconv.Unquote(i.Path.Value)
			if helper, ours := strings.CutPrefix(path, "margay/"); ours && isPackage && strings.HasSuffix(helper, "test") {
				n.read(t, helper, false)
			}
		}
	}
}
