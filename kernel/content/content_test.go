package content

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/kernel/abi/archive"
)

const budget = 64 << 10

// user is the user of most tests.
const user = 1000

// open opens the store of a folder.
func open(t testing.TB, folder string) *Store {
	t.Helper()
	root, err := os.Open(folder)
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(root, budget)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// inMemory makes a file in a RAM disk, like the files of jobs.
func inMemory(t testing.TB, data []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	if _, err := f.Write(data); err != nil {
		t.Fatal(err)
	}
	return f
}

func digestOf(data []byte) archive.Digest { return sha256.Sum256(data) }

// data returns content number i.
func data(i, size int) []byte { return bytes.Repeat([]byte{byte(i)}, size) }

// has reports whether a store has data of the user. It fails the test if the store has other data
// under its digest.
func has(t testing.TB, s *Store, data []byte) bool {
	t.Helper()
	return hasOf(t, s, user, data)
}

// hasOf is has for any user.
func hasOf(t testing.TB, s *Store, user uint32, data []byte) bool {
	t.Helper()
	files, held := s.Open(user, []archive.Digest{digestOf(data)})
	defer s.Release(held)
	f := files[0]
	if f == nil {
		return false
	}
	defer f.Close()
	if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes of another content, or %v", len(got), err)
	}
	return true
}

