package stack

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// CoreFilter is what processes whose dumps ReadCore reads have in /proc/PID/coredump_filter: their
// private memory, in which the stacks are, and no files.
const CoreFilter = "1"

// CoreSize bounds the dumps that ReadCore reads, in bytes. A dump that has been cut there has the
// registers still, which come first, and maybe no stack, which comes last.
const CoreSize = 16 << 20

// Bounds of a dump.
const (
	maxCoreNotes = 1 << 20 // bytes; the notes of the thread with the fault come first
	maxSegments  = 16384
)

// Types of notes in a dump.
const (
	noteStatus  = 1
	noteSigInfo = 0x53494749
	noteFile    = 0x46494c45
)

// segment is a part of memory that is in a dump.
type segment struct{ addr, size, offset uint64 }

// core is a dump of a process's memory.
type core struct {
	file     io.ReaderAt
	machine  *machine
	segments []segment // by address
	maps     []mapping // of files
	open     Opener
	files    map[string]File // nil: it cannot be opened
}

// ReadCore reads how a process was ended from the dump of its memory. pid is the process's own
// number, which must be in the dump.
func ReadCore(file io.ReaderAt, pid int, open Opener) (*Fault, error) {
	c := &core{file: file, open: open, files: make(map[string]File)}
	defer c.close()
	notes, err := c.headers()
	if err != nil {
		return nil, fmt.Errorf("read a dump of memory: %w", err)
	}
	var fault Fault
	var regs registers
	found := 0
	for n := range eachNote(notes) {
		switch {
		case n.owner != "CORE":
		case n.kind == noteStatus && found == 0:
			if found, err = c.machine.status(n.data, &regs); err != nil {
				return nil, err
			}
			if found != pid {
				return nil, fmt.Errorf("the dump is of process %d, not of %d", found, pid)
			}
		case n.kind == noteSigInfo && len(n.data) >= 24:
			fault.Signal = int(int32(binary.LittleEndian.Uint32(n.data)))
			fault.Code = int(int32(binary.LittleEndian.Uint32(n.data[8:])))
			fault.Addr = binary.LittleEndian.Uint64(n.data[16:])
		case n.kind == noteFile:
			c.maps = parseFiles(n.data)
		}
	}
	if found == 0 {
		return nil, errors.New("the dump has no registers")
	}
	until := time.Now().Add(readTime)
	mem := newPages(c, until)
	ms := newModules(mem, c.maps, open)
	ms.until = until
	fault.Stack, _ = c.machine.unwind(ms, mem, regs)
	fault.Modules = ms.found
	return &fault, nil
}

// headers reads the headers of a dump, and returns its notes.
func (c *core) headers() (notes []byte, err error) {
	data := make([]byte, 64)
	if _, err := c.file.ReadAt(data, 0); err != nil {
		return nil, err
	}
	var head elf.Header64
	if _, err := binary.Decode(data, binary.LittleEndian, &head); err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(head.Ident[:], []byte(elf.ELFMAG)) || head.Ident[elf.EI_CLASS] != byte(elf.ELFCLASS64) ||
		elf.Type(head.Type) != elf.ET_CORE || head.Phentsize != 56 || head.Phnum > maxSegments {
		return nil, errors.New("it is not one of 64 bits, or has too many parts")
	}
	switch head.Machine {
	case amd64.elfNumber:
		c.machine = &amd64
	case arm64.elfNumber:
		c.machine = &arm64
	default:
		return nil, fmt.Errorf("its machine is %v", elf.Machine(head.Machine))
	}
	programs := make([]elf.Prog64, head.Phnum)
	data = make([]byte, binary.Size(programs))
	if _, err := c.file.ReadAt(data, int64(head.Phoff)); err != nil {
		return nil, err
	}
	if _, err := binary.Decode(data, binary.LittleEndian, programs); err != nil {
		return nil, err
	}
	for _, p := range programs {
		switch elf.ProgType(p.Type) {
		case elf.PT_NOTE:
			notes = make([]byte, min(p.Filesz, maxCoreNotes))
			n, err := c.file.ReadAt(notes, int64(p.Off))
			if notes = notes[:n]; n == 0 {
				return nil, err
			}
		case elf.PT_LOAD:
			if p.Filesz > 0 && p.Vaddr+p.Filesz >= p.Vaddr {
				c.segments = append(c.segments, segment{p.Vaddr, p.Filesz, p.Off})
			}
		}
	}
	slices.SortFunc(c.segments, func(a, b segment) int { return cmp.Compare(a.addr, b.addr) })
	return notes, nil
}

