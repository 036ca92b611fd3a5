package line

import (
	"cmp"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"margay/tools/margay/show"
)

// Widths of help, in columns: without a terminal, and the most that reads well on a wide one.
const (
	usualWidth  = 80
	widestWidth = 100
)

// fitHelp makes the help of all commands fit the terminal that out is.
func fitHelp(root *cobra.Command, out io.Writer) {
	width := min(cmp.Or(show.Width(out), usualWidth), widestWidth)
	usage := strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages", fmt.Sprintf("Flags.FlagUsagesWrapped %d", width))
	// Groups run only to refuse.
	usage = strings.Replace(usage, "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1)
	// The last line fits 80 columns for long names of groups, too.
	usage = strings.ReplaceAll(usage, " for more information about a command.", " for more about a command.")
	root.SetUsageTemplate(usage)
	root.SetHelpFunc(func(c *cobra.Command, _ []string) {
		fmt.Fprintf(c.OutOrStdout(), "%s\n\n%s", reflow(cmp.Or(c.Long, c.Short), width), optionalValues(c, c.UsageString()))
	})
}

// optional matches a flag with an optional value as pflag writes it: --wait time[="forever"].
var optional = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(--[\w-]+) (\w+)\[="?[\w.]+"?\]`) })

// optionalValues writes such flags of a command as users do, --wait[=time], without a change of the
// columns. The value of another flag may look alike: --out PATH[=DEST].
func optionalValues(c *cobra.Command, usage string) string {
	return optional().ReplaceAllStringFunc(usage, func(flag string) string {
		written := optional().FindStringSubmatch(flag)
		if f := c.Flag(strings.TrimPrefix(written[1], "--")); f == nil || f.NoOptDefVal == "" {
			return flag
		}
		return fmt.Sprintf("%-*s", len(flag), written[1]+"[="+written[2]+"]")
	})
}

// reflow breaks the lines of each paragraph at width columns. Paragraphs with indented lines stay.
func reflow(text string, width int) string {
	paragraphs := strings.Split(strings.TrimSpace(text), "\n\n")
	for i, p := range paragraphs {
		if !strings.HasPrefix(p, " ") && !strings.HasPrefix(p, "\t") && !strings.Contains(p, "\n ") && !strings.Contains(p, "\n\t") {
			paragraphs[i] = show.Fold(strings.ReplaceAll(p, "\n", " "), width, 0)
		}
	}
	return strings.Join(paragraphs, "\n\n")
}
