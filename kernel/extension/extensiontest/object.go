// Package extensiontest assembles extensions for tests into ELF files like those from clang.
package extensiontest

import (
	"debug/elf"
	"encoding/binary"
	"testing"

	"margay/nimble/isa"
)

// Program is a program of an object.
type Program struct {
	Section string // its slot, optionally followed by a slash and a name
	Name    string
	Code    []string // instructions as isa.Parse reads them
}

// Message returns a program for the message slot.
func Message(name string, code ...string) Program { return Program{"message", name, code} }

// Answer returns a program for the message slot with a constant answer.
func Answer(name, number string) Program { return Message(name, "mov r0, "+number, "exit") }

// Object returns an ELF file with these programs and without maps.
func Object(t testing.TB, programs ...Program) []byte {
	t.Helper()
	names := []byte{0}
	name := func(text string) uint32 {
		names = append(append(names, text...), 0)
		return uint32(len(names) - len(text) - 1)
	}
	file := make([]byte, binary.Size(elf.Header64{}))
	sections := make([]elf.Section64, 1)
	section := func(s elf.Section64, content []byte) {
		s.Off, s.Size, s.Addralign = uint64(len(file)), uint64(len(content)), 8
		file = append(file, content...)
		sections = append(sections, s)
	}
	symbols := make([]byte, elf.Sym64Size) // symbol 0 is reserved
	for _, p := range programs {
		code := assemble(t, p)
		section(elf.Section64{
			Name: name(p.Section), Type: uint32(elf.SHT_PROGBITS), Flags: uint64(elf.SHF_ALLOC | elf.SHF_EXECINSTR),
		}, code)
		symbols = appended(t, symbols, elf.Sym64{
			Name: name(p.Name), Info: elf.ST_INFO(elf.STB_GLOBAL, elf.STT_FUNC), Shndx: uint16(len(sections) - 1), Size: uint64(len(code)),
		})
	}
	tables := uint32(len(sections))
	section(elf.Section64{
		Name: name(".symtab"), Type: uint32(elf.SHT_SYMTAB), Link: tables + 1, Info: 1, Entsize: elf.Sym64Size,
	}, symbols)
	strtab := name(".strtab")
	section(elf.Section64{Name: strtab, Type: uint32(elf.SHT_STRTAB)}, names)
	header := elf.Header64{
		Type: uint16(elf.ET_REL), Machine: uint16(elf.EM_BPF), Version: uint32(elf.EV_CURRENT), Shoff: uint64(len(file)),
		Ehsize: uint16(binary.Size(elf.Header64{})), Shentsize: uint16(binary.Size(elf.Section64{})),
		Shnum: uint16(len(sections)), Shstrndx: uint16(len(sections) - 1),
	}
	copy(header.Ident[:], elf.ELFMAG)
	header.Ident[elf.EI_CLASS], header.Ident[elf.EI_DATA] = byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB)
	header.Ident[elf.EI_VERSION] = byte(elf.EV_CURRENT)
	copy(file, appended(t, nil, header))
	return appended(t, file, sections)
}

func appended(t testing.TB, b []byte, value any) []byte {
	t.Helper()
	b, err := binary.Append(b, binary.LittleEndian, value)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func assemble(t testing.TB, p Program) []byte {
	t.Helper()
	var program []isa.Instruction
	for _, line := range p.Code {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatalf("%s: %v", p.Name, err)
		}
		program = append(program, i)
	}
	return isa.Encode(program)
}
