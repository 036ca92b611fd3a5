package enginetest

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// Accelerated counts the runs of an engine that may refuse programs.
type Accelerated struct{ Accepted, Refused int }

// TestAccelerator runs the programs of facts on an engine that may refuse
// programs; without faults, only facts that end without a fault. A program that it
// accepts must not fault, and must leave r0 and memory as the oracle does; fuel
// and time do not matter. Every reason to refuse a program is logged.
func TestAccelerator(t *testing.T, oracle, e engine.Engine, facts []Fact, faults bool) (a Accelerated) {
	t.Helper()
	for _, f := range facts {
		f.Runs = slices.DeleteFunc(f.Runs, func(r Run) bool {
			// An address differs in the kernel.
			_, err := place{}.value(r.Want)
			return err != nil && (r.Want != "fault" || !faults)
		})
		a.fact(t, oracle, e, &f)
	}
	return a
}

// shape is the part that runs must have in common to share a threaded program.
type shape struct {
	size, depth int
	rom         bool
}

// pair is a program on both engines, or the reason why the second one refused it.
type pair struct {
	oracle, e *Rig
	refused   error
}

// fact runs a fact on both engines.
func (a *Accelerated) fact(t *testing.T, oracle, e engine.Engine, f *Fact) {
	t.Helper()
	pairs := make(map[shape]*pair)
	for _, r := range f.Runs {
		s := shape{len(r.Memory), r.Depth, r.ROM}
		both := pairs[s]
		if both == nil {
			both = newPair(t, oracle, e, f, s)
			defer both.close()
			pairs[s] = both
		}
		if both.agree(t, f, &r) {
			a.Accepted++
		} else {
			a.Refused++
		}
	}
}

func newPair(t *testing.T, oracle, e engine.Engine, f *Fact, s shape) *pair {
	t.Helper()
	size := uint64(s.size)
	p, err := verify.Verify(f.Spec, verify.Config{Services: Services(), Trusted: f.Trusted,
		Context:  verify.Context{Size: size, Readable: size > 0, Writable: size > 0 && !s.rom},
		NoProofs: true, // r1 and r2 may have any value
	})
	if err != nil {
		t.Fatalf("%s: %v", f.File, err)
	}
	both := &pair{}
	if both.oracle, err = tryRig(t, oracle, p, s.depth, s.size); err != nil {
		t.Fatalf("%s: %v", f.File, err)
	}
	if both.e, both.refused = tryRig(t, e, p, s.depth, s.size); both.refused != nil {
		t.Logf("%s %s: %v", f.File, f.Name, both.refused)
	}
	return both
}

func (b *pair) close() {
	b.oracle.close()
	if b.refused == nil {
		b.e.close()
	}
}

// agree runs a program once on both engines and compares the outcomes. It reports
// whether the second one accepted it.
func (b *pair) agree(t *testing.T, f *Fact, r *Run) bool {
	t.Helper()
	if b.refused != nil {
		return false
	}
	want, _ := b.oracle.again(t, r)
	got, err := b.e.again(t, r)
	if fault, ok := errors.AsType[*engine.Fault](err); ok && fault.Kind == engine.Kernel {
		t.Logf("%s %s: %v", f.File, f.Name, err)
		return false
	}
	if kind := engine.Kind(want["kind"]); kind == engine.Fuel || kind == engine.Time {
		return true
	}
	delete(want, "fuel")
	delete(got, "fuel")
	if !maps.Equal(want, got) {
		t.Errorf("%s %s: %s: got %v, want %v", f.File, f.Name, r.Line, got, want)
	}
	return true
}

// again runs a rig as if it had not run before.
func (rig *Rig) again(t *testing.T, r *Run) (map[string]string, error) {
	t.Helper()
	for _, m := range rig.Maps {
		all := memory.View(m.Region().Base, m.Region().Length)
		clear(all)
		copy(all, m.Spec().Contents)
	}
	m := rig.Machine
	m.Args = [5]uint64{m.Context().Base, m.Context().Length}
	if _, err := rig.give(r); err != nil {
		t.Fatalf("%s: %v", r.Line, err)
	}
	r0, err := rig.Code.Run(m)
	return outcome(rig, r0, err), err
}

