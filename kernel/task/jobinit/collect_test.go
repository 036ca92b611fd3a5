package jobinit

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/archive"
	"margay/kernel/task"
)

// listing reads an archive and describes each entry, in order of names.
func listing(t *testing.T, packed []byte) (lines []string) {
	t.Helper()
	r := tar.NewReader(bytes.NewReader(packed))
	for {
		h, err := r.Next()
		if err == io.EOF {
			t.Fatalf("the archive has no end: %q", lines)
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Name == archive.End {
			slices.Sort(lines)
			return lines
		}
		line := fmt.Sprintf("%c %s", h.Typeflag, h.Name)
		if h.Linkname != "" {
			line += " -> " + h.Linkname
		}
		if why := h.PAXRecords[archive.Left]; why != "" {
			line += ": " + why
		}
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		if holes := h.PAXRecords[archive.Holes]; holes != "" {
			line += fmt.Sprintf(" %s bytes, %d in the archive", holes, len(data))
		} else if len(data) > 0 {
			line += fmt.Sprintf(" %q", data)
		}
		lines = append(lines, line)
	}
}

// New and changed files of a folder travel, whatever a rank has put there.
func TestCollect(t *testing.T) {
	root := t.TempDir()
	b := new(brought)
	for _, name := range []string{"/w/old", "/w/changed", "/w/in/old", "/w/mixed/old"} {
		if err := b.add(write(t, root+name, "brought"), nil); err != nil {
			t.Fatal(err)
		}
	}
	write(t, root+"/w/changed", "brought and changed")
	write(t, root+"/w/mixed/new", "n")
	write(t, root+"/w/new\nline", "x")
	write(t, root+"/w/\xff\x1b[2J", "y")
	write(t, root+"/elsewhere/secret", "s")
	holes := write(t, root+"/w/holes", "")
	if _, err := holes.WriteAt([]byte("end"), 1<<30); err != nil {
		t.Fatal(err)
	}
	deep := root + "/w" + strings.Repeat("/d", archive.MaxDepth+2)
	if err := errors.Join(
		os.MkdirAll(root+"/w/empty", 0o755), os.MkdirAll(deep, 0o755),
		os.Link(root+"/w/mixed/new", root+"/w/mixed/other"), os.Symlink("/elsewhere", root+"/w/link"), os.Symlink("elsewhere", root+"/way"),
		unix.Mkfifo(root+"/w/pipe", 0o644),
	); err != nil {
		t.Fatal(err)
	}
	collect := func(paths ...string) []byte {
		t.Helper()
		var packed bytes.Buffer
		if err := b.collect(root, paths, &packed); err != nil {
			t.Fatal(err)
		}
		return packed.Bytes()
	}
	first := collect("/w", "/way/secret", "/none", "/w/old", "/w/new\nline")
	got := listing(t, first)
	if tooDeep := "0 0" + strings.Repeat("/d", archive.MaxDepth+1) + ": it is more than 100 folders deep"; !slices.Contains(got, tooDeep) {
		t.Error("a folder that is too deep is not named")
	}
	got = slices.DeleteFunc(got, func(line string) bool { return strings.Contains(line, "/d/d") })
	want := []string{"5 0", "5 0/d"}
	want = append(want, "0 0/\xff\x1b[2J \"y\"", "0 0/changed \"brought and changed\"", "0 0/holes 1073741827 bytes, 4115 in the archive",
		"0 0/new\nline \"x\"", "0 0/pipe: it is a named pipe", "0 1: a symbolic link is on the path to it", "0 4 \"x\"",
		"2 0/link -> /elsewhere", "5 0/empty", "5 0/mixed")
	// Which of two names comes first is the file system's.
	one, other := "0 0/mixed/new \"n\"", "1 0/mixed/other -> 0/mixed/new"
	if !slices.Contains(got, one) {
		one, other = "0 0/mixed/other \"n\"", "1 0/mixed/new -> 0/mixed/other"
	}
	want = append(want, one, other)
	slices.Sort(want)
	holesLine := func(line string) bool { return strings.HasPrefix(line, "0 0/holes 1073741827 bytes, ") }
	if !slices.ContainsFunc(got, holesLine) { // how much of it is a hole is the file system's
		t.Error("the file with holes is not there as one")
	}
	got, want = slices.DeleteFunc(got, holesLine), slices.DeleteFunc(want, holesLine)
	if !slices.Equal(got, want) {
		t.Errorf("the archive has\n%q\nnot\n%q", got, want)
	}
	if len(first) > 1<<20 {
		t.Errorf("a file with holes takes %d bytes", len(first))
	}
	if again := collect("/w", "/way/secret", "/none", "/w/old", "/w/new\nline"); !bytes.Equal(first, again) {
		t.Error("the archive is another one the second time")
	}
}

// A file in memory that a rank has changed through a mapping travels, although its time is the old
// one. Files that came in each other way, and are as they were, do not.
func TestCollectMapped(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "margay-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	const text = "as it came"
	digest := archive.Digest(sha256.Sum256([]byte(text)))
	b := new(brought)
	into := folder{root: root, unpacker: unpacker{
		spec: task.Spec{UID: os.Getuid(), GID: os.Getgid(), Collects: true}, brought: b,
		held:  map[archive.Digest]heldFile{digest: {File: write(t, t.TempDir()+"/held", text)}},
		added: func(archive.Digest, *os.File) {},
	}}
	defer into.close()
	for way, h := range map[string]tar.Header{
		"small": {Size: int64(len(text))},
		"named": {Size: int64(len(text)), PAXRecords: map[string]string{archive.Content: digest.String()}},
		"held":  {PAXRecords: map[string]string{archive.Content: digest.String()}},
	} {
		h.Typeflag, h.Mode = tar.TypeReg, 0o600
		for _, name := range []string{"w/same-" + way, "w/" + way} {
			if err := unpackOne(&into, name, &h, strings.NewReader(text[:h.Size])); err != nil {
				t.Fatal(err)
			}
		}
		changeMapped(t, dir+"/w/"+way)
	}
	var packed bytes.Buffer
	if err := b.collect(dir, []string{"/w"}, &packed); err != nil {
		t.Fatal(err)
	}
	want := []string{`0 0/held "As it came"`, `0 0/named "As it came"`, `0 0/small "As it came"`, "5 0"}
	if got := listing(t, packed.Bytes()); !slices.Equal(got, want) {
		t.Errorf("the archive has\n%q\nnot\n%q", got, want)
	}
}

// changeMapped changes the first byte of a file through a mapping, when it has read it.
func changeMapped(t *testing.T, name string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapped, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if mapped[0] != 'a' {
		t.Errorf("%s begins with %q", name, mapped[0])
	}
	mapped[0] = 'A'
	if err := unix.Munmap(mapped); err != nil {
		t.Fatal(err)
	}
}

// Files that have travelled back are not among those that vanish.
func TestTakenIsNotUnkept(t *testing.T) {
	root := t.TempDir()
	write(t, root+"/w/out/a", "a")
	write(t, root+"/w/b", "b")
	write(t, root+"/w/c", "c")
	b := new(brought)
	b.take([]string{"/w/out", "/w/b"})
	if left := b.unkept(root, "/w"); !slices.Equal(left.Names, []string{"c"}) {
		t.Errorf("vanishing: %q", left.Names)
	}
}

// The headers have modes and times.
func TestCollectKeepsTimes(t *testing.T) {
	root := t.TempDir()
	name := filepath.Join(root, "f")
	write(t, name, "f")
	when := time.Unix(981158400, 123456789)
	if err := errors.Join(os.Chmod(name, 0o4750), os.Chtimes(name, when, when)); err != nil {
		t.Fatal(err)
	}
	var packed bytes.Buffer
	if err := new(brought).collect(root, []string{"/f"}, &packed); err != nil {
		t.Fatal(err)
	}
	h, err := tar.NewReader(&packed).Next()
	if err != nil {
		t.Fatal(err)
	}
	if h.Mode != 0o750 || !h.ModTime.Equal(when) {
		t.Errorf("mode %o, time %v", h.Mode, h.ModTime)
	}
}