// parseFiles reads the note about the files that were mapped: counts, a triple of numbers for each,
// and their names, each with a NUL.
func parseFiles(data []byte) (maps []mapping) {
	if len(data) < 16 {
		return nil
	}
	count, page := binary.LittleEndian.Uint64(data), binary.LittleEndian.Uint64(data[8:])
	data = data[16:]
	if count > uint64(len(data))/24 {
		return nil
	}
	names := data[24*count:]
	for ; count > 0; count-- {
		m := mapping{
			start: binary.LittleEndian.Uint64(data), end: binary.LittleEndian.Uint64(data[8:]),
			offset: binary.LittleEndian.Uint64(data[16:]) * page,
		}
		name, rest, _ := bytes.Cut(names, []byte{0})
		m.path, names, data = string(name), rest, data[24:]
		if m.start < m.end && len(m.path) <= maxPath {
			maps = append(maps, m)
		}
	}
	slices.SortFunc(maps, func(a, b mapping) int { return cmp.Compare(a.start, b.start) })
	return maps
}

// status reads the registers of a thread, and the number of its process, from the note about it
// (struct elf_prstatus of Linux).
func (m *machine) status(data []byte, regs *registers) (pid int, err error) {
	const pidAt, registersAt = 32, 112
	if len(data) < registersAt {
		return 0, errors.New("the dump has damaged registers")
	}
	if !m.fill(data[registersAt:], regs) {
		return 0, errors.New("the dump has too few registers")
	}
	return int(int32(binary.LittleEndian.Uint32(data[pidAt:]))), nil
}

// linuxAMD64 has, for each of DWARF's registers, its place in Linux's struct user_regs_struct.
var linuxAMD64 = [...]int{10, 12, 11, 5, 13, 14, 4, 19, 9, 8, 7, 6, 3, 2, 1, 0, 16}

// fill sets registers from what Linux has in a dump and in PTRACE_GETREGSET.
func (m *machine) fill(data []byte, regs *registers) bool {
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(data[8*i:]) }
	if m == &amd64 {
		if len(data) < 27*8 {
			return false
		}
		for reg, place := range linuxAMD64 {
			regs.set(uint64(reg), word(place))
		}
		regs.pc = word(16)
		return true
	}
	if len(data) < 34*8 {
		return false
	}
	for reg := range maxRegisters {
		regs.set(uint64(reg), word(reg))
	}
	regs.pc = word(32)
	return true
}

// read implements reader: from the dump, and from the files that were mapped.
func (c *core) read(addr uint64, p []byte) error {
	i, found := slices.BinarySearchFunc(c.segments, addr, func(s segment, addr uint64) int { return cmp.Compare(s.addr, addr) })
	if !found {
		i--
	}
	if i >= 0 {
		if s := c.segments[i]; addr-s.addr < s.size && uint64(len(p)) <= s.size-(addr-s.addr) {
			if _, err := c.file.ReadAt(p, int64(s.offset+addr-s.addr)); err == nil {
				return nil
			}
		}
	}
	m, ok := find(c.maps, addr)
	if !ok || uint64(len(p)) > m.end-addr {
		return errMemory
	}
	f := c.fileOf(m.path)
	if f == nil {
		return errMemory
	}
	n, err := f.ReadAt(p, int64(m.offset+addr-m.start))
	if n == 0 && err != nil {
		return err
	}
	clear(p[n:]) // the last page of a file
	return nil
}

// fileOf opens a file of the process, nil if there is none.
func (c *core) fileOf(path string) File {
	f, known := c.files[path]
	if known || len(c.files) >= maxModules {
		return f
	}
	f, err := c.open(path)
	if err != nil {
		f = nil
	}
	c.files[path] = f
	return f
}

func (c *core) close() {
	for _, f := range c.files {
		if f != nil {
			f.Close()
		}
	}
}
