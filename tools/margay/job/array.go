package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/cluster/launch/array"
	"margay/tools/margay/command"
)

// addArrayFlags adds the flags of arrays.
func addArrayFlags(fs *pflag.FlagSet, f *Flags) {
	fs.StringVarP(&f.Array, "array", "a", "", "run this list of `tasks`, each as a job: 0-9999, 1,3,8-10 or 0-20:5, with %200 for 200 at a time")
	fs.BoolVar(&f.JSON, "json", false, "with --array: print a line of JSON for each task that has ended")
}

// checkArray refuses flags that arrays do not have.
func (f *Flags) checkArray(c *cobra.Command) error {
	if f.Array == "" {
		if f.JSON {
			return errors.New("run: --json is for the tasks of an array, and there is no --array")
		}
		return nil
	}
	for _, flag := range []string{"detach", "pty", "stdin", "collapse", "timing", "out", "files", "attach"} {
		if c.Flags().Changed(flag) {
			return fmt.Errorf("run: --array and --%s exclude each other", flag)
		}
	}
	if f.JSON && f.Output == "" {
		return errors.New("run: --json prints to standard output: with -o the tasks write to files, such as -o out-%a")
	}
	f.Stdin = "none"
	if f.Wait == "" {
		f.Wait = forever
	}
	_, err := f.set()
	return err
}

// set returns the tasks of the array.
func (f *Flags) set() (array.Set, error) {
	set, err := array.Parse(f.Array)
	if err != nil {
		return set, fmt.Errorf("run: --array %s: %w", f.Array, err)
	}
	return set, nil
}

// runArray runs an array of jobs. o describes one of them.
func (f *Flags) runArray(ctx context.Context, a *command.App, o launch.Options) error {
	set, err := f.set()
	if err != nil {
		return err
	}
	o.Stdin, o.Spec.Stdin = nil, control.StdinMode_STDIN_NONE
	all := launch.ArrayOptions{Options: o, Set: set}
	if f.JSON {
		lines := json.NewEncoder(a.Stdout)
		lines.SetEscapeHTML(false)
		all.Ended = func(end launch.TaskEnd) error { return lines.Encode(end) }
	}
	code, err := launch.RunArray(ctx, all)
	if code == 0 && err == nil {
		return nil
	}
	return command.Failed(code, err)
}
