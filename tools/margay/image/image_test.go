package image_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"margay/cluster/provision"
	"margay/initramfs"
	"margay/tools/margay/margaytest"
)

// What image build prints in JSON has keys in lower case.
func TestKeys(t *testing.T) {
	text, err := json.Marshal(provision.Image{})
	if err != nil {
		t.Fatal(err)
	}
	if bytes.ContainsAny(bytes.ReplaceAll(text, []byte("SHA256"), nil), "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
		t.Errorf("%s", text)
	}
}

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
