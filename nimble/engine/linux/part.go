package linux

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/asm"

	"margay/nimble/verify"
)

// Part is a verified program as a function of a larger one, which somebody else
// loads into the kernel. Its maps are the kernel's.
//
// Whoever can load the larger program may make numbers of addresses, and so may
// the part. What it writes must not be shown to those who must not know them.
type Part struct {
	program *verify.Program
	uses    []use
}

// NewPart looks whether a program can be part of another. The error is a reason
// to refuse it. It runs on one core only, and may ask which that is.
func NewPart(p *verify.Program) (*Part, error) {
	if p.Len() == 0 {
		return nil, errors.New("linux: needs a verified program")
	}
	all, err := findUses(p, true)
	if err != nil {
		return nil, fmt.Errorf("linux: %w", err)
	}
	return &Part{program: p, uses: all}, nil
}

// Program returns the program.
func (p *Part) Program() *verify.Program { return p.program }

// Map is a map in the kernel.
type Map struct{ twin *twin }

// NewMap makes one of the maps of the program, by index in Maps, that holds
// these bytes: all of them if it is an array, those of one core if each core
// has its own.
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

// Read copies what the program may have written. Of a map that it may not write
// it copies nothing.
func (m *Map) Read(b []byte) error { return m.twin.out(b) }

// Close forgets the map. Programs that use it keep it.
func (m *Map) Close() error { return m.twin.Close() }

// Functions returns the instructions of the program's functions with these
// maps. The first function takes the address of a context in r1 and returns r0;
// calls among them have their distances already. starts says where each begins,
// by index of an instruction.
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
