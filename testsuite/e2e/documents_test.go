package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"margay/testsuite/documents"
)

// TestDocuments runs every command of the documents: one copy of the tree and one shell for each
// page, the commands in their order. The comment in front of a block lists the parts of its output
// that may differ. TestPages in testsuite/documents lists the blocks that are not run.
func TestDocuments(t *testing.T) {
	pages := func(substrate, kind string, pages ...string) (tests []turnOf) {
		for _, page := range pages {
			turn := expect(kind)
			if page == "docs/observing.md" { // it inserts a scheduler
				turn.realTime()
			}
			tests = append(tests, turnOf{page, turn, func(t *testing.T, _ *machine) { readPage(t, substrate, page) }})
		}
		return tests
	}
	hosted := pages("hosted", "own", "README.md", "docs/programs.md", "docs/mpi.md", "docs/operating.md", "docs/observing.md", "docs/power.md", "ext/README.md",
		"docs/scale.md", "CONTRIBUTING.md")
	virtual := pages("qemu", "own virtual", "README.md", "docs/netboot.md")
	t.Parallel()
	t.Run("hosted", func(t *testing.T) { inTurns(t, hosted...) })
	t.Run("qemu", func(t *testing.T) { inTurns(t, virtual...) })
}

// readersMargay replaces the command margay. It selects the substrate of the test. Other tests load
// the host, so it gives nodes longer to come up and to answer. Before it runs a job or lists
// extensions, it waits for late nodes, which get no ranks, and until the nodes have forgotten the
// jobs that have ended, whose cores are not free before. Where the reader leaves the number of
// virtual nodes open, there is one, which has a core for each rank of README.md: four nodes come up
// in make run.
const readersMargay = `margay() {
	case "$1 ${2-}" in
	"machine up")
		case "$substrate $*" in
		*"--substrate hosts"*) ;;
		qemu*--nodes*) set -- "$@" --substrate qemu ;;
		qemu*) set -- "$@" --substrate qemu --nodes 1 ;;
		*) set -- "$@" --substrate "$substrate" ;;
		esac
		set -- "$@" --boot-timeout 5m --dead-after 1m ;;
	"run "* | "ext list")
		for try in {1..60}; do
			state=$(command margay nodes 2>/dev/null && command margay ps 2>/dev/null) || break
			case $state in *" late "* | *" ended ("*) sleep 1 ;; *) break ;; esac
		done ;;
	esac
	command margay "$@"
}
`

// nodeStartedAgain matches the lines of margay machine up about a virtual node that was restarted,
// which docs/operating.md allows.
var nodeStartedAgain = regexp.MustCompile(`(?m)^node\d+: .*it is being restarted.*\n| on boot \d`)

func readPage(t *testing.T, substrate, page string) {
	text, err := os.ReadFile(filepath.Join("../..", page))
	if err != nil {
		t.Fatal(err)
	}
	examples, err := documents.Parse(page, string(text))
	if err != nil {
		t.Fatal(err)
	}
	tree := copyOfTree(t)
	base, err := os.MkdirTemp(scratch, "r") // two readers give their machines the same name
	if err != nil {
		t.Fatal(err)
	}
	// docs/operating.md recommends this for a busy host; other tests run at the same time.
	env := append(readersEnvironment(t), "MARGAY_DIR="+base, "MARGAY_USERS_DIR="+base, "MARGAY_STATE="+t.TempDir(), "UP_FLAGS=--boot-timeout 5m --dead-after 1m")
	s := documents.Session{Dir: tree, Env: env, Scratch: t.TempDir(), Deadline: 8 * time.Minute}
	s.Prelude = "substrate=" + substrate + "\n" + readersMargay
	t.Cleanup(func() {
		down := exec.Command(filepath.Join(tree, "bin", "margay"), "machine", "down")
		down.Env = s.Env
		_ = down.Run() // a page read to its end has done so itself
	})
	commands, err := s.Script(examples, substrate)
	if err != nil {
		t.Fatal(err)
	}
	results, err := s.Run(t.Context(), commands)
	for _, r := range results {
		c := r.Command
		if c.Shown && !c.Matches(nodeStartedAgain.ReplaceAllString(r.Output, "")) {
			t.Errorf("%s:%d: %sthe page shows\n%sand, but for what may vary (%s), it prints\n%s", page, c.Line, c.Text, c.Want, c.Example.Mark.Varies(), r.Output)
		}
	}
	if err != nil {
		t.Error(err)
	}
}

// readersEnvironment returns the environment of this test without the variables that an outer make
// sets for inner ones: a reader's make has no outer one. A copy of the tree has no history, so it
// gets the version of this one: then nothing is linked again.
func readersEnvironment(t *testing.T) []string {
	t.Helper()
	environ := slices.DeleteFunc(os.Environ(), func(variable string) bool {
		name, _, _ := strings.Cut(variable, "=")
		return name == "MFLAGS" || strings.HasPrefix(name, "MAKE")
	})
	version := strings.TrimPrefix(string(output(t, filepath.Join(bin, "margay"), "--version")), "margay version ")
	return append(environ, "VERSION="+strings.TrimSpace(version))
}

// copyOfTree makes a copy of the tree, which the reader of a page may fill with files, and returns
// its folder.
func copyOfTree(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(scratch, "tree")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	tree := filepath.Join(dir, "margay")
	args := []string{"-a", "-t", tree}
	for _, e := range entries {
		if !slices.Contains([]string{".git", "coverage"}, e.Name()) {
			args = append(args, filepath.Join("../..", e.Name()))
		}
	}
	if err := os.MkdirAll(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cp", args...).CombinedOutput(); err != nil {
		t.Fatalf("cp %q: %v\n%s", args, err, out)
	}
	return tree
}
