package content

import (
	"crypto/sha256"
	"io"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
)

// Files are lent under the digests of their contents, and nothing but files.
func TestOpenLent(t *testing.T) {
	folder := t.TempDir()
	there, none, link, fifo := archive.Digest(sha256.Sum256([]byte("there"))), archive.Digest{1}, archive.Digest{2}, archive.Digest{3}
	name := func(d archive.Digest) string { return filepath.Join(folder, d.String()) }
	if err := os.WriteFile(name(there), []byte("there"), 0o500); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(name(there), name(link)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(name(fifo), 0o600); err != nil {
		t.Fatal(err)
	}
	for i, f := range OpenLent(folder, []archive.Digest{none, there, link, fifo}) {
		if (f != nil) != (i == 1) {
			t.Errorf("content %d is lent: %t", i, f != nil)
		}
		if f != nil {
			if text, err := io.ReadAll(f); err != nil || string(text) != "there" {
				t.Errorf("%q, %v", text, err)
			}
			f.Close()
		}
	}
	if files := OpenLent(filepath.Join(folder, "none"), []archive.Digest{there}); files[0] != nil {
		t.Error("a file in no folder")
	}
}
