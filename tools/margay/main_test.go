package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"margay/initramfs"
)

// full is a file on a disk that is full.
type full struct{}

var errFull = errors.New("the disk is full")

func (full) Write([]byte) (int, error) { return 0, errFull }

// What a command prints besides what it looks at itself is no success, either, when it cannot be written.
func TestNoteThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	if err := initramfs.WriteNodeImage(os.DevNull, []initramfs.File{{Path: "/init"}}, path); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	status := run(t.Context(), []string{"image", "list", path}, os.Stdin, full{}, &stderr)
	if want := "margay: " + errFull.Error() + "\n"; status != 125 || stderr.String() != want {
		t.Errorf("status %d, %q", status, stderr.String())
	}
}

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
