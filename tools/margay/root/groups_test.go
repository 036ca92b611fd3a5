package root_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"margay/tools/margay/command"
	"margay/tools/margay/margaytest"
	"margay/tools/margay/root"
)

// No command succeeds when it is given words that it does not know, or a group none at all.
func TestNothingSucceedsAtNothing(t *testing.T) {
	t.Setenv("MARGAY_DIR", t.TempDir())
	groups, leaves := 0, 0
	root.Walk(root.NewRoot(&command.App{Stdin: strings.NewReader(""), Stdout: new(bytes.Buffer), Stderr: new(bytes.Buffer)}, nil), func(c *cobra.Command) {
		path := strings.Fields(c.CommandPath())[1:]
		lines := [][]string{append(path, "frobnicate"), append(path, "--frobnicate"), append(path, "frobnicate", "1", "2", "3")}
		if c.HasSubCommands() {
			groups++
			lines = append(lines, path, append(path, "frobnicate", "--flag", "-x"))
		} else {
			leaves++
		}
		for _, line := range lines {
			status, stdout, stderr := margaytest.Margay("", line...)
			if status != 125 && status != 127 || stdout != "" || !strings.HasPrefix(stderr, "margay: ") {
				t.Errorf("%q: status %d, output %q, error %q", line, status, stdout, stderr)
			}
			for _, word := range []string{"strconv", "arg(s)", "pflag", "shorthand"} {
				if strings.Contains(stderr, word) {
					t.Errorf("%q: the error has %q in it: %s", line, word, stderr)
				}
			}
		}
	})
	if groups < 6 || leaves < 30 {
		t.Errorf("only %d groups and %d commands were tried", groups, leaves)
	}
}

func TestSuggestions(t *testing.T) {
	for line, want := range map[string]string{
		"ext rm 0.1":       "did you mean margay ext remove?",
		"ext ls":           "did you mean margay ext list?",
		"bt 7":             "did you mean margay backtrace?",
		"machine log":      "did you mean margay machine logs?",
		"machine rm":       "did you mean margay machine down?",
		"machine statu":    "did you mean margay machine status?",
		"machine dwon":     "did you mean margay machine down?",
		"jobs -a":          "did you mean margay ps?",
		"rm 7":             "did you mean margay kill?",
		"stop 7":           "did you mean margay kill?",
		"insert x.o":       "did you mean margay ext insert?",
		"up":               "did you mean margay machine up?",
		"machine ls":       "did you mean margay machine list?",
		"scontrol update":  "did you mean margay node?",
		"node down 1":      "did you mean margay node drain?",
		"machine nodes":    "did you mean margay nodes?",
		"frob":             "frob: there is no such command (margay --help)",
		"enter 7 ls":       "enter: there is no such command (margay --help)",
		"salloc -N 2":      "did you mean margay alloc?",
		"image frob":       "image frob: there is no such command (margay image --help)",
		"bench frob":       "bench frob: there is no such command",
		"ext":              "ext needs a command: insert, list, log, remove, slots, stats (margay ext --help)",
		"help frob":        "frob: there is no such command",
		"help ext frob":    "ext frob: there is no such command",
		"completion basch": "did you mean margay completion bash?",
	} {
		status, stdout, stderr := margaytest.Margay("", strings.Fields(line)...)
		if stdout != "" {
			t.Errorf("%q prints %q", line, stdout)
		}
		margaytest.Wants(t, status, 125, stderr, want)
	}
	if _, stdout, _ := margaytest.Margay("", "help", "ext"); strings.Contains(stdout, "margay ext [flags]") || !strings.Contains(stdout, "margay ext [command]") {
		t.Errorf("the help of a group: %s", stdout)
	}
	for _, line := range []string{"help", "help ext insert", "ext --help", "--help", "--version", "version", "version --json", "machine list --json"} {
		if status, stdout, stderr := margaytest.Margay("", strings.Fields(line)...); status != 0 || stdout == "" || stderr != "" {
			t.Errorf("%q: status %d, output %q, error %q", line, status, stdout, stderr)
		}
	}
}
