package root

import (
	"bytes"
	"maps"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"margay/tools/margay/command"
)

// Help fits 80 columns where there is no terminal. Examples are lines to copy, and stay whole.
func TestHelpFits(t *testing.T) {
	var out bytes.Buffer
	root := newRoot(&command.App{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}, nil)
	walk(root, func(c *cobra.Command) {
		out.Reset()
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		text := strings.Replace(out.String(), c.Example, "", 1)
		for line := range strings.Lines(text) {
			if columns := utf8.RuneCountInString(strings.TrimRight(line, "\n")); columns > 80 {
				t.Errorf("%s: %d columns: %s", c.CommandPath(), columns, line)
			}
		}
	})
}

// A flag with an optional value is shown as it is given, and no other one is.
func TestOptionalValues(t *testing.T) {
	var out bytes.Buffer
	root := newRoot(&command.App{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &out}, nil)
	shown := make(map[string]int)
	walk(root, func(c *cobra.Command) {
		out.Reset()
		if err := c.Help(); err != nil {
			t.Fatal(err)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			value, _ := pflag.UnquoteUsage(f)
			if value != "" && f.NoOptDefVal == "" && !f.Hidden && !strings.Contains(out.String(), "--"+f.Name+" "+value+" ") {
				t.Errorf("%s: --%s %s is not shown", c.CommandPath(), f.Name, value)
			}
			if value != "" && f.NoOptDefVal != "" {
				shown[f.Name] = strings.Count(out.String(), "--"+f.Name+"[="+value+"] ")
			}
		})
	})
	if want := map[string]int{"label": 1, "noise": 1, "timing": 1, "trace-io": 1, "wait": 1}; !maps.Equal(shown, want) {
		t.Errorf("shown %v, want %v", shown, want)
	}
}
