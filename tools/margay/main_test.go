package main

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
)

// full is a file on a disk that is full.
type full struct{}

var errFull = errors.New("the disk is full")

func (full) Write([]byte) (int, error) { return 0, errFull }

// Help that cannot be written is a failure.
func TestHelpThatCannotBeWritten(t *testing.T) {
	for _, line := range []string{"--help", "run --help", "nimble --help", "help run", "--version", "version", "completion bash"} {
		var stderr bytes.Buffer
		status := run(t.Context(), strings.Fields(line), os.Stdin, full{}, &stderr)
		if want := "margay: " + errFull.Error() + "\n"; status != 125 || stderr.String() != want {
			t.Errorf("%s: status %d, %q", line, status, stderr.String())
		}
		var stdout bytes.Buffer
		if status := run(t.Context(), strings.Fields(line), os.Stdin, &stdout, &stderr); status != 0 || stdout.Len() == 0 {
			t.Errorf("%s: status %d, printed %q", line, status, stdout.String())
		}
	}
}
