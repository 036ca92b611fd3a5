// Package job has the commands that run jobs, list them, end them and show their output.
package job

import (
	"github.com/spf13/cobra"

	"margay/tools/margay/command"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.runCommand(), a.psCommand(), a.killCommand(), a.logsCommand(), a.waitCommand(), a.historyCommand(), a.backtraceCommand(), a.debugCommand()}
}
