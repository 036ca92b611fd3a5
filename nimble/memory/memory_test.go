package memory

import (
	"bytes"
	"errors"
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMapIsZeroedAndWritable(t *testing.T) {
	m, err := Map("plain", 5000)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if len(m.Bytes()) != 5000 || !bytes.Equal(m.Bytes(), make([]byte, 5000)) {
		t.Fatal("want 5000 zero bytes")
	}
	m.Bytes()[4999] = 7
	if _, ok := m.FD(); ok {
		t.Error("anonymous memory has a descriptor")
	}
	r := m.Region(true)
	if got := View(r.Base+4999, 1)[0]; got != 7 {
		t.Errorf("View sees %d, want 7", got)
	}
}

func TestGuardPages(t *testing.T) {
	for _, make := range []func(string, int) (*Memory, error){Map, Create} {
		m, err := make("guarded", os.Getpagesize())
		if err != nil {
			t.Fatal(err)
		}
		r := m.Region(true)
		for _, addr := range []uint64{r.Base - 1, r.Base + r.Length} {
			if !faults(addr) {
				t.Errorf("%#x next to [%#x, %#x) can be read", addr, r.Base, r.Base+r.Length)
			}
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}

// faults reports whether reading a byte at addr is a memory fault.
func faults(addr uint64) (faulted bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() { faulted = recover() != nil }()
	_ = bytes.Clone(View(addr, 1))
	return false
}

func TestSharedMemoryIsTheSame(t *testing.T) {
	a, err := Create("shared", 100)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	fd, ok := a.FD()
	if !ok {
		t.Fatal("no descriptor")
	}
	b, err := Attach("other", fd, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	a.Bytes()[42] = 9
	if b.Bytes()[42] != 9 {
		t.Error("the second mapping does not see a write through the first")
	}
	if err := unix.Ftruncate(fd, 10); err == nil {
		t.Error("sealed memory was shrunk")
	}
}

func TestAttachRefuses(t *testing.T) {
	memfd := func(size int64, seals int) int {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
			t.Fatal(err)
		}
		return fd
	}
	file, err := os.Create(t.TempDir() + "/plain")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, c := range []struct {
		name string
		fd   int
		want string
	}{
		{"unsealed", memfd(4096, unix.F_SEAL_GROW), "not sealed"},
		{"too small", memfd(100, unix.F_SEAL_SHRINK), "has 100 bytes"},
		{"a plain file", int(file.Fd()), "seals"},
		{"a closed descriptor", 1 << 20, "duplicate"},
	} {
		m, err := Attach("x", c.fd, 4096)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
		if m != nil {
			t.Errorf("%s: got a memory with the error", c.name)
		}
		if c.name == "unsealed" && !errors.Is(err, ErrUnsealed) {
			t.Errorf("%v is not ErrUnsealed", err)
		}
	}
}

func TestSizes(t *testing.T) {
	for _, size := range []int{-1, 0, MaxSize + 1} {
		if m, err := Map("bad", size); err == nil {
			m.Close()
			t.Errorf("size %d was accepted", size)
		}
	}
}

func TestCloseTwice(t *testing.T) {
	m, err := Create("twice", 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(m.Close(), m.Close()); err != nil {
		t.Error(err)
	}
}

func TestRegionContains(t *testing.T) {
	r := Region{Base: 0x1000, Length: 0x100}
	top := Region{Base: ^uint64(0) - 0xf, Length: 0x10}
	for _, c := range []struct {
		r          Region
		addr, size uint64
		want       bool
	}{
		{r, 0x1000, 1, true},
		{r, 0x1000, 0x100, true},
		{r, 0x10ff, 1, true},
		{r, 0xfff, 1, false},
		{r, 0xfff, 2, false},
		{r, 0x1100, 1, false},
		{r, 0x10ff, 2, false},
		{r, 0x1000, 0x101, false},
		{r, 0x1001, ^uint64(0), false},
		{r, 0, 1, false},
		{top, ^uint64(0), 1, true},
		{top, ^uint64(0), 2, false},
		{Region{}, 0, 1, false},
	} {
		if got := c.r.Contains(c.addr, c.size); got != c.want {
			t.Errorf("[%#x+%#x) contains %d bytes at %#x: %v", c.r.Base, c.r.Length, c.size, c.addr, got)
		}
	}
}

func TestRegionSlice(t *testing.T) {
	r := Region{Name: "r", Base: 0x1000, Length: 0x100, Readable: true}
	if part, ok := r.Slice("p", 0x10, 0xf0); !ok || part != (Region{"p", 0x1010, 0xf0, true, false}) {
		t.Errorf("got %v, %v", part, ok)
	}
	for _, c := range [][2]uint64{{0x10, 0xf1}, {0x101, 0}, {1, ^uint64(0)}, {^uint64(0), 2}} {
		if _, ok := r.Slice("p", c[0], c[1]); ok {
			t.Errorf("slice at %#x of %#x bytes was accepted", c[0], c[1])
		}
	}
}

// The bytes at the addresses of a covered memory, and its descriptor, are the other file's. Its own
// file becomes empty.
func TestCover(t *testing.T) {
	a, err := Create("covered", 5000)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	b, err := Create("cover", 5000)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	number, _ := a.FD()
	kept, err := Attach("kept", number, 5000)
	if err != nil {
		t.Fatal(err)
	}
	defer kept.Close()
	a.Bytes()[4999] = 1
	fd, _ := b.FD()
	if err := a.Cover(fd); err != nil {
		t.Fatal(err)
	}
	a.Bytes()[7] = 2
	if again, _ := a.FD(); again != number || b.Bytes()[7] != 2 || kept.Bytes()[7] != 0 || kept.Bytes()[4999] != 0 {
		t.Errorf("descriptor %d, before %d; %d, %d and %d", again, number, b.Bytes()[7], kept.Bytes()[7], kept.Bytes()[4999])
	}
	other, err := Attach("other", number, 5000)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if other.Bytes()[7] != 2 {
		t.Error("the descriptor is not the other file's")
	}
	if err := a.Cover(-1); err == nil || a.Bytes()[7] != 2 {
		t.Errorf("%v, %d", err, a.Bytes()[7])
	}
}
