package provision

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What is in the cache is run, so a folder that others can change is none.
func TestCacheDir(t *testing.T) {
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
	cases := []struct{ name, path, want string }{
		{"own", folder("own", 0o755), ""},
		{"missing", filepath.Join(base, "a", "b"), ""},
		{"the group's", folder("group", 0o770), "can be written by others"},
		{"everybody's", folder("all", os.ModeSticky|0o777), "can be written by others"},
		{"a link to everybody's", link, "can be written by others"},
	}
	if os.Getuid() == 0 {
		stranger := folder("stranger", 0o755)
		if err := os.Chown(stranger, 12345, 12345); err != nil {
			t.Fatal(err)
		}
		cases = append(cases, struct{ name, path, want string }{"another user's", stranger, "belongs to user 12345"})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("MARGAY_CACHE", c.path)
			dir, err := CacheDir()
			if c.want == "" && (err != nil || dir != c.path) {
				t.Errorf("%s, %v", dir, err)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "MARGAY_CACHE")) {
				t.Errorf("%s, %v", dir, err)
			}
		})
	}
}
