// Package stack finds out where the threads of a process are: of a running one (Read), and of one
// that has dumped its memory (ReadCore).
//
// A thread is stopped only while its registers and its stack are copied. The copy is then unwound
// by the call frame information that compilers leave in programs (.eh_frame), as a debugger does,
// and by frame pointers where there is none, as in Go programs. The result is addresses in
// executables and libraries as these have them in their files, so stacks of processes at different
// addresses are equal. Package symbol adds names and lines where the files are.
//
// Everything that is read belongs to a program that may mean harm: each loop and each size is
// bounded, and nothing read is used as an address here. Memory of a process may take for ever to
// read (userfaultfd, a file of a server that is gone); callers bound the time and run Read and
// ReadCore in goroutines of their own.
package stack

import (
	"fmt"
	"slices"
	"strings"
)

// Bounds of a report.
const (
	MaxFrames  = 64        // of a stack; deeper ones are cut
	maxThreads = 256       // of a process
	maxModules = 512       // of a process
	maxStack   = 128 << 10 // bytes of a stack that are copied
	maxMaps    = 4 << 20   // bytes of /proc/PID/maps
	maxPath    = 4096      // bytes of a path
	maxBuild   = 64        // bytes of a build id
)

// Module is a file that a process executes.
type Module struct {
	Path  string // in the root of the process
	Build []byte // GNU build id or Go's; empty: it has none
}

// Frame is a place in a program.
type Frame struct {
	// Module is the index of the file; -1: there is none, as for code made at run time.
	Module int

	// Addr is an address in the file's own numbers, or, without a file, in the process. It is the
	// instruction that a thread executes next, or lies in the one that calls the frame before.
	Addr uint64
}

// Stack is where a thread is, innermost frame first.
type Stack []Frame

// Threads are the threads of one process that have equal stacks.
type Threads struct {
	Stack Stack
	Count int
	Main  bool // the process's first thread is one of them
	Cut   bool // there are more frames

	// Goroutine says that they are goroutines which no thread runs. Main is then the first one.
	Goroutine bool
}

// Process is where all threads of a process are.
type Process struct {
	Modules []Module
	Threads []Threads
	Left    int // threads that are left out, because there are too many or they did not stop
}

// Fault is how a process that has dumped its memory was ended.
type Fault struct {
	Signal  int
	Code    int    // what the signal's si_code says
	Addr    uint64 // the address that it was about, of those signals that have one
	Modules []Module
	Stack   Stack
}

// add notes one more thread.
func (p *Process) add(t Threads) {
	for i := range p.Threads {
		known := &p.Threads[i]
		if known.Goroutine == t.Goroutine && slices.Equal(known.Stack, t.Stack) {
			known.Count += t.Count
			known.Main = known.Main || t.Main
			return
		}
	}
	p.Threads = append(p.Threads, t)
}

// mapping is a part of the address space of a process.
type mapping struct {
	start, end uint64 // [start, end)
	offset     uint64 // of start in the file
	path       string // empty: no file
}

// file reports whether the mapping is of a file or of the vDSO, so that it may have code in the
// format of ELF.
func (m mapping) file() bool { return strings.HasPrefix(m.path, "/") || m.path == "[vdso]" }

// parseMaps reads /proc/PID/maps. Lines that it does not understand are left out.
func parseMaps(text string) (maps []mapping) {
	for line := range strings.Lines(text) {
		var m mapping
		var perms, device string
		var inode uint64
		line = strings.TrimSuffix(line, "\n")
		if n, _ := fmt.Sscanf(line, "%x-%x %4s %x %s %d", &m.start, &m.end, &perms, &m.offset, &device, &inode); n < 6 || m.end <= m.start {
			continue
		}
		// The path begins at a fixed column, after the five fields before and blanks.
		if at := strings.IndexAny(line, "/["); at >= 0 {
			m.path = strings.TrimSuffix(line[at:], " (deleted)")
		}
		maps = append(maps, m)
	}
	return maps
}

// find returns the mapping with an address.
func find(maps []mapping, addr uint64) (mapping, bool) {
	i, _ := slices.BinarySearchFunc(maps, addr, func(m mapping, addr uint64) int {
		if m.end <= addr {
			return -1
		}
		return 1
	})
	if i < len(maps) && maps[i].start <= addr {
		return maps[i], true
	}
	return mapping{}, false
}
