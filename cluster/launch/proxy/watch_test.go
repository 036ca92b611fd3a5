package proxy

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/fuse"
)

// behind makes a write that its rank does not wait for.
func (n *node) behind(handle uint64, text string) error {
	_, err := n.ask(fuse.Write, 0, [5]uint64{handle, 0, uint64(len(text)) | 1<<63}, []byte(text))
	return err
}

// TestBehind: the error of a write behind is reported once for an open file, by the next request
// that can, and to the user if only a close has reported it.
func TestBehind(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a")
	put(t, path, "one")
	n := share(t, Folder{Path: dir})
	var lost []string
	n.mounts[0].watch.Lost = func(path string, errno unix.Errno) { lost = append(lost, fmt.Sprint(path, ": ", errno)) }
	a := n.look("a")
	fail := func() uint64 { // opens the file for reading, and writes
		t.Helper()
		handle, _, err := n.open(a, unix.O_RDONLY)
		if err != nil || n.behind(handle, "text") != unix.EBADF {
			t.Fatal(err)
		}
		return handle
	}
	for name, report := range map[string]func(handle uint64) error{
		"fsync": func(handle uint64) error { _, err := n.ask(fuse.FSync, a, [2]uint64{handle}); return err },
		"close": func(handle uint64) error { _, err := n.ask(fuse.Flush, a, [3]uint64{handle}); return err },
	} {
		handle := fail()
		other, _, _ := n.open(a, unix.O_RDONLY)
		if err := report(other); err != nil {
			t.Errorf("%s of another open file: %v", name, err)
		}
		if err := report(handle); err != unix.EBADF {
			t.Errorf("%s: %v", name, err)
		}
		if err := report(handle); err != nil {
			t.Errorf("%s once more: %v", name, err)
		}
		n.must(n.ask(fuse.Release, a, [3]uint64{handle}))
	}
	want := []string{path + ": bad file descriptor"}
	if !slices.Equal(lost, want) {
		t.Errorf("after an fsync and a close have failed, the user gets %q", lost)
	}
	n.must(n.ask(fuse.Release, a, [3]uint64{fail()}))
	if want = append(want, want[0]); !slices.Equal(lost, want) {
		t.Errorf("after the end of a rank the user gets %q", lost)
	}
	handle := fail()
	n.must(n.ask(fuse.Unlink, fuse.RootNode, "a"))
	n.must(n.ask(fuse.Release, a, [3]uint64{handle}))
	if !slices.Equal(lost, want) {
		t.Errorf("after a file was removed the user gets %q", lost)
	}
}

// A write that returns an error of before is not carried out, and later ones are.
func TestBehindThenWrite(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "a"), "one")
	n := share(t, Folder{Path: dir})
	handle, _, err := n.open(n.look("a"), unix.O_RDWR)
	if err != nil || n.behind(handle, "two") != nil || n.read(handle) != "two" {
		t.Fatal(err)
	}
	h, _ := n.mounts[0].handle(handle)
	n.mounts[0].owe(h, unix.ENOSPC)
	n.mounts[0].owe(h, unix.EIO)
	n.mounts[0].done(h)
	if err := n.write(handle, 0, "six"); err != unix.ENOSPC || n.read(handle) != "two" {
		t.Errorf("%v, and the file has %q", err, n.read(handle))
	}
	if err := n.write(handle, 0, "ten"); err != nil || n.read(handle) != "ten" {
		t.Errorf("%v, and the file has %q", err, n.read(handle))
	}
}

// TestEvents: what was done is shown as the ranks have asked for it.
func TestEvents(t *testing.T) {
	dir := t.TempDir()
	n := share(t, Folder{Path: dir})
	var got []string
	n.mounts[0].watch.Did = func(e Event) {
		rel := func(path string) string {
			if short, err := filepath.Rel(dir, path); err == nil {
				return short
			}
			return path
		}
		line := fmt.Sprint(e.Operation, " ", rel(e.Path), " ", rel(e.To), " ", e.Behind, " ", e.Errno)
		if e.Sized {
			line += fmt.Sprintf(" %d+%d", e.Offset, e.Length)
		}
		got = append(got, line)
	}
	b := n.must(n.ask(fuse.Create, fuse.RootNode, uint32(unix.O_RDWR), uint32(0o600), uint64(0), "a"))
	handle, a := binary.LittleEndian.Uint64(b[fuse.EntrySize:]), binary.LittleEndian.Uint64(b)
	body := func(size uint64) [5]uint64 { return [5]uint64{handle, 0, size} }
	n.must(n.ask(fuse.Write, a, body(3|1<<63), []byte("one")))
	n.must(n.ask(fuse.Read, a, body(4096)))
	n.must(n.ask(fuse.Forget, a, uint64(0)))
	_, _ = n.ask(fuse.MkDir, fuse.RootNode, uint64(0o700), "a")
	n.must(n.ask(fuse.Rename, fuse.RootNode, uint64(fuse.RootNode), "a", "b"))
	n.must(n.ask(fuse.Unlink, fuse.RootNode, "b"))
	n.must(n.ask(fuse.Flush, a, [3]uint64{handle}))
	want := []string{
		"create a  false errno 0", "write a  true errno 0 0+3", "read a  false errno 0 0+3", "mkdir a  false file exists",
		"rename a b false errno 0", "unlink b  false errno 0", "close   false errno 0",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%q\nwant %q", got, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "b")); err == nil {
		t.Error("it was not done")
	}
}
