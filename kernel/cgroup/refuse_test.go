package cgroup

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestOpenRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, ErrUnavailable) || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that does not exist: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "cgroup.controllers"), []byte("cpuset pids cpu\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "no controller memory") {
		t.Errorf("without a controller: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "system")); err == nil {
		t.Error("a refused tree was changed")
	}
}

func TestBadNames(t *testing.T) {
	g := &Tree{base: t.TempDir()}
	if err := os.Mkdir(filepath.Join(g.base, "system"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", ".", "..", "../job", "a/b", "/job", "system"} {
		if _, err := g.Create(name, Limits{}); err == nil {
			t.Errorf("%q was taken as a name", name)
		}
	}
	if _, err := os.Stat(filepath.Join(g.base, "system")); err != nil {
		t.Error(err)
	}
}
