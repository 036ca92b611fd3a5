package object

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strconv"
)

// Limits of an ELF object. Those on names and on products exist because the
// parsers copy: a name once per symbol that shares it, a program once per
// program that calls into it, a type graph once per variable.
const (
	maxFile     = 4 << 20
	maxSections = 256
	maxData     = 16 << 20 // all data sections together, .bss included
	maxTypes    = 256 << 10
	maxName     = 1024
	maxSymbols  = 16 << 10
	maxLinked   = MaxInstructions // slots, times programs
	maxTyped    = 512 << 10       // variables, times types
)

// checkELF bounds what the ELF parser can be made to do by a hostile file: it
// accepts only what clang writes for BPF, with every section inside the file,
// nothing compressed, and no names or symbols that multiply.
func checkELF(file []byte) error {
	if len(file) > maxFile {
		return fmt.Errorf("%d bytes, at most %d are accepted", len(file), maxFile)
	}
	var h elf.Header64
	if err := read(file, 0, &h); err != nil {
		return fmt.Errorf("not an ELF file: %w", err)
	}
	if string(h.Ident[:4]) != elf.ELFMAG {
		return fmt.Errorf("not an ELF file")
	}
	class, data := elf.Class(h.Ident[elf.EI_CLASS]), elf.Data(h.Ident[elf.EI_DATA])
	if data == elf.ELFDATA2MSB {
		return fmt.Errorf("a big-endian object (bpfeb) is not a little-endian BPF object: compile with -target bpf")
	}
	if class != elf.ELFCLASS64 || data != elf.ELFDATA2LSB || elf.Machine(h.Machine) != elf.EM_BPF || elf.Type(h.Type) != elf.ET_REL {
		return fmt.Errorf("%v %v %v %v is not a little-endian BPF object", class, data, elf.Machine(h.Machine), elf.Type(h.Type))
	}
	if h.Phnum != 0 || h.Shnum == 0 || h.Shnum > maxSections {
		return fmt.Errorf("%d sections, %d segments", h.Shnum, h.Phnum)
	}
	sections := make([]elf.Section64, h.Shnum)
	if err := read(file, h.Shoff, sections); err != nil {
		return fmt.Errorf("section headers: %w", err)
	}
	if !hasNames(sections, uint32(h.Shstrndx)) {
		return fmt.Errorf("section %d has no names of sections", h.Shstrndx)
	}
	return checkSections(file, sections, sections[h.Shstrndx])
}

// hasNames reports whether a section is a string table, so that checkSections
// has bounded its strings.
func hasNames(sections []elf.Section64, index uint32) bool {
	return int(index) < len(sections) && elf.SectionType(sections[index].Type) == elf.SHT_STRTAB
}

// read decodes the value at an offset of the file.
func read(file []byte, offset uint64, value any) error {
	size := uint64(binary.Size(value))
	if offset > uint64(len(file)) || size > uint64(len(file))-offset {
		return fmt.Errorf("%d bytes at %#x are outside the file", size, offset)
	}
	_, err := binary.Decode(file[offset:], binary.LittleEndian, value)
	return err
}

func checkSections(file []byte, sections []elf.Section64, names elf.Section64) error {
	var total, types, relocations uint64
	for i, s := range sections {
		if elf.SectionType(s.Type) == elf.SHT_REL {
			relocations += min(s.Size, uint64(len(file)))
		}
		switch {
		case elf.SectionType(s.Type) == elf.SHT_NULL:
		case elf.SectionFlag(s.Flags)&elf.SHF_COMPRESSED != 0:
			return fmt.Errorf("section %d is compressed", i)
		case elf.SectionType(s.Type) == elf.SHT_NOBITS:
			if s.Size > maxData {
				return fmt.Errorf("section %s has %d bytes of data, and all sections may have %d: keep more in a map", sectionName(file, names, s), s.Size, maxData)
			}
			total += s.Size
		case s.Off > uint64(len(file)) || s.Size > uint64(len(file))-s.Off:
			return fmt.Errorf("section %d is not inside the file", i)
		case binary.LittleEndian.Uint16(padded(file[s.Off:s.Off+s.Size])) == btfMagic:
			types += s.Size
			if s.Size > maxTypes || !shortNames(file[s.Off:s.Off+s.Size]) {
				return fmt.Errorf("section %d: more BTF than %d bytes or a name over %d", i, maxTypes, maxName)
			}
		case elf.SectionType(s.Type) == elf.SHT_STRTAB && !shortNames(file[s.Off:s.Off+s.Size]):
			return fmt.Errorf("section %d: a name over %d bytes", i, maxName)
		}
	}
	if total > maxData {
		return fmt.Errorf("more than %d bytes of data", maxData)
	}
	if relocations > uint64(len(file)) {
		return fmt.Errorf("sections of relocations overlap")
	}
	for i, s := range sections {
		if elf.SectionType(s.Type) == elf.SHT_SYMTAB {
			if !hasNames(sections, s.Link) {
				return fmt.Errorf("section %d: section %d has no names of symbols", i, s.Link)
			}
			if err := checkSymbols(file[s.Off:s.Off+s.Size], sections, types/12); err != nil {
				return fmt.Errorf("section %d: %w", i, err)
			}
		}
	}
	return nil
}

