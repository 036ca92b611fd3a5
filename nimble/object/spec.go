// Package object turns files into Specs: what an extension is before it is
// verified.
//
// A Spec is a plain value: instructions, the maps and services they name, and the source position
// of each instruction. It owns nothing, may be copied (Copy) and changed, and guarantees nothing:
// any field may be invalid until package verify has checked it.
//
// Two kinds of input exist: ELF objects of clang's BPF target (ELF), parsed by
// cilium/ebpf after this package has bounded what a hostile file can make it
// do, and bare instructions (Raw, Hex). Both take untrusted bytes: they return
// an error and never panic, and their memory and time are linear in the input.
package object

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"
	"strings"

	"margay/nimble/isa"
	"margay/nimble/state"
)

// MaxInstructions is the largest program in slots.
const MaxInstructions = 1_000_000

// Spec describes one program. Instructions name maps and services by index:
// an LdMap or LdValue instruction's Imm indexes Maps, a CallNamed's Externs.
type Spec struct {
	Name         string // the C function
	Section      string // the ELF section, such as message or timer/every
	License      string
	Instructions []isa.Instruction // by slot
	Maps         []state.Spec
	Externs      []string // services called by name
	Variables    []Variable
	Pointers     []Pointer
	Lines        Lines
}

// Variable is a global variable of the program.
type Variable struct {
	Name   string
	Map    string // the map that holds it, such as .rodata
	Offset uint32 // in the map's only element, bytes
	Size   uint32 // bytes
}

// Pointer is an address in global data, of other global data. It is known when
// the program is inserted.
type Pointer struct {
	Map      string // the map that holds it, such as .data
	Offset   uint32 // in the map's only element, bytes; it takes 8
	To       string // the map that it points into, such as .rodata.str1.1
	Distance uint32 // from the beginning of that, bytes
}

// Line says which source line the instructions from Slot on come from. The
// zero Line is unknown.
type Line struct {
	Slot   int
	File   string
	Number int
	Text   string
}

// String returns file:number, or nothing if the line is unknown.
func (l Line) String() string {
	if l.File == "" {
		return ""
	}
	return fmt.Sprintf("%s:%d", l.File, l.Number)
}

// Lines are the source lines of a program, ascending by slot.
type Lines []Line

// At returns the source line of an instruction, the zero Line if unknown.
func (l Lines) At(slot int) Line {
	after := sort.Search(len(l), func(i int) bool { return l[i].Slot > slot })
	if after == 0 {
		return Line{}
	}
	return l[after-1]
}

// Slot returns the slot of the kernel that the program is made for: its
// section up to the first slash.
func (s *Spec) Slot() string {
	slot, _, _ := strings.Cut(s.Section, "/")
	return slot
}

// Map returns the description of a map for changing it, nil if there is none
// of that name.
func (s *Spec) Map(name string) *state.Spec {
	if i := slices.IndexFunc(s.Maps, func(m state.Spec) bool { return m.Name == name }); i >= 0 {
		return &s.Maps[i]
	}
	return nil
}

// SetVariable gives a global variable, constant or not, the value it has when
// the extension is inserted: a fixed-size value or a slice of such, of exactly
// the variable's size. Pointers in it are replaced, too.
func (s *Spec) SetVariable(name string, value any) error {
	i := slices.IndexFunc(s.Variables, func(v Variable) bool { return v.Name == name })
	if i < 0 {
		return fmt.Errorf("variable %q: the program does not use it", name)
	}
	v := s.Variables[i]
	encoded, err := binary.Append(nil, binary.LittleEndian, value)
	if err != nil {
		return fmt.Errorf("variable %q: %w", name, err)
	}
	if len(encoded) != int(v.Size) {
		return fmt.Errorf("variable %q has %d bytes, the value %d", name, v.Size, len(encoded))
	}
	m := s.Map(v.Map)
	if m == nil {
		return fmt.Errorf("variable %q: no map %q", name, v.Map)
	}
	end := int(v.Offset) + len(encoded)
	contents := make([]byte, max(end, len(m.Contents)))
	copy(contents, m.Contents)
	copy(contents[v.Offset:], encoded)
	m.Contents = contents
	s.Pointers = slices.DeleteFunc(slices.Clone(s.Pointers), func(p Pointer) bool {
		return p.Map == v.Map && uint64(p.Offset)+pointerSize > uint64(v.Offset) && uint64(p.Offset) < uint64(v.Offset)+uint64(v.Size)
	})
	return nil
}

// Error describes an error in an object, as exactly as is known.
type Error struct {
	Program string // section and function; empty if the whole file is meant
	Slot    int    // index of the instruction, -1 if none is meant
	Line    Line
	Reason  string
}

// Error names program, instruction and source line where they are known.
func (e *Error) Error() string {
	text := ""
	if e.Program != "" {
		text = e.Program + ": "
	}
	if e.Slot >= 0 {
		text += fmt.Sprintf("insn=%d: ", e.Slot)
	}
	if line := e.Line.String(); line != "" {
		text += line + ": "
	}
	return text + e.Reason
}

// Raw makes a Spec of bare instructions in their encoding. Errors are
// *isa.DecodeError.
func Raw(code []byte) (*Spec, error) {
	if len(code) > MaxInstructions*isa.SlotSize {
		return nil, &isa.DecodeError{Slot: MaxInstructions, Reason: fmt.Sprintf("more than %d slots", MaxInstructions)}
	}
	program, err := isa.Decode(code)
	if err != nil {
		return nil, err
	}
	return &Spec{Name: "raw", Instructions: program}, nil
}

// Hex is Raw for hexadecimal text; white space is ignored. Errors are
// *isa.DecodeError.
func Hex(text string) (*Spec, error) {
	digits := strings.Join(strings.Fields(text), "")
	code, err := hex.DecodeString(digits)
	if err != nil {
		return nil, &isa.DecodeError{Slot: len(code) / isa.SlotSize, Reason: err.Error()}
	}
	return Raw(code)
}
