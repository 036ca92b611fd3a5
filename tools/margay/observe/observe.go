// Package observe has the commands that show the state of nodes: nodes, top, record and metrics.
package observe

import (
	"github.com/spf13/cobra"

	"margay/tools/margay/command"
)

// commands make the commands of this group.
type commands struct{ *command.App }

// Commands returns the commands of this group.
func Commands(app *command.App) []*cobra.Command {
	a := commands{app}
	return []*cobra.Command{a.nodesCommand(), a.topCommand(), a.recordCommand(), a.metricsCommand()}
}
