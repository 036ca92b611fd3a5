package agent

import (
	"testing"

	"margay/cluster/control"
	"margay/kernel"
	"margay/kernel/task"
)

// Enumerations that pass from the control protocol to the node kernel by number have the same
// values on both sides.
func TestNumbersAgree(t *testing.T) {
	modes := map[control.StdinMode]kernel.StdinMode{
		control.StdinMode_STDIN_NONE: kernel.StdinNone, control.StdinMode_STDIN_FIRST: kernel.StdinFirst, control.StdinMode_STDIN_ALL: kernel.StdinAll,
	}
	for number, name := range control.StdinMode_name {
		if mode, known := modes[control.StdinMode(number)]; !known || int(mode) != int(number) {
			t.Errorf("%s is %d, in the node kernel %d, known: %v", name, number, mode, known)
		}
	}
	streams := map[control.Stream]task.Stream{
		control.Stream_STREAM_STDOUT: task.Stdout, control.Stream_STREAM_STDERR: task.Stderr, control.Stream_STREAM_EXIT: task.Exit,
		control.Stream_STREAM_END: task.End,
	}
	for number, name := range control.Stream_name {
		if control.Stream(number) == control.Stream_STREAM_UNKNOWN {
			continue
		}
		if stream, known := streams[control.Stream(number)]; !known || int(stream) != int(number) {
			t.Errorf("%s is %d, in the node kernel %d, known: %v", name, number, stream, known)
		}
	}
}
