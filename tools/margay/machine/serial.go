package machine

import (
	"errors"
	"fmt"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"margay/cluster/machine"
	"margay/cluster/power/file"
)

// serialCommand returns the program and the arguments that connect a terminal to the serial port of
// a node; nil if the machine has no machine file, or that names none.
func serialCommand(s machine.Spec, node uint32) ([]string, error) {
	if s.Metal.File == "" {
		return nil, nil
	}
	f, err := file.Read(s.Metal.File)
	if err != nil {
		return nil, err
	}
	return f.Console(node), nil
}

// execSerial replaces this process by a command of serialCommand, which then has the terminal to
// itself: its keys and signals need no copying.
func execSerial(args []string) error {
	path, err := exec.LookPath(args[0])
	if wrong := (*exec.Error)(nil); errors.As(err, &wrong) {
		err = wrong.Err // args[0] is said below
	}
	if err == nil {
		err = unix.Exec(path, args, os.Environ())
	}
	return fmt.Errorf("machine console: %s: %w (--follow shows what arrives over the network)", args[0], err)
}
