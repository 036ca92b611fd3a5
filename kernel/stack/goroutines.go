package stack

import (
	"bytes"
	"encoding/binary"
	"math"
)

// GoLayout says where Go's runtime keeps the goroutines of a program, by its debug information.
type GoLayout struct {
	Path   string // of the program
	Build  []byte
	All    uint64 // address of the list of all goroutines, in the numbers of the file
	SP     uint64 // offsets in a goroutine: where it goes on
	PC     uint64
	BP     uint64
	Status uint64 // and its status, 32 bits
}

// Bounds of a reading of goroutines.
const (
	maxGoroutines = 10000    // of a process
	maxGOffset    = 1 << 10  // bytes of a goroutine's description
	maxGoStack    = 16 << 10 // bytes of its stack that are looked at
)

// The statuses of goroutines that no thread runs (runtime/runtime2.go); the garbage collector
// sets another bit while it reads a stack.
const (
	goRunnable  = 1
	goWaiting   = 4
	goPreempted = 9
	goScan      = 0x1000
)

// goroutines adds the goroutines that no thread runs. The process goes on: a goroutine
// that has moved while it was read is left out.
func (p *Process) goroutines(mem processMemory, ms *modules, l GoLayout) {
	m := ms.named(l.Path, l.Build)
	if m == nil || max(l.SP, l.PC, l.BP, l.Status) > maxGOffset {
		return
	}
	var list struct{ First, Len uint64 }
	if readStruct(mem, m.bias+l.All, &list) != nil {
		return
	}
	if list.Len > maxGoroutines {
		p.Left, list.Len = p.Left+int(min(list.Len-maxGoroutines, math.MaxInt32)), maxGoroutines
	}
	all := make([]uint64, list.Len)
	if list.Len == 0 || readStruct(mem, list.First, all) != nil {
		return
	}
	for i, g := range all {
		if ms.late() {
			p.Left += len(all) - i
			return
		}
		var before, after [maxGOffset + 8]byte
		if mem.read(g, before[:]) != nil {
			continue
		}
		word := func(offset uint64) uint64 { return binary.LittleEndian.Uint64(before[offset:]) }
		switch binary.LittleEndian.Uint32(before[l.Status:]) &^ goScan {
		case goRunnable, goWaiting, goPreempted:
		default:
			continue
		}
		regs := registers{pc: word(l.PC)}
		regs.set(native.sp, word(l.SP))
		regs.set(native.fp, word(l.BP))
		copied := &snapshot{addr: word(l.SP), data: make([]byte, maxGoStack), rest: mem}
		if m, ok := find(ms.maps, copied.addr); !ok || mem.read(copied.addr, copied.data[:min(maxGoStack, m.end-copied.addr)]) != nil {
			continue
		}
		frames, cut := native.unwind(ms, copied, regs)
		same := func(offset uint64, size uint64) bool {
			return bytes.Equal(before[offset:offset+size], after[offset:offset+size])
		}
		if mem.read(g, after[:]) == nil && same(l.Status, 4) && same(l.SP, 8) && same(l.PC, 8) && same(l.BP, 8) {
			p.add(Threads{Stack: frames, Count: 1, Main: i == 0, Cut: cut, Goroutine: true})
		}
	}
}

// named returns the module of a file that was found before, nil if it was not.
func (ms *modules) named(path string, build []byte) *module {
	for _, m := range ms.bases {
		if m != nil && ms.found[m.index].Path == path && bytes.Equal(ms.found[m.index].Build, build) {
			return m
		}
	}
	return nil
}
