package documents

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// pages returns all Markdown pages of the tree.
func pages(t *testing.T) map[string]string {
	t.Helper()
	all := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{".git", "bin", "coverage"}, name) {
			return filepath.SkipDir
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		all[name] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 10 {
		t.Fatalf("only %d pages", len(all))
	}
	return all
}

// executed names the pages whose examples TestDocuments in testsuite/e2e runs.
var executed = []string{
	"README.md", "CONTRIBUTING.md", "ext/README.md",
	"docs/mpi.md", "docs/netboot.md", "docs/observing.md", "docs/operating.md", "docs/power.md", "docs/programs.md",
	"docs/scale.md",
}

// Every block of every page is run by TestDocuments in testsuite/e2e, or its mark says why not.
// This lists the latter.
func TestPages(t *testing.T) {
	for page, text := range pages(t) {
		examples, err := Parse(page, text)
		if err != nil {
			t.Error(err)
		}
		for _, e := range examples {
			switch {
			case e.Mark.NotRun != "":
				t.Logf("not run: %s: %s", e, e.Mark.NotRun)
			case !slices.Contains(executed, page):
				t.Errorf("%s: no test runs this page", e)
			}
		}
	}
}

var (
	link   = regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	target = regexp.MustCompile("`make ([a-z-]+)[` ]")
)

// What the pages link to is there, and so are the targets of make that they name.
func TestPagesName(t *testing.T) {
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	links, targets := 0, 0
	for page, text := range pages(t) {
		for _, match := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(page), match[1])); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		for _, match := range target.FindAllStringSubmatch(text, -1) {
			targets++
			if !strings.Contains(string(makefile), "\n"+match[1]+":") {
				t.Errorf("%s: there is no target %q", page, match[1])
			}
		}
	}
	if links < 20 || targets < 5 {
		t.Errorf("only %d links and %d targets were looked at", links, targets)
	}
}
