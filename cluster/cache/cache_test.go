package cache

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The contents of the cache are run, so a folder that others can change is refused.
func TestDir(t *testing.T) {
	base := t.TempDir()
	folder := func(name string, mode os.FileMode) string {
		path := filepath.Join(base, name)
		if err := os.Mkdir(path, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := filepath.Join(base, "link")
	if err := os.Symlink(folder("linked", 0o777), link); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(base, "own link")
	if err := os.Symlink(folder("own", 0o755), own); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(base, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct{ name, path, want string }{
		{"own", folder("plain", 0o755), ""},
		{"a link of one's own", own, ""},
		{"missing", filepath.Join(base, "a", "b"), ""},
		{"a file", file, "is not a folder"},
		{"below a file", filepath.Join(file, "a"), "not a directory"},
		{"the group's", folder("group", 0o770), "can be written by others"},
		{"everybody's", folder("all", 0o777), "can be written by others"},
		{"everybody's, sticky", folder("sticky", os.ModeSticky|0o777), "can be written by others"},
		{"a link to everybody's", link, "can be written by others"},
		{"in everybody's", filepath.Join(folder("open", 0o777), "a"), "can be written by others"},
	}
	if os.Getuid() == 0 {
		others, inOthers, linkOfOthers := folder("other", 0o755), filepath.Join(base, "other", "a"), filepath.Join(base, "link of others")
		if err := errors.Join(os.Mkdir(inOthers, 0o755), os.Symlink("own", linkOfOthers), os.Chown(others, 12345, 12345),
			os.Lchown(linkOfOthers, 12345, 12345)); err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{others, inOthers, linkOfOthers} {
			cases = append(cases, struct{ name, path, want string }{filepath.Base(path) + " of another user", path, "belongs to user 12345"})
		}
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { checkDir(t, c.path, c.want) })
	}
}

// checkDir has MARGAY_CACHE name a folder. want is in the error; empty: it is a cache folder.
func checkDir(t *testing.T, path, want string) {
	t.Helper()
	t.Setenv("MARGAY_CACHE", path)
	dir, err := Dir()
	if want == "" && (err != nil || dir != path) {
		t.Errorf("%s, %v", dir, err)
	}
	if want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "set MARGAY_CACHE")) {
		t.Errorf("%s, %v", dir, err)
	}
}