// sectionName returns the name of a section from the table of names, in quotes.
func sectionName(file []byte, names, s elf.Section64) string {
	at := names.Off + uint64(s.Name)
	if at < names.Off || at >= uint64(len(file)) {
		return strconv.Quote("")
	}
	name, _, _ := bytes.Cut(file[at:min(at+maxName, uint64(len(file)))], []byte{0})
	return strconv.Quote(string(name))
}

// checkPointers bounds the copies of addresses in global data, for each of
// so many programs.
func checkPointers(pointers map[string][]Pointer, programs int) error {
	total := 0
	for _, list := range pointers {
		total += len(list)
	}
	if total*programs > maxLinked {
		return fmt.Errorf("%d addresses in global data for %d programs: too many", total, programs)
	}
	return nil
}

// btfMagic begins the sections .BTF and .BTF.ext.
const btfMagic = 0xeb9f

// padded returns at least two bytes.
func padded(b []byte) []byte {
	if len(b) < 2 {
		return []byte{0, 0}
	}
	return b
}

// shortNames reports whether no string in a table is longer than maxName.
func shortNames(table []byte) bool {
	run := 0
	for _, b := range table {
		if run++; b == 0 {
			run = 0
		}
		if run > maxName {
			return false
		}
	}
	return true
}

// checkSymbols checks that symbols do not overlap, so that the file bounds the sum of their sizes,
// and bounds the copies per symbol.
func checkSymbols(table []byte, sections []elf.Section64, types uint64) error {
	symbols := make([]elf.Sym64, len(table)/elf.Sym64Size)
	if len(symbols) > maxSymbols {
		return fmt.Errorf("%d symbols, at most %d are accepted", len(symbols), maxSymbols)
	}
	if _, err := binary.Decode(table, binary.LittleEndian, symbols); err != nil {
		return err
	}
	return checkSums(symbols, sections, types)
}

// checkSums adds up the sizes of symbols, those at the same place once.
func checkSums(symbols []elf.Sym64, sections []elf.Section64, types uint64) error {
	type place struct {
		section uint16
		value   uint64
	}
	sizes := make(map[place]uint64)
	for _, s := range symbols {
		if int(s.Shndx) >= len(sections) || s.Size == 0 {
			continue
		}
		if size := sections[s.Shndx].Size; s.Value > size || s.Size > size-s.Value {
			return fmt.Errorf("a symbol is not inside its section %d", s.Shndx)
		}
		at := place{s.Shndx, s.Value}
		sizes[at] = max(sizes[at], s.Size)
	}
	named := make([]uint64, len(sections)) // bytes that the symbols of a section name
	var functions, variables, slots uint64
	for at, size := range sizes {
		named[at.section] += size
		if elf.SectionFlag(sections[at.section].Flags)&elf.SHF_EXECINSTR != 0 {
			functions++
			slots += size / 8
		} else {
			variables++
		}
	}
	for i, s := range sections {
		if named[i] > s.Size {
			return fmt.Errorf("symbols of section %d overlap", i)
		}
	}
	if functions*slots > maxLinked || variables*types > maxTyped {
		return fmt.Errorf("%d functions of %d instructions, %d variables for %d types: too many", functions, slots, variables, types)
	}
	return nil
}
