package root

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"margay/tools/margay/command"
)

// The page on running programs names every flag of margay run.
func TestRunInDocuments(t *testing.T) {
	page, err := os.ReadFile("../../../docs/programs.md")
	if err != nil {
		t.Fatal(err)
	}
	run, _, err := newRoot(new(command.App), nil).Find([]string{"run"})
	if err != nil {
		t.Fatal(err)
	}
	run.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		names := []string{"--" + f.Name}
		if f.Shorthand != "" {
			names = append(names, "-"+f.Shorthand)
		}
		if !regexp.MustCompile("`(" + strings.Join(names, "|") + ")[ =`]").Match(page) {
			t.Errorf("docs/programs.md does not name %v: %s", names, f.Usage)
		}
	})
	for _, command := range []string{"margay wait ", "margay logs -f "} {
		if !strings.Contains(string(page), command) {
			t.Errorf("docs/programs.md does not name %s", command)
		}
	}
}
