package observe

import (
	"errors"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"margay/tools/margay/command"
)

// A command that is recorded takes margay record with it when a signal ends it.
func TestDeathOfRecorded(t *testing.T) {
	for script, want := range map[string]command.ExitStatus{"kill -TERM $$": {Code: 143, Signal: unix.SIGTERM}, "exit 143": {Code: 143}} {
		if status := new(command.ExitStatus); !errors.As(commandStatus(exec.Command("sh", "-c", script).Run()), &status) || *status != want {
			t.Errorf("%s: %+v", script, *status)
		}
	}
}
