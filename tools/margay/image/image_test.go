package image_test

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"margay/initramfs"
	"margay/tools/margay/margaytest"
)

// A command fails when a part of its output cannot be written.
func TestNoteThatCannotBeWritten(t *testing.T) {
	path := filepath.Join(t.TempDir(), "image")
	if err := initramfs.WriteNodeImage(os.DevNull, []initramfs.File{{Path: "/init"}}, path); err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	status := margaytest.Run(t.Context(), []string{"image", "list", path}, os.Stdin, margaytest.Full{}, &stderr)
	if want := "margay: " + margaytest.ErrFull.Error() + "\n"; status != 125 || stderr.String() != want {
		t.Errorf("status %d, %q", status, stderr.String())
	}
}
