package object

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/cilium/ebpf/btf"

	"margay/nimble/isa"
)

// relocations are what a file says about the addresses in it.
type relocations struct {
	file    []byte
	elf     *elf.File
	symbols []elf.Symbol // from the one with number 1 on

	pointers map[string][]Pointer // by the section that holds them
}

// pointerSize is the size of an address in bytes.
const pointerSize = 8

// addressOf is the type of a relocation of an address of 8 bytes in data
// (R_BPF_64_ABS64).
const addressOf = 2

// readRelocations returns the addresses in global data, which the ELF parser
// does not notice, by the section that holds them. It refuses, in the words of
// C, what the parser would refuse without the place: an address of anything but
// global data there, data that is in no section for it, a map that is static.
func readRelocations(file []byte) (map[string][]Pointer, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, fileError(err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil, nil // the ELF parser reports the error
	}
	r := relocations{file: file, elf: f, symbols: symbols, pointers: make(map[string][]Pointer)}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_REL || int(s.Info) >= len(f.Sections) {
			continue
		}
		if err := r.section(s, f.Sections[s.Info]); err != nil {
			return nil, err
		}
	}
	return r.pointers, nil
}

// section checks the relocations of one section.
func (r *relocations) section(s, in *elf.Section) error {
	code, data := in.Flags&elf.SHF_EXECINSTR != 0, in.Flags&elf.SHF_ALLOC != 0 && in.Name != mapSection
	if !code && !data {
		return nil
	}
	table, err := s.Data()
	if err != nil {
		return fileError(err)
	}
	entries := make([]elf.Rel64, len(table)/binary.Size(elf.Rel64{}))
	if _, err := binary.Decode(table, binary.LittleEndian, entries); err != nil {
		return fileError(err)
	}
	var contents []byte
	if data && !code {
		if contents, err = in.Data(); err != nil {
			return fileError(err)
		}
	}
	for _, e := range entries {
		number := int(elf.R_SYM64(e.Info)) - 1
		if number < 0 || number >= len(r.symbols) {
			continue
		}
		symbol := &r.symbols[number]
		if !code {
			if err := r.pointer(in, e, symbol, contents); err != nil {
				return fileError(fmt.Errorf("section %s: %q %w", in.Name, r.at(in, e.Off, elf.STT_OBJECT).Name, err))
			}
			continue
		}
		if reason := r.unsuitable(symbol); reason != "" {
			return r.fail(in, e.Off, reason)
		}
	}
	return nil
}

// pointer adds an address in global data. The number added to the address of the
// symbol is in its place.
func (r *relocations) pointer(in *elf.Section, e elf.Rel64, symbol *elf.Symbol, contents []byte) error {
	name := r.name(symbol)
	if symbol.Section == elf.SHN_UNDEF || int(symbol.Section) >= len(r.elf.Sections) {
		return fmt.Errorf("holds the address of %q, which is not in the object", name)
	}
	to := r.elf.Sections[symbol.Section]
	switch {
	case to.Flags&elf.SHF_EXECINSTR != 0:
		return fmt.Errorf("holds the address of function %q; calls through a pointer are not supported, let the program choose by a number", name)
	case to.Name == mapSection:
		return fmt.Errorf("holds the address of map %q; only instructions can name a map", name)
	}
	if reason := r.unsuitable(symbol); reason != "" {
		return fmt.Errorf("holds an address, but %s", reason)
	}
	size := uint64(len(contents))
	if elf.R_TYPE64(e.Info) != addressOf || size < pointerSize || e.Off > size-pointerSize {
		return fmt.Errorf("holds the address of %q in a form of %d, not of 8 bytes", name, elf.R_TYPE64(e.Info))
	}
	distance := symbol.Value + binary.LittleEndian.Uint64(contents[e.Off:])
	if distance > to.Size {
		return fmt.Errorf("holds an address outside section %s", to.Name)
	}
	r.pointers[in.Name] = append(r.pointers[in.Name], Pointer{in.Name, uint32(e.Off), to.Name, uint32(distance)})
	return nil
}

// mapSection is where clang puts the definitions of maps.
const mapSection = ".maps"

// oldMapSection is where programs defined maps as structures.
const oldMapSection = "maps"

// unsuitable says why an instruction cannot refer to a symbol.
func (r *relocations) unsuitable(s *elf.Symbol) string {
	if s.Section == elf.SHN_UNDEF || int(s.Section) >= len(r.elf.Sections) {
		return ""
	}
	in := r.elf.Sections[s.Section]
	switch base, suffix, _ := strings.Cut(strings.TrimPrefix(in.Name, "."), "."); {
	case in.Name == mapSection && elf.ST_BIND(s.Info) == elf.STB_LOCAL:
		return "a map is static; maps are global"
	case in.Name == mapSection, in.Flags&elf.SHF_EXECINSTR != 0:
	case base == "data", base == "rodata", base == "bss" && suffix == "":
	case in.Name == oldMapSection:
		return fmt.Sprintf("%q is a map as libbpf before 1.0 declared it; maps are declared by their types, in section .maps (see margay.h)", r.name(s))
	default:
		return fmt.Sprintf("%q is in section %s; global data is in .bss, .data or .rodata", r.name(s), in.Name)
	}
	return ""
}

// name returns the name of a symbol, or of the section that it stands for.
func (r *relocations) name(s *elf.Symbol) string {
	if s.Name == "" && int(s.Section) < len(r.elf.Sections) {
		return r.elf.Sections[s.Section].Name
	}
	return s.Name
}

// at returns the function or variable at an offset of a section, without a name
// if there is none.
func (r *relocations) at(in *elf.Section, offset uint64, kind elf.SymType) elf.Symbol {
	for _, s := range r.symbols {
		if elf.ST_TYPE(s.Info) == kind && int(s.Section) < len(r.elf.Sections) && r.elf.Sections[s.Section] == in && offset-s.Value < s.Size {
			return s
		}
	}
	return elf.Symbol{}
}

// fail reports an error at an offset of a section of instructions.
func (r *relocations) fail(in *elf.Section, offset uint64, reason string) error {
	function := r.at(in, offset, elf.STT_FUNC)
	return &Error{
		Program: in.Name + " " + function.Name,
		Slot:    int((offset - function.Value) / isa.SlotSize),
		Line:    r.line(in.Name, int(offset/isa.SlotSize)),
		Reason:  reason,
	}
}

// line returns the source line of a slot of a section, the zero Line if it is
// not known.
func (r *relocations) line(section string, slot int) Line {
	_, infos, err := btf.LoadSpecAndExtInfosFromReader(bytes.NewReader(r.file))
	if err != nil {
		return Line{}
	}
	var lines Lines
	_, offsets, _ := infos.Section(section)
	for _, o := range offsets {
		lines = append(lines, newLine(int(o.Offset), o.Line))
	}
	return lines.At(slot)
}
