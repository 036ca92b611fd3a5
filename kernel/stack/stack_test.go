package stack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseMaps(t *testing.T) {
	got := parseMaps(`00400000-00401000 r--p 00000000 fe:01 1234                               /home/u/a b
00401000-00402000 r-xp 00001000 fe:01 1234                               /home/u/a b
7ffff7fc1000-7ffff7fc3000 r-xp 00000000 00:00 0                          [vdso]
damaged
7ffff7ff0000-7ffff7ff1000 rw-p 00000000 00:00 0 
7ffff7ff2000-7ffff7ff3000 r-xp 00000000 00:01 9                          /memfd:x (deleted)
`)
	want := []mapping{
		{0x400000, 0x401000, 0, "/home/u/a b"}, {0x401000, 0x402000, 0x1000, "/home/u/a b"},
		{0x7ffff7fc1000, 0x7ffff7fc3000, 0, "[vdso]"}, {0x7ffff7ff0000, 0x7ffff7ff1000, 0, ""}, {0x7ffff7ff2000, 0x7ffff7ff3000, 0, "/memfd:x"},
	}
	if !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	for addr, path := range map[uint64]string{0x3fffff: "-", 0x400000: "/home/u/a b", 0x401fff: "/home/u/a b", 0x402000: "-", 0x7ffff7ff2800: "/memfd:x"} {
		if m, ok := find(got, addr); ok != (path != "-") || ok && m.path != path {
			t.Errorf("%#x is in %+v, %v", addr, m, ok)
		}
	}
}

func TestLEB(t *testing.T) {
	for want, data := range map[int64][]byte{0: {0}, 2: {2}, -2: {0x7e}, 127: {0xff, 0}, -127: {0x81, 0x7f}, 128: {0x80, 1}, -129: {0xff, 0x7e}} {
		if c := (&cursor{data: data}); c.sleb() != want || c.err != nil || len(c.data) > 0 {
			t.Errorf("%x is not %d", data, want)
		}
	}
	if c := (&cursor{data: []byte{0xe5, 0x8e, 0x26}}); c.uleb() != 624485 || c.err != nil {
		t.Error("unsigned")
	}
	if c := (&cursor{data: bytes.Repeat([]byte{0xff}, 100)}); c.uleb() == 1 || c.err == nil {
		t.Error("a number without an end is accepted")
	}
}

func TestEvaluate(t *testing.T) {
	var regs registers
	regs.set(7, 1000)
	mem := &snapshot{addr: 1008, data: binary.LittleEndian.AppendUint64(nil, 77), rest: nothing{}}
	for _, k := range []struct {
		code []byte
		want uint64 // math.MaxUint64: an error
	}{
		{[]byte{opBReg0 + 7, 8, opDeref}, 77},
		{[]byte{opBReg0 + 7, 8, opBReg0 + 7, 0, opConst1U, 15, opAnd, opConst1U, 11, opGe, opLit0 + 3, opShl, opPlus}, 1008}, // an entry of .plt
		{[]byte{opLit0 + 5, opLit0 + 3, opSwap, opMinus}, ^uint64(1)},
		{[]byte{opConst2S, 0xfe, 0xff}, math.MaxUint64 - 1},
		{[]byte{opPlus}, math.MaxUint64},
		{[]byte{opBReg0 + 8, 0}, math.MaxUint64},
		{[]byte{opLit0, opDeref}, math.MaxUint64},
		{slices.Repeat([]byte{opLit0}, 100), math.MaxUint64},
	} {
		got, err := evaluate(mem, &regs, k.code)
		if err != nil {
			got = math.MaxUint64
		}
		if got != k.want {
			t.Errorf("%x: %#x, %v", k.code, got, err)
		}
	}
}

// nothing is memory that is not there.
type nothing struct{}

func (nothing) read(uint64, []byte) error { return errMemory }

