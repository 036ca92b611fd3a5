package object

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"

	"margay/nimble/isa"
	"margay/nimble/state"
)

// ELF reads an object of clang's BPF target. It returns one Spec for each
// function outside .text, ascending by section and name, with the functions
// that it calls linked in. Errors are *Error.
//
// Relocations are resolved by cilium/ebpf; type relocations (CO-RE) keep what
// the compiler wrote, since contexts are Margay's own types. Addresses of global
// data in global data become Pointers; addresses of functions are refused.
func ELF(file []byte) (specs []*Spec, err error) {
	defer func() {
		// The parser is a library fed with hostile bytes.
		if r := recover(); r != nil {
			specs, err = nil, fileError(fmt.Errorf("parser: %v", r))
		}
	}()
	if err := checkELF(file); err != nil {
		return nil, fileError(err)
	}
	pointers, err := readRelocations(file)
	if err != nil {
		return nil, err
	}
	collection, err := ebpf.LoadCollectionSpecFromReader(bytes.NewReader(file))
	if err != nil && !typed(file) {
		err = fmt.Errorf("%w: compile with -g", err)
	}
	if err != nil {
		return nil, fileError(err)
	}
	if err := checkPointers(pointers, len(collection.Programs)); err != nil {
		return nil, fileError(err)
	}
	for _, name := range slices.Sorted(maps.Keys(collection.Programs)) {
		spec, err := link(collection, pointers, collection.Programs[name])
		if err != nil {
			return nil, err
		}
		specs = append(specs, spec)
	}
	if len(specs) == 0 {
		return nil, fileError(fmt.Errorf("no program: functions need a section of their own"))
	}
	slices.SortStableFunc(specs, func(a, b *Spec) int { return strings.Compare(a.Section, b.Section) })
	return specs, nil
}

// typed reports whether the compiler has written types.
func typed(file []byte) bool {
	f, err := elf.NewFile(bytes.NewReader(file))
	return err == nil && f.Section(".BTF") != nil
}

func fileError(err error) error { return &Error{Slot: -1, Reason: err.Error()} }

// linker turns one program of a collection into a Spec.
type linker struct {
	collection *ebpf.CollectionSpec
	pointers   map[string][]Pointer // by the section that holds them
	spec       *Spec
	functions  map[string]bool // those linked in
}

func link(c *ebpf.CollectionSpec, pointers map[string][]Pointer, p *ebpf.ProgramSpec) (*Spec, error) {
	l := linker{
		collection: c,
		pointers:   pointers,
		spec:       &Spec{Name: p.Name, Section: p.SectionName, License: p.License},
		functions:  make(map[string]bool),
	}
	program := slices.Clone(p.Instructions)
	for i := range program {
		l.functions[program[i].Symbol()] = true
	}
	for i := program.Iterate(); i.Next(); {
		slot := int(i.Offset)
		if line, ok := i.Ins.Source().(*btf.Line); ok {
			l.spec.Lines = append(l.spec.Lines, newLine(slot, line))
		}
		if err := l.resolve(i.Ins); err != nil {
			return nil, l.fail(slot, err)
		}
	}
	var code bytes.Buffer
	if err := program.Marshal(&code, binary.LittleEndian); err != nil {
		return nil, l.fail(-1, err)
	}
	var err error
	if l.spec.Instructions, err = isa.Decode(code.Bytes()); err != nil {
		return nil, l.fail(-1, err)
	}
	if err := l.follow(); err != nil {
		return nil, l.fail(-1, err)
	}
	l.variables()
	return l.spec, nil
}

// newLine says that a slot and those after it come from a line.
func newLine(slot int, l *btf.Line) Line {
	return Line{slot, l.FileName(), int(l.LineNumber()), strings.TrimSpace(l.Line())}
}

func (l *linker) fail(slot int, err error) error {
	return &Error{Program: l.spec.Section + " " + l.spec.Name, Slot: slot, Line: l.spec.Lines.At(slot), Reason: err.Error()}
}

// resolve replaces an instruction's reference to a map or a service by an
// index. References to functions are left for Marshal.
func (l *linker) resolve(i *asm.Instruction) error {
	name := i.Reference()
	switch {
	case i.IsLoadFromMap():
		return l.resolveMap(i, name)
	case name == "" || l.functions[name] && i.IsFunctionReference():
		return nil
	case i.IsFunctionCall() || i.IsKfuncCall():
		replace(i, asm.Instruction{OpCode: i.OpCode, Src: asm.Register(isa.CallNamed.Row().Key.Value), Constant: l.extern(name)})
		return nil
	default:
		return fmt.Errorf("the address of %q cannot be taken", name)
	}
}

