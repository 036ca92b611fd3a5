package root

import (
	"github.com/spf13/cobra"

	"margay/tools/margay/command"
)

// For tests of the whole tree of commands.
var (
	NewRoot = newRoot
	Walk    = walk
	Roff    = roff
)

func newRoot(a *command.App, args []string) *cobra.Command {
	tree, _ := Program("unknown").Tree(a, args)
	return tree
}
