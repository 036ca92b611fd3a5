package jobinit

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

// write makes a file, and the folders above it.
func write(t *testing.T, name, text string) *os.File {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(text); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestUnkept(t *testing.T) {
	cases := []struct {
		name, dir string
		files     []string
		names     []string
		count     uint64
	}{
		{"nothing", "/home/u", nil, nil, 0},
		{"below the working directory", "/home/u", []string{"/home/u/b", "/home/u/out/a"}, []string{"b", "out/a"}, 2},
		{"the working directory comes first", "/home/u", []string{"/a", "/home/u/z"}, []string{"z", "/a"}, 2},
		{"root is the working directory", "/", []string{"/a/b", "/tmp/x"}, []string{"/a/b"}, 1},
		{"scratch", "/home/u", []string{"/tmp/a/b", "/var/tmp/c", "/dev/shm/d", "/proc/e", "/etc/passwd", "/etc/hosts", "/etc/nsswitch.conf"}, nil, 0},
		{"compiled modules", "/home/u", []string{"/home/u/__pycache__/a.pyc", "/usr/lib/m/__pycache__/b.pyc", "/usr/lib/m/c"}, []string{"/usr/lib/m/c"}, 1},
		{"scratch is the working directory", "/tmp", []string{"/tmp/a"}, nil, 0},
		{"the working directory is in scratch", "/tmp/work", []string{"/tmp/work/a", "/tmp/b"}, []string{"a"}, 1},
		{"names for a terminal", "/", []string{"/a\x1b[2J", "/b\xff", "/c\u202ed", "/e f"}, []string{`"/a\x1b[2J"`, `"/b\xff"`, `"/c\u202ed"`, "/e f"}, 4},
		{"many", "/", []string{"/1", "/2", "/3", "/4", "/5", "/6", "/7"}, []string{"/1", "/2", "/3", "/4", "/5"}, 7},
	}
	for _, k := range cases {
		t.Run(k.name, func(t *testing.T) {
			root := t.TempDir()
			var b brought
			if err := b.add(write(t, root+"/home/u/brought", "x"), nil); err != nil {
				t.Fatal(err)
			}
			for _, name := range k.files {
				write(t, root+name, "text")
			}
			if err := os.Symlink("/etc/passwd", root+"/link"); err != nil {
				t.Fatal(err)
			}
			found := b.unkept(root, k.dir)
			if found.Files != k.count || !slices.Equal(found.Names, k.names) || found.More {
				t.Errorf("found %+v", found)
			}
		})
	}
}

// A file that came with the job is one that was written when it was changed, or another one has its
// name.
func TestUnkeptChanged(t *testing.T) {
	root := t.TempDir()
	var b brought
	for _, name := range []string{"/same", "/longer", "/replaced"} {
		if err := b.add(write(t, root+name, "x"), nil); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root+"/longer", "xyz")
	write(t, root+"/new", "x")
	if err := os.Rename(root+"/new", root+"/replaced"); err != nil {
		t.Fatal(err)
	}
	if found := b.unkept(root, "/"); found.Files != 2 || !slices.Equal(found.Names, []string{"/longer", "/replaced"}) {
		t.Errorf("found %+v", found)
	}
}

// A file that ranks cannot write to is never one that they have written, whatever its times.
func TestFixed(t *testing.T) {
	root := t.TempDir()
	var b brought
	f := write(t, root+"/home/u/program", "x")
	if err := b.addFixed(f); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(f.Name(), time.Now(), time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	if found := b.unkept(root, "/home/u"); found.Files != 0 {
		t.Errorf("written are %+v", found)
	}
}

// The search ends, however many files there are, and says that it has not seen all.
func TestUnkeptIsBounded(t *testing.T) {
	root := t.TempDir()
	for i := range unkeptEntries + 10 {
		if err := os.Mkdir(filepath.Join(root, fmt.Sprint(i)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root+"/0/file", "")
	if found := new(brought).unkept(root, "/"); found.Files != 1 || !found.More {
		t.Errorf("found %+v", found)
	}
}
