package linux

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"margay/nimble/verify"
)

// Part is a verified program as a function of a larger program, which the caller
// loads into the kernel. Its maps are kernel maps. A Part does not change, so its
// methods are safe for concurrent use.
//
// If the larger program may turn addresses into numbers, so may the part. Its
// output must not reach users that must not see kernel addresses.
type Part struct {
	program *verify.Program
	uses    []use
	lacks   error
}

// NewPart makes a Part of a program, or returns the reason to refuse it. A Part
// runs for one core only, and so may call get_smp_processor_id.
func NewPart(p *verify.Program) (*Part, error) {
	part, err := NewSettledPart(p)
	if err == nil && part.lacks != nil {
		return nil, part.lacks
	}
	return part, err
}

// NewSettledPart is NewPart for a program that may call services that Linux lacks, in code that
// cannot be reached with its constants. Linux refuses to load it if it cannot prove that; Lacks
// then has the reason.
func NewSettledPart(p *verify.Program) (*Part, error) {
	if p.Len() == 0 {
		return nil, errors.New("linux: needs a verified program")
	}
	part := &Part{program: p}
	all, err := findUses(p, true)
	if lacks, ok := errors.AsType[*lackedError](err); ok {
		part.lacks, err = fmt.Errorf("linux: %w", lacks), nil
	}
	if err != nil {
		return nil, fmt.Errorf("linux: %w", err)
	}
	part.uses = all
	return part, nil
}

// Lacks returns an error about the first call of a service that Linux lacks, reached or not; nil:
// there is none.
func (p *Part) Lacks() error { return p.lacks }

// Program returns the program.
func (p *Part) Program() *verify.Program { return p.program }

// Map is a map of a Part in the kernel.
type Map struct{ twin *twin }

// NewMap makes the map of the program with this index in Maps, with these
// contents: the whole map if it is an array, one core's part if it is per-core.
func (p *Part) NewMap(index int, contents []byte) (*Map, error) {
	t, err := newMapTwin(p.program.Maps()[index], p.uses[index])
	if err != nil {
		return nil, fmt.Errorf("linux: %w", err)
	}
	if err := t.in(contents); err != nil {
		return nil, errors.Join(fmt.Errorf("linux: write map: %w", err), t.Close())
	}
	if t.memory == nil {
		if err := t.Freeze(); err != nil {
			return nil, errors.Join(fmt.Errorf("linux: freeze map: %w", err), t.Close())
		}
	}
	return &Map{t}, nil
}

// AdoptMap is NewMap for a descriptor of a map that NewMap has made of the same program. The
// contents stay. AdoptMap owns the descriptor, unless there is an error.
func (p *Part) AdoptMap(index int, fd int) (*Map, error) {
	want := mapTwin(p.program.Maps()[index], p.uses[index])
	m, err := ebpf.NewMapFromFD(fd)
	if err != nil {
		return nil, fmt.Errorf("linux: adopt map: %w", err)
	}
	if m.ValueSize() != want.size || m.MaxEntries() != want.entries || !want.writable {
		return nil, errors.Join(fmt.Errorf("linux: adopt map %q: %d elements of %d bytes, want %d of %d", want.name, m.MaxEntries(), m.ValueSize(), want.entries, want.size), m.Close())
	}
	return &Map{&twin{Map: m, stride: int(want.size+7) &^ 7}}, nil
}

// FD returns the descriptor of the map. The Map owns it.
func (m *Map) FD() int { return m.twin.FD() }

// Read copies the map into b, from its beginning. It copies nothing of a map that
// the program cannot write.
func (m *Map) Read(b []byte) error { return m.twin.out(b) }

// Write copies b into the map, from its beginning.
func (m *Map) Write(b []byte) error { return m.twin.in(b) }

// Close closes the map's descriptor. Loaded programs keep the map alive.
func (m *Map) Close() error { return m.twin.Close() }

// Functions returns the instructions of the program's functions with these maps.
// The first function takes the address of a context in r1 and returns r0. Calls
// among the functions are resolved. starts holds the index of each function's
// first instruction in code.
func (p *Part) Functions(maps []*Map, core uint32) (code asm.Instructions, starts []int, err error) {
	t := p.translator(core)
	code, err = t.instructions(twins(maps))
	if err != nil {
		return nil, nil, fmt.Errorf("linux: %w", err)
	}
	raw := make(map[int]bool)
	for _, f := range p.program.Functions() {
		raw[t.entry[f.Start]] = true
	}
	for i, at := 0, 0; i < len(code); i++ {
		if raw[at] {
			starts = append(starts, i)
		}
		at += int(code[i].Width())
	}
	return code, starts, nil
}

func (p *Part) translator(core uint32) *translator {
	t := &translator{program: p.program, part: true, core: int32(core)}
	t.translate()
	return t
}

// twins returns the maps where a translated program looks for them. Control and
// context are not used by a part.
func twins(maps []*Map) []*twin {
	all := make([]*twin, firstMap, firstMap+len(maps))
	for _, m := range maps {
		all = append(all, m.twin)
	}
	return all
}