func (l *linker) resolveMap(i *asm.Instruction, name string) error {
	index, err := l.useMap(name)
	if err != nil {
		return err
	}
	op, constant := isa.LdMap, int64(index)
	if i.Src == asm.PseudoMapValue {
		op, constant = isa.LdValue, i.Constant&^0xffffffff|int64(index)
	}
	replace(i, asm.Instruction{OpCode: i.OpCode, Dst: i.Dst, Src: asm.Register(op.Row().Key.Value), Offset: i.Offset, Constant: constant})
	return nil
}

// replace puts an instruction without a reference in the place of one, which
// may be the first of a function and so bear its name.
func replace(i *asm.Instruction, by asm.Instruction) { *i = by.WithSymbol(i.Symbol()) }

// extern returns the index of a service called by name.
func (l *linker) extern(name string) int64 {
	at := slices.Index(l.spec.Externs, name)
	if at < 0 {
		at = len(l.spec.Externs)
		l.spec.Externs = append(l.spec.Externs, name)
	}
	return int64(at)
}

// useMap returns the index of a map, which it adds at its first use.
func (l *linker) useMap(name string) (int, error) {
	if at := slices.IndexFunc(l.spec.Maps, func(m state.Spec) bool { return m.Name == name }); at >= 0 {
		return at, nil
	}
	m := l.collection.Maps[name]
	if m == nil {
		return 0, fmt.Errorf("map %q is not defined in the object", name)
	}
	spec, err := mapSpec(name, m)
	if err != nil {
		return 0, err
	}
	l.spec.Maps = append(l.spec.Maps, spec)
	return len(l.spec.Maps) - 1, nil
}

// follow adds the addresses in the maps that the program uses, and the maps that
// they point into, for as long as there are more.
func (l *linker) follow() error {
	for n := 0; n < len(l.spec.Maps); n++ {
		last := ""
		for _, p := range l.pointers[l.spec.Maps[n].Name] {
			if p.To != last {
				if _, err := l.useMap(p.To); err != nil {
					return err
				}
				last = p.To
			}
			l.spec.Pointers = append(l.spec.Pointers, p)
		}
	}
	return nil
}

// Flags of a map (linux/bpf.h).
const (
	flagReadOnly = 1 << 7  // BPF_F_RDONLY_PROG
	flagMmapable = 1 << 10 // BPF_F_MMAPABLE, which every map of ours is
)

// mapSpec converts the definition of a map.
func mapSpec(name string, m *ebpf.MapSpec) (state.Spec, error) {
	spec := state.Spec{
		Name:      name,
		ValueSize: m.ValueSize,
		Entries:   m.MaxEntries,
		ReadOnly:  m.Flags&flagReadOnly != 0,
	}
	switch m.Type {
	case ebpf.Array:
	case ebpf.PerCPUArray:
		spec.Kind = state.PerCore
	default:
		return spec, fmt.Errorf("map %q is a %v; there are Array and PerCPUArray, and a hash table is compiled into the extension: include margay_hash.h", name, m.Type)
	}
	if m.KeySize != state.KeySize {
		return spec, fmt.Errorf("map %q has keys of %d bytes, not %d", name, m.KeySize, state.KeySize)
	}
	if unknown := m.Flags &^ (flagReadOnly | flagMmapable); unknown != 0 || m.Pinning != ebpf.PinNone {
		return spec, fmt.Errorf("map %q: flags %#x and pinning %v are not supported", name, unknown, m.Pinning)
	}
	if len(m.Contents) > 0 {
		contents, ok := m.Contents[0].Value.([]byte)
		if !ok {
			return spec, fmt.Errorf("map %q: initial values are not supported", name)
		}
		spec.Contents = bytes.TrimRight(contents, "\x00")
	}
	return spec, nil
}

// variables lists the global variables in the maps that the program uses.
func (l *linker) variables() {
	for _, name := range slices.Sorted(maps.Keys(l.collection.Variables)) {
		v := l.collection.Variables[name]
		if l.spec.Map(v.SectionName) != nil {
			l.spec.Variables = append(l.spec.Variables, Variable{name, v.SectionName, v.Offset, v.Size()})
		}
	}
}