// TestFramePointers unwinds code without call frame information, up to a frame that points back.
func TestFramePointers(t *testing.T) {
	words := []uint64{0, 0, 0x2010, 0x400101, 0x2028, 0x400201, 0, 0x2010, 0x400301}
	words[2] = 0x2020 // at 0x2010: the caller's frame pointer
	words[4] = 0x2010 // at 0x2020: back
	mem := &snapshot{addr: 0x2000, rest: nothing{}}
	for _, w := range words {
		mem.data = binary.LittleEndian.AppendUint64(mem.data, w)
	}
	ms := newModules(mem, []mapping{{0x400000, 0x401000, 0x1000, "/no/elf"}}, nil)
	regs := registers{pc: 0x400001}
	regs.set(amd64.sp, 0x2000)
	regs.set(amd64.fp, 0x2010)
	got, cut := amd64.unwind(ms, mem, regs)
	want := Stack{{-1, 0x400001}, {-1, 0x400100}, {-1, 0x400200}}
	if !slices.Equal(got, want) || cut {
		t.Errorf("%+v, %v", got, cut)
	}
}

// TestLate: what takes too long is cut.
func TestLate(t *testing.T) {
	past := time.Now().Add(-time.Second)
	ms := newModules(nothing{}, []mapping{{0x400000, 0x401000, 0x1000, "/no/elf"}}, nil)
	ms.until = past
	regs := registers{pc: 0x400001}
	if got, cut := amd64.unwind(ms, nothing{}, regs); len(got) > 0 || !cut {
		t.Errorf("%+v, %v", got, cut)
	}
	memory := newPages(&snapshot{addr: 0, data: make([]byte, 2*cachePage), rest: nothing{}}, past)
	if memory.read(8, make([]byte, 8)) == nil {
		t.Error("memory is read")
	}
}

func TestBuilder(t *testing.T) {
	b := NewBuilder()
	modules := []Module{{"/lib/x", []byte{1}}, {"/bin/app", nil}}
	swapped := []Module{modules[1], modules[0]}
	b.Add(0, &Process{modules, []Threads{{Stack{{0, 5}, {1, 6}}, 1, true, false, false}, {Stack{{1, 9}}, 3, false, false, false}}, 0})
	b.Add(1, &Process{swapped, []Threads{{Stack{{1, 5}, {0, 6}}, 2, true, false, false}}, 4})
	b.Add(2, &Process{modules, []Threads{{Stack{{1, 5}, {0, 6}}, 1, true, false, false}, {Stack{{1, 5}, {0, 6}}, 5, false, false, true}}, 0})
	b.Fail(3, errors.New("no"))
	want := Report{
		Modules: modules,
		Groups: []Group{
			{Stack{{0, 5}, {1, 6}}, false, []Member{{0, 1, true}, {1, 2, true}}, false},
			{Stack{{1, 9}}, false, []Member{{0, 3, false}}, false},
			{Stack{{1, 5}, {0, 6}}, false, []Member{{2, 1, true}}, false},
			{Stack{{1, 5}, {0, 6}}, false, []Member{{2, 5, false}}, true},
		},
		Unread: []Unread{{3, "no"}}, Left: 4,
	}
	if !reflect.DeepEqual(b.Report, want) {
		t.Errorf("%+v", b.Report)
	}
}

// TestBuilderBound adds ranks that have nothing in common.
func TestBuilderBound(t *testing.T) {
	b := NewBuilder()
	const ranks = 600
	for r := range uint32(ranks) {
		deep := make(Stack, MaxFrames)
		for i := range deep {
			deep[i] = Frame{-1, uint64(r)<<32 | uint64(i)}
		}
		b.Add(r, &Process{Threads: []Threads{{Stack: deep, Count: 1}}})
	}
	if len(b.Groups) != maxReportFrames/MaxFrames || b.Left != ranks-len(b.Groups) {
		t.Errorf("%d groups, %d left out", len(b.Groups), b.Left)
	}
}

func TestShorten(t *testing.T) {
	long := strings.Repeat("x", 60)
	f := Fault{
		Modules: []Module{{Path: "unused"}, {Path: "/a"}, {Path: long}, {Path: long + "y"}},
		Stack:   Stack{{1, 1}, {2, 2}, {-1, 9}, {1, 3}, {3, 4}, {1, 5}},
	}
	f.Shorten(10, 100)
	if want := (Stack{{0, 1}, {1, 2}, {-1, 9}, {0, 3}}); !slices.Equal(f.Stack, want) || len(f.Modules) != 2 || f.Modules[1].Path != long {
		t.Errorf("%+v", f)
	}
	f.Shorten(1, 100)
	if len(f.Stack) != 1 || len(f.Modules) != 1 {
		t.Errorf("%+v", f)
	}
}

