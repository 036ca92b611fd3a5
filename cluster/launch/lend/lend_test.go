package lend

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"margay/kernel/abi/archive"
)

// a folder for a test.
func open(t *testing.T) (f *Folder, path string) {
	t.Helper()
	path = t.TempDir()
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, path
}

// offer offers a text under the digest of another one, and returns how often it was read.
func offer(f *Folder, of, text string) (read int, err error) {
	err = f.Offer(digestOf(of), int64(len(of)), func() (io.ReadCloser, error) {
		read++
		return io.NopCloser(bytes.NewReader([]byte(text))), nil
	})
	return read, err
}

func digestOf(text string) archive.Digest { return sha256.Sum256([]byte(text)) }

// names returns how many files the folder has.
func names(t *testing.T, path string) int {
	t.Helper()
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// A content is there under its digest, read once, and can be executed. A file that is not what it
// should be leaves nothing.
func TestOffer(t *testing.T) {
	f, path := open(t)
	for i, want := range []int{1, 0} {
		if read, err := offer(f, "content", "content"); read != want || err != nil {
			t.Errorf("offer %d: read %d times, %v", i, read, err)
		}
	}
	name := filepath.Join(path, digestOf("content").String())
	text, err := os.ReadFile(name)
	info, serr := os.Stat(name)
	if errors.Join(err, serr) != nil || string(text) != "content" || info.Mode() != 0o555 {
		t.Errorf("%q with %v: %v, %v", text, info, err, serr)
	}
	for _, bad := range []string{"CONTENT", "conten", "content and more", ""} {
		if _, err := offer(f, "content2", bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
	if err := f.Offer(digestOf("x"), 1, func() (io.ReadCloser, error) { return nil, fs.ErrPermission }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("a file that cannot be opened: %v", err)
	}
	if err := f.Offer(digestOf("x"), Most+1, nil); err == nil {
		t.Error("a file larger than all was accepted")
	}
	if n := names(t, path); n != 1 {
		t.Errorf("%d files", n)
	}
}

// age makes a content as large and as old as it should be. Only its size matters: a file with a
// hole takes no room on the disk.
func age(t *testing.T, path, text string, size int64, age time.Duration) {
	t.Helper()
	name := filepath.Join(path, digestOf(text).String())
	if err := errors.Join(os.Chmod(name, 0o700), os.Truncate(name, size), os.Chtimes(name, time.Time{}, time.Now().Add(-age))); err != nil {
		t.Fatal(err)
	}
}

// While a content is being read, the folder has no name for it: whatever ends the process leaves
// nothing. Something else under its name makes way. The file system of temporary files must have
// O_TMPFILE.
func TestOfferIsWhole(t *testing.T) {
	f, path := open(t)
	if err := os.WriteFile(filepath.Join(path, digestOf("content").String()), []byte("other"), 0o400); err != nil {
		t.Fatal(err)
	}
	err := f.Offer(digestOf("content"), 7, func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader("con"), readerFunc(func([]byte) (int, error) {
			if n := names(t, path); n != 1 {
				t.Errorf("it has %d names while it is read", n)
			}
			return 0, io.EOF
		}), strings.NewReader("tent"))), nil
	})
	text, rerr := os.ReadFile(filepath.Join(path, digestOf("content").String()))
	if n := names(t, path); errors.Join(err, rerr) != nil || string(text) != "content" || n != 1 {
		t.Errorf("%q of %d files: %v, %v", text, n, err, rerr)
	}
}