// GenerateProvable makes a program from any bytes that has no loops, accesses only
// memory that it may, and does not turn addresses into numbers: Linux can mostly
// prove that. Its context has 64 bytes. The same bytes give the same program.
func GenerateProvable(data []byte) *object.Spec {
	g := &generator{data: data}
	var code []jumping
	for _, text := range []string{"mov r6, r1", "lddw_value r8, 0, 0", "stdw [r10-8], 7", "stxdw [r10-16], r2"} {
		i, err := isa.Parse(text)
		if err != nil {
			panic("enginetest: " + err.Error())
		}
		code = append(code, jumping{Instruction: i, op: i.Op()})
	}
	first := len(code)
	for n := 8 + g.below(64); n > 0; n-- {
		code = append(code, g.provable())
	}
	code = append(code, jumping{Instruction: isa.Instruction{Code: isa.Exit.Row().Code}, op: isa.Exit})
	for n := range code[first:] {
		at := first + n
		code[at].target = min(at+1+g.below(6), len(code)-1)
	}
	spec := Generate(nil)
	spec.Instructions = link([][]jumping{code})
	return spec
}

// provable picks an instruction: scalars are in r0, r2 to r5, r7 and r9.
func (g *generator) provable() jumping {
	for {
		op := isa.Op(1 + (g.next()<<8|g.next())%(isa.Ops-1))
		row := op.Row()
		if row.Refused != "" {
			continue
		}
		i := isa.Instruction{Code: row.Code}
		scalar := func() isa.Register { return []isa.Register{0, 2, 3, 4, 5, 7, 9}[g.below(7)] }
		i.Dst, i.Src = scalar(), scalar()
		i.Imm = []int32{1, 2, 3, 5, 7, 15, 31}[g.below(7)]
		size := op.Size()
		switch row.Form {
		case isa.FormDst:
			i.Src, i.Imm = 0, 0
		case isa.FormDstImm:
			i.Src = 0
		case isa.FormDstSrc:
			i.Imm = 0
		case isa.FormCondImm:
			i.Src = 0
		case isa.FormCondSrc:
			i.Imm = 0
		case isa.FormLoad:
			i.Src, i.Off = g.provablePlace(size)
			i.Imm = 0
		case isa.FormStore, isa.FormAtomic, isa.FormAtomicFetch:
			i.Dst, i.Off = g.provablePlace(size)
			i.Imm = 0
		case isa.FormStoreImm:
			i.Dst, i.Off = g.provablePlace(size)
			i.Src = 0
		case isa.FormWide:
			i.Src, i.High = 0, int32(g.next())<<24
		default:
			continue
		}
		if key := row.Key; key.Field != isa.NoField {
			setKey(&i, key)
		}
		return jumping{Instruction: i, op: op}
	}
}

// setKey sets the field that distinguishes rows of one opcode.
func setKey(i *isa.Instruction, key isa.Key) {
	switch key.Field {
	case isa.Src:
		i.Src = isa.Register(key.Value)
	case isa.Off:
		i.Off = int16(key.Value)
	case isa.Imm:
		i.Imm = int32(key.Value)
	}
}

// provablePlace picks an aligned place in the context, the map or the stack.
func (g *generator) provablePlace(size int) (base isa.Register, off int16) {
	base = []isa.Register{6, 8, 10}[g.below(3)]
	off = int16(g.below(16/size) * size)
	if base == isa.FramePointer {
		off -= 16
	}
	return base, off
}

// AgreeProvable compares e with the oracle on a program of GenerateProvable.
func (a *Accelerated) AgreeProvable(t *testing.T, oracle, e engine.Engine, data []byte) {
	t.Helper()
	context := make([]byte, 64)
	copy(context, data)
	f := &Fact{File: "generated", Name: fmt.Sprintf("%x", data), Spec: GenerateProvable(data)}
	f.Runs = []Run{{Line: "run", Memory: context, Fuel: defaultFuel, Depth: 1}}
	a.fact(t, oracle, e, f)
}

// TestAgreementProvable compares an engine that may refuse programs with the
// oracle on random ones.
func TestAgreementProvable(t *testing.T, oracle, e engine.Engine, programs int) (a Accelerated) {
	t.Helper()
	r := Seeded(t)
	data := make([]byte, 400)
	for range programs {
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		a.AgreeProvable(t, oracle, e, data)
	}
	return a
}
