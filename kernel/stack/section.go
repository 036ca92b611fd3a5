package stack

import (
	"bytes"
	"cmp"
	"debug/elf"
	"encoding/binary"
	"io"
	"slices"
)

// Opener opens a file that a process executes, by its path in the process's root, so that neither
// this nor reading waits for another process. It may be nil.
type Opener func(path string) (File, error)

// File is a regular file.
type File interface {
	io.ReaderAt
	io.Closer
}

// Bounds of an executable without a table of its call frame information, as the GNU linker makes it
// with -static.
const (
	maxSections = 1024
	maxNames    = 64 << 10
	maxFrameLen = 8 << 20 // bytes of .eh_frame
	maxEntries  = 1 << 18
)

// frameSection finds .eh_frame in the file of a module: its [begin, end) in the file's addresses.
func frameSection(f io.ReaderAt) (begin, end uint64, ok bool) {
	var head elf.Header64
	if readAt(f, 0, &head) != nil || !bytes.HasPrefix(head.Ident[:], []byte(elf.ELFMAG)) ||
		head.Shentsize != 64 || head.Shnum > maxSections || head.Shstrndx >= head.Shnum {
		return 0, 0, false
	}
	sections := make([]elf.Section64, head.Shnum)
	if readAt(f, head.Shoff, sections) != nil {
		return 0, 0, false
	}
	named := sections[head.Shstrndx]
	names := make([]byte, min(named.Size, maxNames))
	if n, _ := f.ReadAt(names, int64(named.Off)); n < len(names) {
		return 0, 0, false
	}
	for _, s := range sections {
		if uint64(s.Name) < uint64(len(names)) && bytes.HasPrefix(names[s.Name:], []byte(".eh_frame\x00")) && s.Addr+s.Size >= s.Addr {
			return s.Addr, s.Addr + s.Size, true
		}
	}
	return 0, 0, false
}

func readAt(f io.ReaderAt, offset uint64, value any) error {
	data := make([]byte, binary.Size(value))
	if _, err := f.ReadAt(data, int64(offset)); err != nil {
		return err
	}
	_, err := binary.Decode(data, binary.LittleEndian, value)
	return err
}

// entry is where the call frame information of a function is.
type entry struct{ begin, addr uint64 }

// scan makes the table that a module lacks, from all entries of its .eh_frame. An entry that is not
// understood ends the table.
func scan(mem reader, begin, end uint64) (table []entry) {
	end = min(end, begin+maxFrameLen)
	table = []entry{}                    // not nil: it has been made
	encodings := make(map[uint64]uint64) // of common entries
	for at := begin; at < end && len(table) < maxEntries; {
		c, id, idAddr, err := readEntry(mem, at)
		if err != nil {
			break // also the end, which is an entry of length 0
		}
		at = idAddr + uint64(len(c.data)) + 4
		if id == 0 {
			continue
		}
		common := idAddr - id
		enc, known := encodings[common]
		if !known {
			if _, enc, err = new(function).common(mem, common); err != nil {
				break
			}
			encodings[common] = enc
		}
		if first := c.pointer(enc); c.err == nil {
			table = append(table, entry{first, idAddr - 4})
		}
	}
	slices.SortFunc(table, func(a, b entry) int { return cmp.Compare(a.begin, b.begin) })
	return table
}

// scanned finds the call frame information of the code at an address in the table of a module that
// has none of its own.
func (m *module) scanned(mem reader, pc uint64) (*function, error) {
	if m.table == nil {
		m.table = scan(mem, m.frames, m.framesEnd)
	}
	i, found := slices.BinarySearchFunc(m.table, pc, func(e entry, pc uint64) int { return cmp.Compare(e.begin, pc) })
	if !found {
		i--
	}
	if i < 0 {
		return nil, errFrame
	}
	return readFunction(mem, m.table[i].addr, pc)
}
