package line

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// versions is the output of margay version.
type versions struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Protocol int    `json:"protocol"` // between margay, serve and nodes
	Platform string `json:"platform"`
}

func versionCommand(a *command.App) *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:     "version",
		Short:   "Print the version of margay, of Go and of the control protocol",
		Example: "  margay version\n  margay version --json | jq .protocol",
		Args:    command.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			v := versions{a.Version, runtime.Version(), control.Version, runtime.GOOS + "/" + runtime.GOARCH}
			if a.JSON {
				return show.Value(a.Stdout, v)
			}
			_, err := fmt.Fprintf(a.Stdout, "margay %s (%s, %s), control protocol %d\n", v.Version, v.Go, v.Platform, v.Protocol)
			return err
		},
	})
}
