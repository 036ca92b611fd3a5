package symbol

import (
	"bytes"
	"debug/elf"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
)

const source = `
__attribute__((always_inline)) static inline int inner(volatile int *p)
{
	return *p;
}
__attribute__((always_inline)) static inline int outer(volatile int *p)
{
	return 1 +
		inner(p);
}
__attribute__((noinline)) int work(volatile int *p)
{
	return outer(p);
}
int main(int argc, char **argv)
{
	return work(&argc);
}
`

func compile(t testing.TB, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	file, program := filepath.Join(dir, "work.c"), filepath.Join(dir, "work")
	if err := os.WriteFile(file, []byte(source), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", append(args, "-O2", "-o", program, file)...).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// addressOf returns the address of a function, and the build id of its program.
func addressOf(t testing.TB, program, function string) (addr uint64, build []byte) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range symbols {
		if s.Name == function {
			return s.Value, buildID(f)
		}
	}
	t.Fatalf("%s has no %s", program, function)
	return 0, nil
}

func TestPlaces(t *testing.T) {
	program := compile(t, "-g")
	addr, build := addressOf(t, program, "work")
	table := NewTable()
	defer table.Close()
	var text []string
	// The first instruction is the inlined load, or prepares it.
	for at := addr; at < addr+16 && len(text) < 3; at++ {
		text = nil
		for _, f := range table.Stack([]*control.CodeFile{{Path: program, Build: build}}, &control.CodeStack{Files: []int32{0}, Addresses: []uint64{at}}) {
			text = append(text, f.String())
		}
	}
	if got := strings.Join(text, "; "); got != "inner() in work.c:4; outer() in work.c:8; work() in work.c:13" &&
		got != "inner() in work.c:4; outer() in work.c:9; work() in work.c:13" {
		t.Errorf("the places are %s", got)
	}
	if p := table.Places(program, []byte("other"), addr); p != nil {
		t.Errorf("a program with another build id has %v", p)
	}
	if p := table.Places(program, build, 1); p != nil {
		t.Errorf("the header of the program is in %v", p)
	}
	if p := table.Places("work", build, addr); p != nil {
		t.Errorf("a relative path has %v", p)
	}
}

// TestSymbols names functions without debug information.
func TestSymbols(t *testing.T) {
	program := compile(t)
	addr, build := addressOf(t, program, "work")
	table := NewTable()
	defer table.Close()
	if p := table.Places(program, build, addr+1); !reflect.DeepEqual(p, []Place{{Function: "work"}}) {
		t.Errorf("the places are %v", p)
	}
	frames := table.Stack([]*control.CodeFile{{Path: program}, {Path: "/no/lib\x1b[1m.so"}},
		&control.CodeStack{Files: []int32{0, 1, -1, 7}, Addresses: []uint64{addr, 0x10, 0x20, 0x30}})
	var text []string
	for _, f := range frames {
		text = append(text, f.String())
	}
	if got := strings.Join(text, "; "); got != "work() in work; 0x10 in lib?[1m.so; 0x20; 0x30" {
		t.Errorf("the frames are %s", got)
	}
}

// TestRoom: files that take too much memory have no names, or fewer. One that is a pipe has none.
func TestRoom(t *testing.T) {
	program := compile(t, "-g")
	addr, build := addressOf(t, program, "work")
	for want, left := range map[int]room{0: {0, 0}, 1: {0, maxSymbols}, 3: {maxDebug, maxSymbols}} {
		table := NewTable()
		table.room = left
		most := 0
		for at := addr; at < addr+16; at++ {
			most = max(most, len(table.Places(program, build, at)))
		}
		table.Close()
		if most != want {
			t.Errorf("%d places with room %+v", most, left)
		}
	}
	var sum sizes
	left := uint64(5)
	if sum.add(7); sum.fit(&left) || left != 5 {
		t.Error("7 fits into 5")
	}
	if sum.add(math.MaxUint64); sum.fit(&left) {
		t.Error("a sum that wraps fits")
	}
	table := NewTable()
	defer table.Close()
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if p := table.Places(pipe, nil, 1); p != nil {
		t.Errorf("a pipe has %v", p)
	}
}

// TestGo names functions of Go, whose linker may leave out debug information.
func TestGo(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	addr := uint64(reflect.ValueOf(TestGo).Pointer())
	table := NewTable()
	defer table.Close()
	p := table.Places(self, nil, addr)
	if len(p) != 1 || p[0].Function != "margay/cluster/symbol.TestGo" || !strings.HasSuffix(p[0].File, "symbol_test.go") || p[0].Line == 0 {
		t.Errorf("the places are %v", p)
	}
}

// FuzzPlaces looks up addresses in damaged files.
func FuzzPlaces(f *testing.F) {
	data, err := os.ReadFile(compile(f, "-g", "-nostdlib", "-Wl,-e,main"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data, uint64(0x1000))
	f.Add(bytes.Replace(data, []byte(".debug_line"), []byte(".debug_lime"), 1), uint64(0x1004))
	f.Fuzz(func(t *testing.T, data []byte, addr uint64) {
		path := filepath.Join(t.TempDir(), "file")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		table := NewTable()
		defer table.Close()
		if p := table.Places(path, nil, addr); len(p) > maxInlined {
			t.Errorf("%d places", len(p))
		}
	})
}
