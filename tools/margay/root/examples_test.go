package root

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"margay/tools/margay/command"
)

var (
	// commandEnd is what ends a command in a line of a shell, or begins the next one.
	commandEnd = regexp.MustCompile(`\s#.*|\||&&|;|\$\(|<\(|\)| -- `)
	quoted     = regexp.MustCompile(`"[^"]*"|'[^']*'`)
	redirected = regexp.MustCompile(`[<>] [^\s;]+`)
)

// The help of each command that does something has an example, and what the examples call is there,
// with its flags.
func TestExamples(t *testing.T) {
	called := 0
	walk(newRoot(new(command.App), nil), func(c *cobra.Command) {
		if c.HasAvailableSubCommands() && c.HasParent() || c.Hidden {
			return
		}
		if c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			if !strings.HasPrefix(line, "  ") {
				t.Errorf("%s: the example %q is not indented", c.CommandPath(), line)
			}
			plain := redirected.ReplaceAllString(quoted.ReplaceAllString(line, "text"), "")
			for _, part := range commandEnd.Split(plain, -1) {
				words := strings.Fields(part)
				if len(words) == 0 || words[0] != "margay" {
					continue
				}
				called++
				example, rest, err := newRoot(new(command.App), nil).Find(words[1:])
				if err == nil {
					err = example.ParseFlags(rest)
				}
				if err == nil && example.HasAvailableSubCommands() {
					err = example.RunE(example, rest)
				}
				if err == nil && example.Args != nil {
					err = example.Args(example, example.Flags().Args())
				}
				if err != nil {
					t.Errorf("%s: the example %q: %v", c.CommandPath(), line, err)
				}
			}
		}
	})
	if called < 40 {
		t.Errorf("the examples call %d commands", called)
	}
}
