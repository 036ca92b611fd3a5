package line

import (
	"fmt"
	"os"
	"syscall"

	"margay/internal/slack"
	"margay/tools/margay/command"
)

// Daemons becomes margayd, beside this program, with the command line of this process. It returns
// only an error.
func Daemons() error {
	path, err := command.Beside("margayd")
	if err == nil {
		err = slack.Start(slack.Application, func() error { return syscall.Exec(path, os.Args, os.Environ()) })
		err = &os.PathError{Op: "execute", Path: path, Err: err}
	}
	return fmt.Errorf("%w; make build makes it beside margay", err)
}
