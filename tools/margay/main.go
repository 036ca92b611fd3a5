// Command margay is the one command for users of a Margay machine: it makes machines, runs jobs on them, and shows and
// changes what goes on there. margay help lists its commands.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"margay/cluster/launch"
)

// version is the version of this build, set by the linker.
var version = "unknown"

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run carries out one command and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(stdin, stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	status := new(exitStatus)
	if !errors.As(err, &status) {
		status = &exitStatus{code: launch.ExitMargay, err: err}
	}
	if status.err != nil {
		fmt.Fprintf(stderr, "margay: %v\n", status.err)
	}
	return status.code
}

// exitStatus is an error that decides the exit status.
type exitStatus struct {
	code int
	err  error // nil when everything has been said
}

func (e *exitStatus) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit status %d", e.code)
	}
	return e.err.Error()
}
func (e *exitStatus) Unwrap() error { return e.err }
