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
}

// checkRelocations refuses, in the words of C, what the ELF parser would refuse
// without the place or not notice at all: an address in global data, which stays
// zero, data that is in no section for it, a map that is static.
func checkRelocations(file []byte) error {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return fileError(err)
	}
	symbols, err := f.Symbols()
	if err != nil {
		return nil // the ELF parser reports the error
	}
	r := relocations{file, f, symbols}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_REL || int(s.Info) >= len(f.Sections) {
			continue
		}
		if err := r.section(s, f.Sections[s.Info]); err != nil {
			return err
		}
	}
	return nil
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
	for _, e := range entries {
		number := int(elf.R_SYM64(e.Info)) - 1
		if number < 0 || number >= len(r.symbols) {
			continue
		}
		symbol := &r.symbols[number]
		if !code {
			return fileError(fmt.Errorf("section %s: %q holds the address of %q; addresses in global data are not supported, let the program store it",
				in.Name, r.at(in, e.Off, elf.STT_OBJECT).Name, r.name(symbol)))
		}
		if reason := r.unsuitable(symbol); reason != "" {
			return r.fail(in, e.Off, reason)
		}
	}
	return nil
}

// mapSection is where clang puts the definitions of maps.
const mapSection = ".maps"

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
