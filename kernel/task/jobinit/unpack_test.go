package jobinit

import (
	"archive/tar"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"margay/kernel/task"
)

// Files go to their folders in whatever order they come, through links inside the root and never
// through one that leads out of it.
func TestUnpackFolders(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	into := folder{root: root, spec: task.Spec{UID: os.Getuid(), GID: os.Getgid()}}
	defer into.close()
	var b brought
	unpack := func(name string, kind byte, link string) error {
		h := &tar.Header{Name: name, Typeflag: kind, Linkname: link, Mode: 0o640, Size: int64(len(name))}
		return unpackOne(&into, name, h, strings.NewReader(name), &b)
	}
	for _, link := range []string{"in", "out"} {
		if err := unpack(link, tar.TypeSymlink, map[string]string{"in": "a/b", "out": t.TempDir()}[link]); err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"a/b/1", "a/2", "a/b/c/3", "4", "a/b/5", "in/6", "a/b/7"}
	for _, name := range names {
		if err := unpack(name, tar.TypeReg, ""); err != nil {
			t.Error(err)
		}
	}
	if err := unpack("out/8", tar.TypeReg, ""); err == nil {
		t.Error("a file goes out of the root")
	}
	if err := unpack("a/b/5", tar.TypeReg, ""); !errors.Is(err, fs.ErrExist) {
		t.Errorf("the same file again: %v", err)
	}
	if err := unpack("a/9", tar.TypeReg, ""); err != nil {
		t.Errorf("after errors: %v", err)
	}
	for _, name := range append(names, "a/b/6", "a/9") {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if want := strings.Replace(name, "a/b/6", "in/6", 1); err != nil || string(text) != want {
			t.Errorf("%s has %q, %v", name, text, err)
		}
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode() != 0o640 || int(info.Sys().(*syscall.Stat_t).Uid) != os.Getuid() {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
}