// ownVDSO returns a file that is in each process: with headers, notes and call frame information.
func ownVDSO(f *testing.F) (data []byte, addr uint64) {
	maps, err := readMaps(os.Getpid())
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range maps {
		if m.path == "[vdso]" {
			data := make([]byte, m.end-m.start)
			if err := processMemory(os.Getpid()).read(m.start, data); err != nil {
				f.Fatal(err)
			}
			return data, m.start
		}
	}
	f.Skip("this Linux has no vDSO")
	return nil, 0
}

// FuzzUnwind unwinds stacks through a damaged file.
func FuzzUnwind(f *testing.F) {
	image, _ := ownVDSO(f)
	f.Add(image, uint32(0xa00), []byte{1, 2, 3, 4, 5, 6, 7, 8})
	f.Add([]byte("\x7fELF\x02\x01"), uint32(0), []byte{})
	f.Fuzz(func(t *testing.T, image []byte, at uint32, stack []byte) {
		const base, top = 0x10000, 0x7f0000
		if len(image) == 0 {
			return
		}
		mem := &snapshot{base, image, &snapshot{top, stack, nothing{}}}
		ms := newModules(mem, []mapping{{base, base + uint64(len(image)), 0, "/x"}}, func(string) (File, error) { return memoryFile{bytes.NewReader(image)}, nil })
		for _, m := range []*machine{&amd64, &arm64} {
			regs := registers{pc: base + uint64(at)%uint64(len(image))}
			for reg := range uint64(maxRegisters) {
				regs.set(reg, top)
			}
			if frames, _ := m.unwind(ms, mem, regs); len(frames) == 0 || len(frames) > MaxFrames {
				t.Errorf("%d frames", len(frames))
			}
		}
	})
}

// FuzzReadCore reads damaged dumps of memory.
func FuzzReadCore(f *testing.F) {
	seed := recordedCore()
	if fault, err := ReadCore(bytes.NewReader(seed), 5, noFile); err != nil || fault.Signal != 11 || !slices.Equal(fault.Stack, Stack{{-1, 0x400123}}) {
		f.Fatalf("%+v, %v", fault, err)
	}
	f.Add(seed)
	f.Fuzz(func(t *testing.T, data []byte) {
		if fault, err := ReadCore(bytes.NewReader(data), 5, noFile); err == nil && len(fault.Stack) > MaxFrames {
			t.Errorf("%d frames", len(fault.Stack))
		}
	})
}

func noFile(string) (File, error) { return nil, os.ErrNotExist }

// memoryFile is a file in memory.
type memoryFile struct{ *bytes.Reader }

func (memoryFile) Close() error { return nil }

// recordedCore is a dump of a process with number 5 that has ended at 0x400123.
func recordedCore() []byte {
	le := binary.LittleEndian
	status := make([]byte, 336)
	le.PutUint32(status[32:], 5)
	le.PutUint64(status[112+16*8:], 0x400123)
	le.PutUint64(status[112+19*8:], 0x7000)
	signal := make([]byte, 128)
	le.PutUint32(signal, 11)
	le.PutUint32(signal[8:], 1)
	var notes []byte
	for _, n := range []note{{"CORE", noteStatus, status}, {"CORE", noteSigInfo, signal}} {
		notes = le.AppendUint32(notes, uint32(len(n.owner)+1))
		notes = le.AppendUint32(notes, uint32(len(n.data)))
		notes = le.AppendUint32(notes, n.kind)
		notes = append(append(notes, "CORE\x00\x00\x00\x00"...), n.data...)
	}
	core := make([]byte, 64+56)
	copy(core, "\x7fELF\x02\x01\x01")
	le.PutUint16(core[16:], 4)  // ET_CORE
	le.PutUint16(core[18:], 62) // amd64
	le.PutUint64(core[32:], 64) // program headers
	le.PutUint16(core[54:], 56)
	le.PutUint16(core[56:], 1)
	le.PutUint32(core[64:], 4) // PT_NOTE
	le.PutUint64(core[64+8:], 64+56)
	le.PutUint64(core[64+32:], uint64(len(notes)))
	return append(core, notes...)
}
