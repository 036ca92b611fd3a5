// Package state is what an extension remembers between two runs: arrays,
// per-core arrays and global data.
//
// Each map is one piece of package memory, laid out as Linux lays out an
// mmap-able array (elements at multiples of their size rounded up to 8 bytes),
// so that an application can map the very same bytes and the Linux engine can
// be given them. A per-core array is such an array once per core, each core's
// part starting on a cache line of its own. Global data (.rodata, .data, .bss)
// is an array of one element. A hash table is a C header compiled into the
// extension over an array: to this package it is an array.
package state

import (
	"errors"
	"fmt"

	"margay/nimble/memory"
)

// Kind is what a map is.
type Kind uint8

// The kinds of map.
const (
	Array   Kind = iota // one array for all cores
	PerCore             // one array for each core
)

// String returns the kind's name.
func (k Kind) String() string {
	if k == PerCore {
		return "per-core array"
	}
	return "array"
}

// Spec describes a map before it exists. It is plain and may be copied.
type Spec struct {
	Name      string
	Kind      Kind
	ValueSize uint32 // bytes of one element
	Entries   uint32 // number of elements, for each core
	ReadOnly  bool   // the extension itself may not write it
	Contents  []byte // what the first elements start with; the rest is zero
}

// KeySize is the size of a key, the element's index, in bytes.
const KeySize = 4

// line is the size of a cache line.
const line = 64

// Stride returns the distance between two elements in bytes.
func (s *Spec) Stride() uint64 { return (uint64(s.ValueSize) + 7) &^ 7 }

// Length returns the bytes of one core's elements.
func (s *Spec) Length() uint64 { return s.Stride() * uint64(s.Entries) }

// coreStride returns the distance between two cores' parts in bytes.
func (s *Spec) coreStride() uint64 { return (s.Length() + line - 1) &^ (line - 1) }

// Size returns the bytes of memory that the map needs on a machine with cores
// cores, at least 1.
func (s *Spec) Size(cores int) uint64 {
	if s.Kind == PerCore {
		return s.coreStride() * uint64(cores)
	}
	return s.Length()
}

// Validate returns an error if the description is invalid.
func (s *Spec) Validate() error {
	switch {
	case s.Name == "":
		return errors.New("map without a name")
	case s.Kind > PerCore:
		return fmt.Errorf("map %q: unknown kind %d", s.Name, s.Kind)
	case s.ValueSize == 0 || s.Entries == 0:
		return fmt.Errorf("map %q: %d elements of %d bytes", s.Name, s.Entries, s.ValueSize)
	case s.Length() > memory.MaxSize:
		return fmt.Errorf("map %q: %d elements of %d bytes are more than %d bytes", s.Name, s.Entries, s.ValueSize, uint64(memory.MaxSize))
	case uint64(len(s.Contents)) > s.Length():
		return fmt.Errorf("map %q: %d bytes of contents for %d bytes of elements", s.Name, len(s.Contents), s.Length())
	}
	return nil
}

// Options say where a map's memory comes from.
type Options struct {
	Cores  int            // cores of a per-core array, at least 1
	Shared bool           // in a memfd that another process can map
	Memory *memory.Memory // memory to use as it is, not initialised; it stays the caller's
}

// Map is a map with its memory. Its methods are safe for concurrent use except
// Close; elements may change under the reader's eyes.
type Map struct {
	spec   Spec
	cores  int
	memory *memory.Memory
	owned  bool
	region memory.Region
}

// New makes a map.
func New(spec Spec, o Options) (*Map, error) {
	if err := spec.Validate(); err != nil {
		return nil, err
	}
	m := &Map{spec: spec, cores: 1, memory: o.Memory, owned: o.Memory == nil}
	if spec.Kind == PerCore {
		m.cores = o.Cores
	}
	size := spec.Size(m.cores)
	if m.cores < 1 || size > memory.MaxSize {
		return nil, fmt.Errorf("map %q: %d bytes on %d cores", spec.Name, size, m.cores)
	}
	if err := m.place(size, o.Shared); err != nil {
		return nil, fmt.Errorf("map %q: %w", spec.Name, err)
	}
	m.region, _ = m.memory.Region(!spec.ReadOnly).Slice(spec.Name, 0, size)
	return m, nil
}

// place takes or makes the memory.
func (m *Map) place(size uint64, shared bool) (err error) {
	if !m.owned {
		if have := uint64(len(m.memory.Bytes())); have < size {
			return fmt.Errorf("memory %q has %d bytes, need %d", m.memory.Name(), have, size)
		}
		return nil
	}
	if shared {
		m.memory, err = memory.Create(m.spec.Name, int(size))
	} else {
		m.memory, err = memory.Map(m.spec.Name, int(size))
	}
	if err != nil {
		return err
	}
	for core := range m.cores {
		copy(m.memory.Bytes()[uint64(core)*m.spec.coreStride():], m.spec.Contents)
	}
	return nil
}

// Spec returns the description the map was made from.
func (m *Map) Spec() Spec { return m.spec }

// Region returns what an extension may touch of the map, under the map's name.
func (m *Map) Region() memory.Region { return m.region }

// Memory returns the memory behind the map.
func (m *Map) Memory() *memory.Memory { return m.memory }

// Element returns the address of an element as core sees it; ok is false if
// there is none. The core of a plain array does not matter.
func (m *Map) Element(core int, index uint32) (addr uint64, ok bool) {
	if index >= m.spec.Entries {
		return 0, false
	}
	addr = m.region.Base + uint64(index)*m.spec.Stride()
	if m.spec.Kind == PerCore {
		if core < 0 || core >= m.cores {
			return 0, false
		}
		addr += uint64(core) * m.spec.coreStride()
	}
	return addr, true
}

// Value returns the bytes of an element, as long as the map is open; ok is
// false if there is none.
func (m *Map) Value(core int, index uint32) (value []byte, ok bool) {
	addr, ok := m.Element(core, index)
	if !ok {
		return nil, false
	}
	return memory.View(addr, uint64(m.spec.ValueSize)), true
}

// Close releases the memory unless another owner has it.
func (m *Map) Close() error {
	if !m.owned {
		return nil
	}
	return m.memory.Close()
}
