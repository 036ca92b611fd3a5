package stack

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// reader reads memory of a process. It fills all of p or returns an error.
type reader interface {
	read(addr uint64, p []byte) error
}

// errMemory reports that memory cannot be read.
var errMemory = errors.New("there is no memory")

// module is a file that is mapped into a process.
type module struct {
	index    int    // in the list of those that were found
	bias     uint64 // address in the process less address in the file
	frameHdr uint64 // address of .eh_frame_hdr; 0: there is none
	frameEnd uint64 // the end of that

	// Without that:
	frames, framesEnd uint64 // [begin, end) of .eh_frame; 0: there is none
	table             []entry
}

// modules finds the files that addresses of a process belong to.
type modules struct {
	mem   reader
	open  Opener
	maps  []mapping // in order
	found []Module
	bases map[uint64]*module // by address of the file's beginning; nil: it is not an ELF file
	known map[uint64]*module // by address of a mapping
	until time.Time          // when unwinding must end; zero: it needs not
}

// late reports whether unwinding must end.
func (ms *modules) late() bool { return !ms.until.IsZero() && time.Now().After(ms.until) }

func newModules(mem reader, maps []mapping, open Opener) *modules {
	return &modules{mem: mem, open: open, maps: maps, bases: make(map[uint64]*module), known: make(map[uint64]*module)}
}

// of returns the module with an address, nil if there is none.
func (ms *modules) of(addr uint64) *module {
	m, ok := find(ms.maps, addr)
	if !ok || !m.file() {
		return nil
	}
	mod, ok := ms.known[m.start]
	if !ok {
		mod = ms.at(m)
		ms.known[m.start] = mod
	}
	return mod
}

// at returns the module that a mapping is of, nil if it is none.
func (ms *modules) at(m mapping) *module {
	base, ok := ms.base(m)
	if !ok {
		return nil
	}
	if known, ok := ms.bases[base]; ok {
		return known
	}
	if len(ms.bases) >= maxModules {
		return nil
	}
	read, err := ms.load(base, m.path)
	if err != nil {
		read = nil
	}
	ms.bases[base] = read
	return read
}

// base returns the address of the beginning of a mapped file: a mapping of the same file before
// this one.
func (ms *modules) base(of mapping) (uint64, bool) {
	base, ok := uint64(0), false
	for _, m := range ms.maps {
		if m.start > of.start {
			break
		}
		if m.offset == 0 && m.path == of.path {
			base, ok = m.start, true
		}
	}
	return base, ok
}

// maxHeaders bounds the program headers of a module.
const maxHeaders = 128

// load reads the headers of the module at an address.
func (ms *modules) load(base uint64, path string) (*module, error) {
	var head elf.Header64
	if err := readStruct(ms.mem, base, &head); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(head.Ident[:], []byte(elf.ELFMAG)) || head.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) ||
		head.Ident[elf.EI_DATA] != byte(elf.ELFDATA2LSB) {
		return nil, errors.New("not an ELF file of 64 bits")
	}
	if head.Phnum > maxHeaders || head.Phentsize != 56 {
		return nil, fmt.Errorf("%d program headers of %d bytes", head.Phnum, head.Phentsize)
	}
	programs := make([]elf.Prog64, head.Phnum)
	if err := readStruct(ms.mem, base+head.Phoff, programs); err != nil {
		return nil, err
	}
	m := &module{index: len(ms.found)}
	for _, p := range programs {
		if elf.ProgType(p.Type) == elf.PT_LOAD {
			m.bias = base + p.Off - p.Vaddr
			break
		}
	}
	out := Module{Path: path[:min(len(path), maxPath)]}
	for _, p := range programs {
		switch elf.ProgType(p.Type) {
		case elf.PT_GNU_EH_FRAME:
			m.frameHdr, m.frameEnd = m.bias+p.Vaddr, m.bias+p.Vaddr+p.Memsz
		case elf.PT_NOTE:
			if len(out.Build) == 0 {
				out.Build = ms.buildID(m.bias+p.Vaddr, p.Filesz)
			}
		}
	}
	if m.frameHdr == 0 && ms.open != nil {
		if f, err := ms.open(path); err == nil {
			if begin, end, ok := frameSection(f); ok {
				m.frames, m.framesEnd = m.bias+begin, m.bias+end
			}
			f.Close()
		}
	}
	ms.found = append(ms.found, out)
	return m, nil
}

// maxNotes bounds the notes of a module, in bytes.
const maxNotes = 4 << 10

// Types of notes with a build id.
const (
	noteGNU = 3 // of the owner GNU
	noteGo  = 4 // of the owner Go
)

// buildID finds the build id in the notes of a module, nil if there is none.
func (ms *modules) buildID(addr, size uint64) []byte {
	data := make([]byte, min(size, maxNotes))
	if ms.mem.read(addr, data) != nil {
		return nil
	}
	return BuildID(data)
}

// BuildID finds the build id in the contents of a segment of notes, nil if there is none. It is cut
// to what fits into a Module.
func BuildID(notes []byte) []byte {
	for n := range eachNote(notes) {
		if n.owner == "GNU" && n.kind == noteGNU || n.owner == "Go" && n.kind == noteGo {
			return bytes.Clone(n.data[:min(len(n.data), maxBuild)])
		}
	}
	return nil
}

// note is an entry of a segment of notes.
type note struct {
	owner string
	kind  uint32
	data  []byte
}

// eachNote goes through a segment of notes, up to one that is not whole.
func eachNote(data []byte) func(yield func(note) bool) {
	return func(yield func(note) bool) {
		for len(data) >= 12 {
			owner, size := binary.LittleEndian.Uint32(data), binary.LittleEndian.Uint32(data[4:])
			kind := binary.LittleEndian.Uint32(data[8:])
			data = data[12:]
			begin := (uint64(owner) + 3) &^ 3
			end := begin + uint64(size)
			if end > uint64(len(data)) {
				return
			}
			name, _, _ := bytes.Cut(data[:owner], []byte{0})
			if !yield(note{string(name), kind, data[begin:end]}) {
				return
			}
			data = data[min(uint64(len(data)), (end+3)&^3):]
		}
	}
}

// readStruct reads a value of fixed size from memory.
func readStruct(mem reader, addr uint64, value any) error {
	data := make([]byte, binary.Size(value))
	if err := mem.read(addr, data); err != nil {
		return err
	}
	_, err := binary.Decode(data, binary.LittleEndian, value)
	return err
}
