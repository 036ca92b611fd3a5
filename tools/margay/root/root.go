// Package root has all commands of margay: the clients' (package line), and the ones that make
// machines, measure, and work on extensions and images. It completes lines for shells and writes
// the manual pages.
//
// A group (alloc, machine, job, observe, ext, nimble, bench, image) knows none of the others, but
// alloc and bench run jobs by job.
package root

import (
	"slices"

	"github.com/spf13/cobra"

	"margay/tools/margay/bench"
	"margay/tools/margay/command"
	"margay/tools/margay/image"
	"margay/tools/margay/line"
	"margay/tools/margay/machine"
	"margay/tools/margay/nimble"
)

// Program makes the program that has all commands. version is the version of this build.
func Program(version string) *line.Program {
	return &line.Program{
		Version: version,
		Groups:  slices.Concat(line.Clients, []line.Group{machine.Commands, nimble.Commands, bench.Commands, image.Commands}),
		Rest:    rest,
	}
}

// rest adds the commands that are about all others, and completions.
func rest(a *command.App, root *cobra.Command) {
	root.AddCommand(manCommand(a))
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	completionExamples(root)
	complete(a, root)
}