// A store behaves like a list of the contents of each user, in the order of their last use, from
// which those that jobs hold are not removed, also after a restart, which loses order and holdings.
func TestModel(t *testing.T) {
	random := rand.New(rand.NewPCG(check.Seed(t), 0))
	folder := t.TempDir()
	s := open(t, folder)
	type known struct {
		user  uint32
		data  []byte
		size  int64
		holds int
	}
	var model []*known // the most recently used first
	type holding struct {
		of   *known
		held Holding
	}
	var holdings []holding
	used := func() (n int64) {
		for _, k := range model {
			n += k.size
		}
		return n
	}
	find := func(user uint32, data []byte) int {
		return slices.IndexFunc(model, func(k *known) bool { return k.user == user && bytes.Equal(k.data, data) })
	}
	// evict makes room for size bytes, and reports whether there is enough.
	evict := func(size int64) bool {
		rest := slices.Clone(model)
		left := used()
		for i := len(rest) - 1; i >= 0 && left+size > budget; i-- {
			if rest[i].holds == 0 {
				left -= rest[i].size
				rest = slices.Delete(rest, i, i+1)
			}
		}
		if left+size > budget {
			return false
		}
		model = rest
		return true
	}
	use := func(at int) {
		k := model[at]
		model = append([]*known{k}, slices.Delete(model, at, at+1)...)
	}
	for range 2000 {
		number, user := random.IntN(40), uint32(random.IntN(2))
		content := data(number, 1+number*2000)
		switch at := find(user, content); random.IntN(10) {
		case 0, 1, 2:
			err := s.Add(user, digestOf(content), inMemory(t, content))
			if at < 0 && !evict(Pages(int64(len(content)))) {
				if !errors.Is(err, ErrRefused) {
					t.Fatalf("%d bytes: %v", len(content), err)
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if at < 0 {
				model = append([]*known{{user, content, Pages(int64(len(content))), 0}}, model...)
			}
		case 3: // under a wrong name
			if at >= 0 || !evict(Pages(int64(len(content)))) {
				continue
			}
			wrong := inMemory(t, append(data(number, len(content)-1), 0xff))
			if err := s.Add(user, digestOf(content), wrong); !errors.Is(err, ErrRefused) {
				t.Fatalf("a wrong content is added: %v", err)
			}
		case 4:
			if random.IntN(20) > 0 {
				continue
			}
			s = open(t, folder)
			holdings = nil
			for _, k := range model {
				k.holds = 0
				if !hasOf(t, s, k.user, k.data) {
					t.Fatalf("%d bytes are gone after a restart", len(k.data))
				}
			}
			slices.Reverse(model) // has counted as a use
		case 5:
			if at < 0 {
				continue
			}
			files, held := s.Open(user, []archive.Digest{digestOf(content)})
			files[0].Close()
			use(at)
			model[0].holds++
			holdings = append(holdings, holding{model[0], held})
		case 6, 7:
			if len(holdings) == 0 {
				continue
			}
			i := random.IntN(len(holdings))
			s.Release(holdings[i].held)
			holdings[i].of.holds--
			holdings = slices.Delete(holdings, i, i+1)
		default:
			if got := hasOf(t, s, user, content); got != (at >= 0) {
				t.Fatalf("content %d of user %d: in the store %v, in the model at %d", number, user, got, at)
			}
			if at >= 0 {
				use(at)
			}
		}
		if s.used != used() || s.used > budget {
			t.Fatalf("%d bytes are used, of the model's %d and a budget of %d", s.used, used(), budget)
		}
	}
}

// Files that a job holds take no room from others in vain: they are not evicted, also not partly.
func TestHeldFilesStay(t *testing.T) {
	s := open(t, t.TempDir())
	half := func(i int) []byte { return data(i, budget/2) }
	add := func(i int) error { return s.Add(user, digestOf(half(i)), inMemory(t, half(i))) }
	if err := errors.Join(add(1), add(2)); err != nil {
		t.Fatal(err)
	}
	files, held := s.Open(user, []archive.Digest{digestOf(half(1))})
	files[0].Close()
	large := data(4, budget)
	if err := s.Add(user, digestOf(large), inMemory(t, large)); !errors.Is(err, ErrRefused) {
		t.Fatalf("a file without room: %v", err)
	}
	if !has(t, s, half(2)) {
		t.Fatal("a file was evicted for one that has no room")
	}
	if err := add(3); err != nil {
		t.Fatal(err)
	}
	if !has(t, s, half(1)) || has(t, s, half(2)) {
		t.Fatal("the file of a job was evicted, and not the other one")
	}
	s.Release(held)
	if err := s.Add(user, digestOf(large), inMemory(t, large)); err != nil {
		t.Fatal(err)
	}
	if has(t, s, half(1)) {
		t.Fatal("a store has more than its budget")
	}
}

// A new store removes the file that a killed store was adding, and files without a digest as name.
func TestPartial(t *testing.T) {
	folder := t.TempDir()
	for _, name := range []string{partial, "other"} {
		if err := os.WriteFile(filepath.Join(folder, name), data(1, 5000), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, folder)
	if left, err := os.ReadDir(folder); err != nil || len(left) > 0 || s.used != 0 {
		t.Fatalf("%v are left, %d bytes are used: %v", left, s.used, err)
	}
}

func TestRefused(t *testing.T) {
	s := open(t, t.TempDir())
	folder, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer folder.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	zero, err := os.Open("/dev/zero")
	if err != nil {
		t.Fatal(err)
	}
	defer zero.Close()
	for name, f := range map[string]*os.File{"a folder": folder, "a pipe": r, "a device": zero, "a large file": inMemory(t, data(1, budget+1))} {
		if err := s.Add(user, digestOf(nil), f); !errors.Is(err, ErrRefused) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s.used != 0 {
		t.Errorf("%d bytes are used", s.used)
	}
}

// A file that is truncated while it is added is refused.
func TestAddShorter(t *testing.T) {
	folder := t.TempDir()
	s := open(t, folder)
	content := data(1, 5000)
	f := inMemory(t, content)
	if err := f.Truncate(4000); err != nil {
		t.Fatal(err)
	}
	if err := s.copy(digestOf(content), f, 5000); !errors.Is(err, ErrRefused) {
		t.Fatal(err)
	}
}

func TestAddSoon(t *testing.T) {
	check.Leaks(t)
	s := open(t, t.TempDir())
	content := data(1, 5000)
	f, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", inMemory(t, content).Fd()))
	if err != nil {
		t.Fatal(err)
	}
	added := make(chan error, 1)
	s.AddSoon(user, digestOf(content), f, func(err error) { added <- err })
	if err := <-added; err != nil || !has(t, s, content) {
		t.Fatalf("not added: %v", err)
	}
	s.pending.Store(mostPending)
	if f, err = os.Open("/dev/null"); err != nil {
		t.Fatal(err)
	}
	s.AddSoon(user, digestOf(content), f, func(error) { t.Error("added although many wait") })
	if _, err := f.Stat(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a file that is not added stays open: %v", err)
	}
}
