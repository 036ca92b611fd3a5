package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/folder"
)

// snapshot describes everything below a folder: names, modes, times of change and contents.
func snapshot(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == dir {
			return nil
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(&b, "%s %v %v", path, info.Mode(), info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			text, err := os.ReadFile(path)
			fmt.Fprintf(&b, " %q %v", text, err)
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			fmt.Fprintf(&b, " %q %v", target, err)
		}
		b.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// tree makes files. A name that ends in / is a folder's. A text that begins with -> is the target
// of a link.
func tree(t *testing.T, dir string, files ...string) {
	t.Helper()
	for i := 0; i < len(files); i += 2 {
		path, text := filepath.Join(dir, files[i]), files[i+1]
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if target, ok := strings.CutPrefix(text, "->"); ok {
			err = errors.Join(err, os.Symlink(target, path))
		} else if strings.HasSuffix(files[i], "/") {
			err = errors.Join(err, os.MkdirAll(path, 0o700))
		} else {
			err = errors.Join(err, os.WriteFile(path, []byte(text), 0o600))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Files that people keep next to machines are never changed, entered or removed, whatever their
// names are.
func TestOthersFolders(t *testing.T) {
	tests := map[string]func(t *testing.T, dir, outside string){
		"Documents": func(t *testing.T, dir, _ string) { tree(t, dir, "Documents/thesis", "years") },
		"names of a machine's files": func(t *testing.T, dir, _ string) {
			tree(t, dir, "Documents/lock", "1\n", "Documents/log/", "", "Documents/machine.json", "{}", "Documents/making", "",
				"Documents/nodes/x", "y", "Documents/ports/", "", "Documents/key.pem", "", "Documents/state.db", "")
		},
		"empty folders":            func(t *testing.T, dir, _ string) { tree(t, dir, "Documents/a/b/", "") },
		"a marker of another text": func(t *testing.T, dir, _ string) { tree(t, dir, "Documents/"+folder.Marker, "mine") },
		"a marker with more":       func(t *testing.T, dir, _ string) { tree(t, dir, "Documents/"+folder.Marker, folder.MarkerText+"mine") },
		"half a marker and a text": func(t *testing.T, dir, _ string) {
			tree(t, dir, "Documents/"+folder.Marker, "This", "Documents/text", "")
		},
		"a folder that is the marker": func(t *testing.T, dir, _ string) { tree(t, dir, "Documents/"+folder.Marker+"/", "") },
		"a link that is the marker": func(t *testing.T, dir, outside string) {
			tree(t, outside, "marker", folder.MarkerText)
			tree(t, dir, "Documents/"+folder.Marker, "->"+filepath.Join(outside, "marker"))
		},
		"a pipe that is the marker": func(t *testing.T, dir, _ string) {
			tree(t, dir, "Documents/", "")
			if err := unix.Mkfifo(filepath.Join(dir, "Documents", folder.Marker), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		"a file": func(t *testing.T, dir, _ string) { tree(t, dir, "Documents", "years") },
		"a link to a folder": func(t *testing.T, dir, outside string) {
			tree(t, outside, "Documents/thesis", "years")
			tree(t, dir, "Documents", "->"+filepath.Join(outside, "Documents"))
		},
		"a link to an empty folder": func(t *testing.T, dir, outside string) { tree(t, dir, "Documents", "->"+outside) },
		"a link to nothing":         func(t *testing.T, dir, outside string) { tree(t, dir, "Documents", "->"+outside+"/nothing") },
		"a link to a machine elsewhere": func(t *testing.T, dir, outside string) {
			tree(t, outside, "m/"+folder.Marker, folder.MarkerText, "m/log/", "")
			tree(t, dir, "Documents", "->"+filepath.Join(outside, "m"))
		},
		"a link to another machine": func(t *testing.T, dir, _ string) {
			tree(t, dir, "m/"+folder.Marker, folder.MarkerText, "Documents", "->m")
		},
		"a folder that others can write to": func(t *testing.T, dir, _ string) {
			tree(t, dir, "Documents/"+folder.Marker, folder.MarkerText)
			if err := os.Chmod(filepath.Join(dir, "Documents"), 0o770); err != nil {
				t.Fatal(err)
			}
		},
	}
	if os.Getuid() == 0 {
		tests["a folder of another user"] = func(t *testing.T, dir, _ string) {
			tree(t, dir, "Documents/", "")
			if err := os.Chown(filepath.Join(dir, "Documents"), 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
		tests["a marker of another user"] = func(t *testing.T, dir, _ string) {
			tree(t, dir, "Documents/"+folder.Marker, folder.MarkerText)
			if err := os.Chown(filepath.Join(dir, "Documents", folder.Marker), 65534, 65534); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, furnish := range tests {
		t.Run(name, func(t *testing.T) {
			dir, outside := base(t), t.TempDir()
			furnish(t, dir, outside)
			before, beforeOutside := snapshot(t, dir), snapshot(t, outside)
			d, err := DirOf("Documents")
			if err != nil {
				t.Fatal(err)
			}
			want := string(d) + " exists and is not a machine's folder: "
			if _, err := claim(d, t.Logf); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "set MARGAY_DIR to another folder") {
				t.Errorf("machine up: %v", err)
			}
			if err := Down(t.Context(), d, t.Logf); !errors.Is(err, ErrNoMachine) || !strings.Contains(err.Error(), want) {
				t.Errorf("machine down: %v", err)
			}
			if _, err := d.ReadSpec(); !errors.Is(err, ErrNoMachine) {
				t.Errorf("the machine's spec: %v", err)
			}
			if list, err := List(); err != nil || len(list) > 1 || len(list) == 1 && list[0].Name() != "m" {
				t.Errorf("machines: %v, %v", list, err)
			}
			if after := snapshot(t, dir); after != before {
				t.Errorf("%s became %s", before, after)
			}
			if after := snapshot(t, outside); after != beforeOutside {
				t.Errorf("%s became %s", beforeOutside, after)
			}
		})
	}
}

// A folder of all machines that is a link, a file or another user's is refused, and nothing in it
// is touched.
func TestOthersBase(t *testing.T) {
	dir := base(t)
	tree(t, dir, "own/m/"+folder.Marker, folder.MarkerText, "link", "->own", "file", "text")
	bases := []string{"link", "file"}
	if os.Getuid() == 0 {
		tree(t, dir, "other/m/"+folder.Marker, folder.MarkerText)
		if err := os.Chown(filepath.Join(dir, "other"), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		bases = append(bases, "other")
	}
	before := snapshot(t, dir)
	for _, name := range bases {
		d := Dir(filepath.Join(dir, name, "m"))
		if _, err := claim(d, t.Logf); err == nil {
			t.Errorf("a machine in %s", d)
		}
		if err := Down(t.Context(), d, t.Logf); err == nil {
			t.Errorf("%s is ended", d)
		}
	}
	if after := snapshot(t, dir); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

// interrupted makes a machine's folder and is killed after some steps. The argument is their number
// and the folder.
func interrupted(argument string) error {
	number, dir, _ := strings.Cut(argument, ":")
	n, err := strconv.Atoi(number)
	if err != nil {
		return err
	}
	b, err := makeBase(filepath.Dir(dir))
	if err != nil {
		return err
	}
	for _, step := range (&making{base: b, name: filepath.Base(dir)}).steps()[:n] {
		if err := step(); err != nil {
			return err
		}
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// goneAfter checks that a folder in which machine up was interrupted can be claimed, and then
// removed with all of its files.
func goneAfter(t *testing.T, d Dir) {
	t.Helper()
	claimed, err := claim(d, t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(claimed.Close(), Down(t.Context(), d, t.Logf)); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(string(d)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is still there: %v", err)
	}
}

// Wherever machine up is killed, the next one takes over the folder, and machine down removes it.
func TestInterruptedMaking(t *testing.T) {
	steps := len((&making{}).steps())
	for n := range steps + 1 {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			d := Dir(filepath.Join(base(t), "m"))
			for _, after := range []func(*testing.T, Dir){goneAfter, func(t *testing.T, d Dir) {
				// An empty folder has no owner, so it stays for the next machine up.
				if err := Down(t.Context(), d, t.Logf); err != nil && !(n <= 2 && errors.Is(err, ErrNoMachine)) {
					t.Error(err)
				}
			}} {
				cmd := exec.Command("/proc/self/exe", "interrupted", fmt.Sprintf("%d:%s", n, d))
				if out, err := cmd.CombinedOutput(); err == nil || len(out) > 0 {
					t.Fatalf("it was not killed: %v: %s", err, out)
				}
				after(t, d)
			}
		})
	}
	for n := range len(folder.MarkerText) {
		d := Dir(filepath.Join(base(t), "m"))
		tree(t, string(d), folder.Marker, folder.MarkerText[:n])
		goneAfter(t, d)
	}
}

// Wherever the making of a machine's folder fails, as on a full disk, it leaves nothing. A foreign
// file with the machine's name stays.
func TestFailedMaking(t *testing.T) {
	full := func() error { return unix.ENOSPC }
	for n := range len((&making{}).steps()) + 1 {
		dir := base(t)
		b, err := makeBase(dir)
		if err != nil {
			t.Fatal(err)
		}
		m := &making{base: b, name: "m"}
		if _, err := m.run(append(m.steps()[:n:n], full)); !errors.Is(err, unix.ENOSPC) {
			t.Errorf("after %d steps: %v", n, err)
		}
		b.Close()
		if left := snapshot(t, dir); left != "" {
			t.Errorf("after %d steps there is left:\n%s", n, left)
		}
	}
	dir := base(t)
	tree(t, dir, "m/thesis", "years")
	before := snapshot(t, dir)
	b, err := makeBase(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if _, err := b.create("m"); !errors.Is(err, ErrNoMachine) {
		t.Errorf("in another folder: %v", err)
	}
	if after := snapshot(t, dir); after != before {
		t.Errorf("%s became %s", before, after)
	}
}

// Wherever a removal is interrupted, the next one goes on with it.
func TestInterruptedRemoval(t *testing.T) {
	for n := range known {
		base(t)
		d := created(t, "m")
		for _, name := range known[:n] {
			if err := os.RemoveAll(d.file(name)); err != nil {
				t.Fatal(err)
			}
		}
		if err := Down(t.Context(), d, t.Logf); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(string(d)); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after %d names the folder stays: %v", n, err)
		}
	}
}

// Foreign files stay, in a machine's folder and behind links in it.
func TestStrangersStay(t *testing.T) {
	dir, outside := base(t), t.TempDir()
	tree(t, outside, "thesis", "years", "folder/text", "more")
	before := snapshot(t, outside)
	d := created(t, "m")
	if err := os.Remove(d.file("log")); err != nil {
		t.Fatal(err)
	}
	tree(t, string(d), "log", "->"+outside, "output", "->"+outside+"/folder", "nodes/node0", "->"+outside, "machine.json", "->"+outside+"/thesis",
		"notes.txt", "mine", "more/notes", "mine")
	if _, err := claim(d, t.Logf); err == nil || !strings.Contains(err.Error(), "holds files that are not its own (more, notes.txt)") {
		t.Errorf("machine up: %v", err)
	}
	if err := Down(t.Context(), d, t.Logf); err == nil || !strings.Contains(err.Error(), "stays, because of files in it that are not the machine's: more, notes.txt") {
		t.Errorf("machine down: %v", err)
	}
	if after := snapshot(t, outside); after != before {
		t.Errorf("%s became %s", before, after)
	}
	if names, _ := filepath.Glob(filepath.Join(dir, "m", "*")); len(names) != 2 {
		t.Errorf("left are %v", names)
	}
	if err := Down(t.Context(), d, t.Logf); !errors.Is(err, ErrNoMachine) {
		t.Errorf("machine down again: %v", err)
	}
}

// An empty folder may be any machine's.
func TestEmptyFolder(t *testing.T) {
	dir := base(t)
	tree(t, dir, "m/", "")
	d := Dir(filepath.Join(dir, "m"))
	if err := errors.Join(os.Chmod(string(d), 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := Down(t.Context(), d, t.Logf); !errors.Is(err, ErrNoMachine) {
		t.Errorf("machine down: %v", err)
	}
	goneAfter(t, d)
}

// The folder of all machines stays after its last machine if the user has named it, and is removed
// otherwise.
func TestBaseAfterTheLast(t *testing.T) {
	dir := base(t)
	if err := Down(t.Context(), created(t, "m"), t.Logf); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the folder that MARGAY_DIR names: %v", err)
	}
	t.Setenv("MARGAY_DIR", "")
	t.Setenv("XDG_RUNTIME_DIR", dir)
	d, another := created(t, "m"), created(t, "n")
	for _, d := range []Dir{d, another} {
		if _, err := os.Stat(string(d)); err != nil {
			t.Error(err)
		}
		if err := Down(t.Context(), d, t.Logf); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "margay")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder that nobody has named: %v", err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
	t.Setenv("MARGAY_DIR", filepath.Join(dir, "nothing"))
	if err := Down(t.Context(), Dir(filepath.Join(dir, "nothing", "m")), t.Logf); !errors.Is(err, ErrNoMachine) {
		t.Errorf("where there is no folder of all machines: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "nothing")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("machine down made it: %v", err)
	}
}
