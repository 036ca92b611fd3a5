package lend

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
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

// The content that was offered least recently makes room. A file that a killed process has left
// goes after a while, and other files stay.
func TestMakeRoom(t *testing.T) {
	f, path := open(t)
	const each = Most / 4
	for i, text := range []string{"a", "b", "c"} {
		if _, err := offer(f, text, text); err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(path, digestOf(text).String())
		// Only the sizes matter: a file with a hole takes no room on the disk.
		if err := errors.Join(os.Chmod(name, 0o700), os.Truncate(name, each), os.Chtimes(name, time.Time{}, time.Now().Add(time.Duration(i-9)*time.Hour))); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Offer(digestOf("a"), each, nil); err != nil { // it is used again
		t.Error(err)
	}
	for name, age := range map[string]time.Duration{partial + "old": 2 * time.Hour, partial + "new": 0, "other": 2 * time.Hour} {
		p := filepath.Join(path, name)
		if err := errors.Join(os.WriteFile(p, []byte("x"), 0o600), os.Chtimes(p, time.Time{}, time.Now().Add(-age))); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.makeRoom(2*each - 1); err != nil {
		t.Error(err)
	}
	for name, want := range map[string]bool{digestOf("a").String(): true, digestOf("b").String(): false, digestOf("c").String(): true,
		partial + "old": false, partial + "new": true, "other": true} {
		if _, err := os.Stat(filepath.Join(path, name)); (err == nil) != want {
			t.Errorf("%s is there: %t", name, err == nil)
		}
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

// Many offer the same at once. Each time it is there afterwards, whole.
func TestTogether(t *testing.T) {
	f, path := open(t)
	text := string(bytes.Repeat([]byte("text"), 100_000))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if _, err := offer(f, text, text); err != nil {
				t.Error(err)
			}
			if got, err := os.ReadFile(filepath.Join(path, digestOf(text).String())); err != nil || string(got) != text {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		})
	}
	all.Wait()
	if n := names(t, path); n != 1 {
		t.Errorf("%d files", n)
	}
}
