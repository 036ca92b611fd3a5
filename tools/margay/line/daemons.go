package line

import (
	"fmt"
	"os"
	"syscall"

	"margay/tools/margay/command"
)

// Daemons becomes margayd, beside this program, with the command line of this process. It returns
// only an error.
func Daemons() error {
	path, err := command.Beside("margayd")
	if err == nil {
		err = &os.PathError{Op: "execute", Path: path, Err: syscall.Exec(path, os.Args, os.Environ())}
	}
	return fmt.Errorf("%w; make build makes it beside margay", err)
}
