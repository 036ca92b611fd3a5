package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fence is a piece of a page that is set off as code.
type fence struct {
	language string
	before   string // the text between it and the one before
	text     string
}

func fences(page string) []fence {
	var all []fence
	for {
		before, rest, ok := strings.Cut(page, "```")
		if !ok {
			return all
		}
		language, rest, _ := strings.Cut(rest, "\n")
		text, after, _ := strings.Cut(rest, "```")
		all = append(all, fence{language, before, text})
		page = after
	}
}

var (
	fileName = regexp.MustCompile("`(\\w+\\.c)`")
	number   = regexp.MustCompile(`\b[0-9a-f]*[0-9][0-9a-f]*\b`)
	spaces   = regexp.MustCompile(`[ \t]+`)
)

// shape is text without its numbers, and without the layout that depends on them.
func shape(text string) string {
	text = number.ReplaceAllString(spaces.ReplaceAllString(text, " "), "#")
	return strings.TrimSpace(strings.ReplaceAll(text, " \n", "\n"))
}

// What the tutorial for authors of extensions says is true: its commands are run one after the other in one shell, on its
// files, and print what it says, but for numbers.
func TestTutorial(t *testing.T) {
	page, err := os.ReadFile("../../ext/README.md")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"bin", "ext", "README.md"} {
		target, err := filepath.Abs(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	var script strings.Builder
	script.WriteString("set -eu -o pipefail\ntrap 'margay machine down >/dev/null 2>&1 || true' EXIT\n")
	var want []string
	for _, f := range fences(string(page)) {
		switch f.language {
		case "c":
			names := fileName.FindAllStringSubmatch(f.before, -1)
			if names == nil {
				t.Fatalf("no file is named before\n%s", f.text)
			}
			if err := os.WriteFile(filepath.Join(dir, names[len(names)-1][1]), []byte(f.text), 0o644); err != nil {
				t.Fatal(err)
			}
		case "sh":
			fmt.Fprintf(&script, "echo '@@@'\n%s", f.text)
			want = append(want, "")
		case "":
			want[len(want)-1] = f.text
		}
	}
	cmd := exec.Command("bash", "-c", script.String())
	cmd.Dir = dir
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, &stdout, &stderr)
	}
	got := strings.Split(stdout.String(), "@@@\n")[1:]
	if len(got) != len(want) || len(want) < 8 {
		t.Fatalf("%d pieces of output, want %d", len(got), len(want))
	}
	for i := range want {
		if shape(got[i]) != shape(want[i]) {
			t.Errorf("piece %d prints\n%s\nthe page says\n%s", i, got[i], want[i])
		}
	}
}
