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

// Files are lent to jobs of one user, under the digests of their contents, and nothing but files.
func TestLent(t *testing.T) {
	l := Lent{User: 7, Folder: t.TempDir()}
	there, none, link, fifo := archive.Digest(sha256.Sum256([]byte("there"))), archive.Digest{1}, archive.Digest{2}, archive.Digest{3}
	name := func(d archive.Digest) string { return filepath.Join(l.Folder, d.String()) }
	if err := os.WriteFile(name(there), []byte("there"), 0o500); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(name(there), name(link)); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(name(fifo), 0o600); err != nil {
		t.Fatal(err)
	}
	all := []archive.Digest{none, there, link, fifo}
	for _, other := range [][]*os.File{l.Open(8, all), Lent{}.Open(0, all), Lent{User: 7, Folder: l.Folder + "/none"}.Open(7, all)} {
		for i, f := range other {
			if f != nil {
				t.Errorf("content %d is lent to another", i)
				f.Close()
			}
		}
	}
	for i, f := range l.Open(7, all) {
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
}
