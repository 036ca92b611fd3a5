package regular

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// Only files are opened, those behind links included; a FIFO without a writer does not stop the
// reader.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	file, link, fifo := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := errors.Join(os.WriteFile(file, []byte("text"), 0o600), os.Symlink(file, link), syscall.Mkfifo(fifo, 0o600)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link} {
		f, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := io.ReadAll(f); err != nil || string(text) != "text" {
			t.Errorf("%s: %q, %v", path, text, err)
		}
		f.Close()
	}
	for _, path := range []string{fifo, dir, os.DevNull} {
		for name, open := range map[string]func(string) (*os.File, error){"always": Open, "changed since it was looked at": open} {
			if _, err := open(path); !errors.Is(err, ErrNot) || !strings.Contains(err.Error(), path) {
				t.Errorf("%s, %s: %v", path, name, err)
			}
		}
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
}
