package machine

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// ways are paths to a folder of all machines, below a folder of the test's. Each has the component
// through which other users could replace its target.
var ways = map[string]struct {
	base, through string
	files         []string               // as for tree
	mode          map[string]fs.FileMode // of folders
	others        string                 // owned by another user; only root can arrange that
	want          string
}{
	"a folder that all can write to": {
		base: "open/d/m", through: "open", files: []string{"open/d/m/", ""},
		mode: map[string]fs.FileMode{"open": 0o777},
		want: "can be written by others (mode drwxrwxrwx)",
	},
	"a folder that the group can write to": {
		base: "group/d/m", through: "group/d", files: []string{"group/d/m/", ""},
		mode: map[string]fs.FileMode{"group/d": 0o775},
		want: "can be written by others (mode drwxrwxr-x): chmod go-w ",
	},
	"a link into a folder that all can write to": {
		base: "link/m", through: "open", files: []string{"open/d/m/", "", "link", "->open/d"},
		mode: map[string]fs.FileMode{"open": 0o777},
		want: "can be written by others",
	},
	"links in a folder that all can write to": {
		base: "a/m", through: "open", files: []string{"open/b", "->../own", "own/m/", "", "a", "->own/../open/./b"},
		mode: map[string]fs.FileMode{"open": 0o777},
		want: "can be written by others",
	},
	"what is not there yet": {
		base: "open/d/m", through: "open", files: []string{"open/", ""},
		mode: map[string]fs.FileMode{"open": 0o777},
		want: "can be written by others",
	},
	"a folder of another user": {
		base: "other/d/m", through: "other", files: []string{"other/d/m/", ""},
		others: "other", want: "belongs to user 65534",
	},
	"a missing folder in one of another user": {
		base: "other/d/m", through: "other", files: []string{"other/", ""},
		others: "other", want: "belongs to user 65534",
	},
	"a folder of another user in one that all share": {
		base: "tmp/d/m", through: "tmp/d", files: []string{"tmp/d/m/", ""},
		mode:   map[string]fs.FileMode{"tmp": fs.ModeSticky | 0o777},
		others: "tmp/d", want: "belongs to user 65534",
	},
	"a link of another user in one that all share": {
		base: "tmp/d/m", through: "tmp/d", files: []string{"own/m/", "", "tmp/d", "->../own"},
		mode:   map[string]fs.FileMode{"tmp": fs.ModeSticky | 0o777},
		others: "tmp/d", want: "belongs to user 65534",
	},
}

// Where another user can replace a part of the path, no command follows it or makes anything. The
// error names the part and a way out.
func TestWayOfOthers(t *testing.T) {
	for name, way := range ways {
		if way.others != "" && os.Getuid() != 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := base(t)
			tree(t, dir, way.files...)
			at := func(name string) string { return filepath.Join(dir, name) }
			for name, mode := range way.mode {
				if err := os.Chmod(at(name), mode); err != nil {
					t.Fatal(err)
				}
			}
			if way.others != "" {
				if err := os.Lchown(at(way.others), 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			t.Setenv("MARGAY_DIR", at(way.base))
			d, err := DirOf("m")
			if err != nil {
				t.Fatal(err)
			}
			before := snapshot(t, dir)
			want := "folder of all machines: " + at(way.base) + " leads through " + at(way.through) + ", which " + way.want
			for command, act := range map[string]func() error{
				"machine up":      func() error { _, err := claim(d, t.Logf); return err },
				"machine down":    func() error { return Down(t.Context(), d, t.Logf) },
				"the spec":        func() error { _, err := d.ReadSpec(); return err },
				"the list":        func() error { _, err := List(); return err },
				"a second holder": func() error { _, err := d.lock(); return err },
			} {
				if err := act(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "set MARGAY_DIR to a folder of your own") {
					t.Errorf("%s: %v", command, err)
				}
			}
			if after := snapshot(t, dir); after != before {
				t.Errorf("%s became %s", before, after)
			}
		})
	}
}

// A path through folders that all users share, through links of one's own and through missing
// folders leads to machines.
func TestOwnWay(t *testing.T) {
	dir := base(t)
	tree(t, dir, "tmp/own/", "", "link", "->tmp/../tmp/own", "tmp/absolute", "->"+dir)
	if err := os.Chmod(filepath.Join(dir, "tmp"), fs.ModeSticky|0o777); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"tmp/own", "tmp/own/a/b", "link/c", "tmp/absolute/link/d"} {
		t.Setenv("MARGAY_DIR", filepath.Join(dir, path))
		d := created(t, "m")
		if info, err := os.Stat(filepath.Dir(string(d))); err != nil || info.Mode().Perm() != 0o700 {
			t.Errorf("%s has mode %v, %v", path, info.Mode(), err)
		}
		if err := Down(t.Context(), d, t.Logf); err != nil {
			t.Error(err)
		}
	}
}

// Links that lead to each other lead nowhere.
func TestWayWithoutEnd(t *testing.T) {
	dir := base(t)
	tree(t, dir, "a", "->b", "b", "->a")
	t.Setenv("MARGAY_DIR", filepath.Join(dir, "a", "m"))
	if _, err := List(); err == nil || !strings.Contains(err.Error(), "too many levels of symbolic links") {
		t.Error(err)
	}
}
