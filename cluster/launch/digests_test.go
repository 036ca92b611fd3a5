package launch

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"margay/kernel/abi/archive"
)

// codeFile makes a file of a job that is executed.
func codeFile(t *testing.T, text string) *File {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return &File{Path: path, Size: int64(len(text)), Code: true}
}

// Digests of code are remembered until the file changes.
func TestDigests(t *testing.T) {
	file := codeFile(t, "one")
	kept := filepath.Join(t.TempDir(), "digests")
	later := time.Now().Add(Settled + time.Second)
	of := func(file *File, now time.Time) (archive.Digest, bool) {
		t.Helper()
		d := readDigests(kept, now)
		d.notices = func(string) bool { return true } // wherever temporary files are
		before := len(d.known)
		digest, err := d.of(file)
		if err != nil {
			t.Fatal(err)
		}
		d.keep()
		return digest, len(d.known) > before
	}
	first, learnt := of(file, time.Now())
	if learnt {
		t.Error("the digest of a file that has just changed was remembered")
	}
	if again, learnt := of(file, later); again != first || !learnt {
		t.Errorf("%v, %v; it was %v", again, learnt, first)
	}
	if again, learnt := of(file, later); again != first || learnt {
		t.Errorf("%v, %v; it was %v", again, learnt, first)
	}
	d := readDigests(kept, later)
	d.notices = func(string) bool { return true }
	if len(d.known) != 1 {
		t.Fatalf("%d digests are kept", len(d.known))
	}
	d.known[0].Digest[0]++
	if wrong, err := d.of(file); err != nil || wrong == first {
		t.Errorf("a digest that is known was computed: %v", err)
	}
	data := *file
	data.Code = false
	if right, err := d.of(&data); err != nil || right != first {
		t.Errorf("the digest of data is %v: %v", right, err)
	}
	if err := os.WriteFile(file.Path, []byte("two"), 0o755); err != nil {
		t.Fatal(err)
	}
	if changed, _ := of(file, later); changed == first {
		t.Error("a file that has changed has its old digest")
	}
	if err := os.Chmod(kept, 0o622); err != nil {
		t.Fatal(err)
	}
	if d := readDigests(kept, later); len(d.known) > 0 {
		t.Error("digests that others may have written are trusted")
	}
	if err := os.Remove(file.Path); err != nil {
		t.Fatal(err)
	}
	if _, err := readDigests(kept, later).of(file); err == nil {
		t.Error("a file that is missing has a digest")
	}
}

// A file whose file system has no time of its own for changes is read each time.
func TestPreciseTimes(t *testing.T) {
	for changed, precise := range map[uint64]bool{0: false, 1e9: false, 1_700_000_000e9: false, 1: true, 1_700_000_000e9 + 4e6: true} {
		if i := (identity{Modified: 1, Changed: changed}); i.precise() != precise {
			t.Errorf("time %d is precise: %v", changed, !precise)
		}
	}
}

// The digest of a file in memory is not remembered: a write through a mapping changes no time
// there.
func TestInMemory(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "digests")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	file := &File{Path: filepath.Join(dir, "program"), Size: 3, Code: true}
	if err := os.WriteFile(file.Path, []byte("one"), 0o755); err != nil {
		t.Fatal(err)
	}
	d := readDigests(filepath.Join(t.TempDir(), "digests"), time.Now().Add(Settled+time.Second))
	if _, err := d.of(file); err != nil || len(d.known) != 0 {
		t.Errorf("%d digests are remembered, %v", len(d.known), err)
	}
}

// The list of digests has an end.
func TestManyDigests(t *testing.T) {
	file := codeFile(t, "one")
	d := &digests{path: filepath.Join(t.TempDir(), "digests"), now: time.Now().Add(2 * Settled), known: make([]known, mostDigests), notices: func(string) bool { return true }}
	digest, err := d.of(file)
	if err != nil {
		t.Fatal(err)
	}
	d.keep()
	if read := readDigests(d.path, d.now); len(read.known) != mostDigests || read.known[0].Digest != digest {
		t.Errorf("%d digests, %v", len(read.known), err)
	}
}

func FuzzDigests(f *testing.F) {
	whole := slices.Concat([]byte(digestsMagic), make([]byte, 2*knownSize))
	f.Add(whole)
	f.Add(whole[:len(whole)-1])
	f.Add([]byte(digestsMagic))
	f.Add([]byte(nil))
	f.Fuzz(func(t *testing.T, text []byte) {
		list := parseDigests(text)
		if len(list) > 0 && (len(list)*knownSize+len(digestsMagic) != len(text) || !bytes.Contains(text, list[0].Digest[:])) {
			t.Errorf("%d digests in %d bytes", len(list), len(text))
		}
	})
}