// A file system may have only files with names.
func TestOfferWithName(t *testing.T) {
	f, path := open(t)
	for _, kept := range []bool{true, false} {
		file, err := f.root.OpenFile(partial+"x", os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if kept {
			err = f.name(file, "kept")
		} else {
			err = errors.Join(f.abandon(file), file.Close())
		}
		_, missing := os.Stat(filepath.Join(path, "kept"))
		if n := names(t, path); err != nil || missing != nil || n != 1 {
			t.Errorf("kept %t: %d files, %v, %v", kept, n, err, missing)
		}
	}
}

// readerFunc is an io.Reader.
type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(b []byte) (int, error) { return f(b) }

// The content that was offered least recently makes room, and none that a launch may need, nor any
// if that would not suffice. A file that a killed process has left goes, and other files stay. The
// file system of temporary files must have 1 GiB free.
func TestMakeRoom(t *testing.T) {
	f, path := open(t)
	const each = Most / 4
	for i, text := range []string{"a", "b", "c"} {
		if _, err := offer(f, text, text); err != nil {
			t.Fatal(err)
		}
		age(t, path, text, each, time.Duration(9-i)*time.Hour)
	}
	if err := f.Offer(digestOf("a"), each, nil); err != nil { // it is used again
		t.Error(err)
	}
	for _, name := range []string{partial + "left", "other"} {
		if err := os.WriteFile(filepath.Join(path, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	there := func(want ...string) {
		t.Helper()
		for _, text := range []string{"a", "b", "c"} {
			if _, err := os.Stat(filepath.Join(path, digestOf(text).String())); (err == nil) != slices.Contains(want, text) {
				t.Errorf("content %s is there: %t", text, err == nil)
			}
		}
	}
	if err := f.makeRoom(3*each + 1); !errors.Is(err, errNoRoom) {
		t.Errorf("room for more than all others: %v", err)
	}
	there("a", "b", "c")
	if err := f.makeRoom(2 * each); err != nil {
		t.Error(err)
	}
	there("a", "c")
	for name, want := range map[string]bool{partial + "left": false, "other": true} {
		if _, err := os.Stat(filepath.Join(path, name)); (err == nil) != want {
			t.Errorf("%s is there: %t", name, err == nil)
		}
	}
}

// A process that was stopped while it changed the folder holds no other one up for long, and
// contents that are there are found without it.
func TestBusy(t *testing.T) {
	f, path := open(t)
	if _, err := offer(f, "there", "there"); err != nil {
		t.Fatal(err)
	}
	other, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	release, err := other.lock()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := offer(f, "there", "there"); err != nil {
		t.Error(err)
	}
	if _, err := offer(f, "new", "new"); !errors.Is(err, ErrBusy) {
		t.Errorf("a folder that is being changed: %v", err)
	}
	release()
	if _, err := offer(f, "new", "new"); err != nil {
		t.Error(err)
	}
}

// A folder that others can see is not used, and there may be none.
func TestOpen(t *testing.T) {
	_, path := open(t)
	if err := os.Chmod(path, 0o750); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil {
		t.Error("a folder for a group was accepted")
	}
	for _, none := range []string{"", filepath.Join(path, "none")} {
		if _, err := Open(none); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%q: %v", none, err)
		}
	}
}

// Of many that offer the same at once, one reads it, and the file is not exchanged: nodes may have
// it open.
func TestTogether(t *testing.T) {
	_, path := open(t)
	text := string(bytes.Repeat([]byte("text"), 100_000))
	var read atomic.Int64
	var mu sync.Mutex
	var first fs.FileInfo
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f, err := Open(path) // as another process does
			if err != nil {
				t.Error(err)
				return
			}
			defer f.Close()
			n, err := offer(f, text, text)
			for errors.Is(err, ErrBusy) { // on a busy host
				n, err = offer(f, text, text)
			}
			read.Add(int64(n))
			info, serr := os.Stat(filepath.Join(path, digestOf(text).String()))
			if err := errors.Join(err, serr); err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if first == nil {
				first = info
			}
			if !os.SameFile(first, info) {
				t.Error("the file was exchanged")
			}
		})
	}
	all.Wait()
	if got, err := os.ReadFile(filepath.Join(path, digestOf(text).String())); err != nil || string(got) != text || read.Load() != 1 || names(t, path) != 1 {
		t.Errorf("%d bytes, read %d times, %v", len(got), read.Load(), err)
	}
}
