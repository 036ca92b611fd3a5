package way

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// stranger is a user other than root and the user of the test.
const stranger = 65534

// makeWay creates the components of a path: for each line "kind path [what]", in order, a folder
// with a mode, a link or a file. A kind with a "!" belongs to another user, which only root can
// arrange.
func makeWay(t *testing.T, dir string, lines []string) {
	t.Helper()
	for _, line := range lines {
		words := strings.Fields(line)
		kind, others := strings.CutSuffix(words[0], "!")
		path := filepath.Join(dir, words[1])
		var err error
		switch kind {
		case "link":
			err = os.Symlink(words[2], path)
		case "file":
			err = os.WriteFile(path, nil, 0o600)
		default:
			mode := map[string]fs.FileMode{"own": 0o755, "group": 0o775, "open": 0o777, "tmp": fs.ModeSticky | 0o777}[kind]
			err = errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, mode))
		}
		if others {
			err = errors.Join(err, os.Lchown(path, stranger, stranger))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Follow accepts components that only root and this user can change, and creates missing ones. It
// names any other component, including the last one, and creates nothing below it.
func TestFollow(t *testing.T) {
	for name, test := range map[string]struct {
		files      []string
		path       string
		leads      string // where it leads
		want, part string // of the error, and the part of the path that it names
	}{
		"own":                              {files: []string{"own d"}, path: "d", leads: "d"},
		"missing":                          {path: "a/b/c", leads: "a/b/c"},
		"in a shared folder":               {files: []string{"tmp t", "own t/d"}, path: "t/d", leads: "t/d"},
		"an own link":                      {files: []string{"own d", "tmp t", "link t/l ../d"}, path: "t/l", leads: "d"},
		"an own link to what is missing":   {files: []string{"own d", "link l d/new"}, path: "l/x", leads: "d/new/x"},
		"a file":                           {files: []string{"file f"}, path: "f", want: "is not a folder", part: "f"},
		"a folder that all write to":       {files: []string{"open d"}, path: "d", want: "can be written by others", part: "d"},
		"a shared folder":                  {files: []string{"tmp t"}, path: "t", want: "can be written by others", part: "t"},
		"a group's folder":                 {files: []string{"group d"}, path: "d", want: "can be written by others (mode drwxrwxr-x): chmod go-w", part: "d"},
		"in one that all write to":         {files: []string{"open d", "own d/e"}, path: "d/e", want: "can be written by others", part: "d"},
		"missing in one that all write to": {files: []string{"open d"}, path: "d/e", want: "can be written by others", part: "d"},
		"a link into one that all write to": {
			files: []string{"open d", "own d/e", "link l d/e"}, path: "l", want: "can be written by others", part: "d",
		},
		"another user's":             {files: []string{"own! d"}, path: "d", want: "belongs to user 65534", part: "d"},
		"in another user's":          {files: []string{"own! d", "own d/e"}, path: "d/e", want: "belongs to user 65534", part: "d"},
		"missing in another user's":  {files: []string{"own! d"}, path: "d/e", want: "belongs to user 65534", part: "d"},
		"another user's link":        {files: []string{"own d", "link! l d"}, path: "l", want: "belongs to user 65534", part: "l"},
		"another user's link before": {files: []string{"own d", "link! l d"}, path: "l/x", want: "belongs to user 65534", part: "l"},
	} {
		if strings.Contains(strings.Join(test.files, " "), "! ") && os.Getuid() != 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			makeWay(t, dir, test.files)
			before := count(t, dir)
			f := Folder{What: "folder of the test", Path: filepath.Join(dir, test.path), Variable: "MARGAY_TEST"}
			at, err := f.Follow(Made(0o755))
			if test.want == "" {
				if info, failed := os.Lstat(at); err != nil || at != filepath.Join(dir, test.leads) || failed != nil || !info.IsDir() {
					t.Errorf("it leads to %s, %v", at, err)
				}
				return
			}
			for _, part := range []string{"folder of the test: ", " " + filepath.Join(dir, test.part), test.want, "set MARGAY_TEST to a folder of your own"} {
				if err == nil || !strings.Contains(err.Error(), part) {
					t.Errorf("%v, without %q", err, part)
				}
			}
			if after := count(t, dir); after != before {
				t.Errorf("%d files became %d", before, after)
			}
		})
	}
}

// count returns how many files are below a folder.
func count(t *testing.T, dir string) (n int) {
	t.Helper()
	err := filepath.WalkDir(dir, func(string, fs.DirEntry, error) error { n++; return nil })
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A loop of links and a file in the middle of a path are errors.
func TestFollowNowhere(t *testing.T) {
	dir := t.TempDir()
	makeWay(t, dir, []string{"link a b", "link b a", "file f"})
	for path, want := range map[string]string{"a": "too many levels of symbolic links", "a/x": "too many levels of symbolic links", "f/x": "not a directory"} {
		if at, err := (Folder{Path: filepath.Join(dir, path)}).Follow(Made(0o755)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s leads to %s, %v", path, at, err)
		}
	}
}

// Check leaves the last component to its caller.
func TestCheck(t *testing.T) {
	dir := t.TempDir()
	makeWay(t, dir, []string{"open d", "link l d"})
	for path, want := range map[string]bool{"d": true, "l": true, "missing": true, "d/x": false, "l/x": false} {
		if err := (Folder{Path: filepath.Join(dir, path)}).Check(os.Lstat); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}
