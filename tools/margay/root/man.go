package root

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"margay/tools/margay/command"
)

// manCommand is what make install uses.
func manCommand(a *command.App) *cobra.Command {
	return &cobra.Command{
		Use:    "man FOLDER",
		Short:  "Write the manual pages of all commands into a folder",
		Hidden: true,
		Args:   command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			walk(c.Root(), func(c *cobra.Command) {
				if err == nil && (!c.HasParent() || c.IsAvailableCommand()) {
					name := strings.ReplaceAll(c.CommandPath(), " ", "-")
					err = os.WriteFile(filepath.Join(args[0], name+".1"), manPage(c, a.Version), 0o644)
				}
			})
			return err
		},
	}
}

// manPage is the manual page of a command, in the macros of man(7).
func manPage(c *cobra.Command, version string) []byte {
	var b bytes.Buffer
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"margay %s\" \"Margay\"\n.SH NAME\n%s \\- %s\n", strings.ToUpper(name), version, roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(synopsis(c)))
	if c.Long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		for i, paragraph := range strings.Split(c.Long, "\n\n") {
			if i > 0 {
				b.WriteString(".PP\n")
			}
			b.WriteString(roff(paragraph) + "\n")
		}
	}
	if c.HasAvailableSubCommands() {
		b.WriteString(".SH COMMANDS\n")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				fmt.Fprintf(&b, ".TP\n.BR %s (1)\n%s\n", roff(name+"-"+sub.Name()), roff(sub.Short))
			}
		}
	}
	c.InitDefaultHelpFlag()
	manFlags(&b, "OPTIONS", c.NonInheritedFlags())
	manFlags(&b, "OPTIONS OF ALL COMMANDS", c.InheritedFlags())
	if c.Example != "" {
		fmt.Fprintf(&b, ".SH EXAMPLES\n.nf\n%s\n.fi\n", roff(c.Example))
	}
	if c.HasParent() {
		fmt.Fprintf(&b, ".SH SEE ALSO\n.BR %s (1)\n", roff(strings.ReplaceAll(c.Parent().CommandPath(), " ", "-")))
	}
	return b.Bytes()
}

// synopsis is how a command is written.
func synopsis(c *cobra.Command) string {
	if c.HasAvailableSubCommands() {
		return c.CommandPath() + " COMMAND"
	}
	return c.UseLine()
}

func manFlags(b *bytes.Buffer, title string, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	fmt.Fprintf(b, ".SH %s\n", title)
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		text := "--" + f.Name
		if f.Shorthand != "" {
			text = "-" + f.Shorthand + ", " + text
		}
		switch {
		case value != "" && f.NoOptDefVal != "":
			text += "[=" + value + "]"
		case value != "":
			text += " " + value
		}
		fmt.Fprintf(b, ".TP\n.B %s\n%s\n", roff(text), roff(usage))
	})
}

// roff escapes text: no character of it means anything to troff.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(text)
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, ".") || strings.HasPrefix(line, "'") {
			lines[i] = `\&` + line
		}
	}
	return strings.Join(lines, "\n")
}
