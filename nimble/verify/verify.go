// Package verify decides whether a program may be inserted. Only it can make a
// Program, the type that every engine requires.
//
// It checks the structure: every opcode and field against the table of package
// isa, every jump, call and end of function, every map and service. An accepted
// program cannot make an engine leave the program, read a register that does not
// exist, or call a service that it may not call. Memory accesses are checked at
// run time, except those that the verifier has proved to stay in their memory:
// see prover. A program is not refused because an access cannot be proved.
//
// The verifier also fixes facts on which all engines must agree: the basic blocks
// at whose entry fuel is charged, and the functions with their stack frames.
package verify

import (
	"fmt"
	"slices"
	"sync"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
)

// FrameSize is the stack of one function in bytes.
const FrameSize = 512

// Config says what a program may use. The zero Config allows no service.
type Config struct {
	Services        *service.Table
	Trusted         bool    // the program may call services that need trust, and runs unchecked
	MaxInstructions int     // slots, at most object.MaxInstructions, which 0 stands for
	Context         Context // promise about the context of every run
	NoProofs        bool    // every access is checked at run time, for comparison
}

// Refusal says why a program was refused.
type Refusal struct {
	Slot   int // index of the instruction
	Line   object.Line
	Reason string
}

// Error names the instruction, the source line if known, and the reason.
func (r *Refusal) Error() string {
	if line := r.Line.String(); line != "" {
		return fmt.Sprintf("insn=%d: %s: %s", r.Slot, line, r.Reason)
	}
	return fmt.Sprintf("insn=%d: %s", r.Slot, r.Reason)
}

// verifier is the state of one verification.
type verifier struct {
	spec    *object.Spec
	config  Config
	program *Program
	accesses
	*scratch
}

// scratch is memory that verifications reuse.
type scratch struct {
	jumps   []int // slots with a jump, ascending
	entries []int // slots with a local call or the address of an instruction, ascending
	places  []place
	heads   []head
}

var scratches = sync.Pool{New: func() any { return new(scratch) }}

// release empties the memory and returns it to scratches.
func (s *scratch) release() {
	s.jumps, s.entries = s.jumps[:0], s.entries[:0]
	clear(s.places)
	clear(s.heads)
	s.places, s.heads = s.places[:0], s.heads[:0]
	scratches.Put(s)
}

// Verify checks a program. It neither changes nor keeps the Spec. Errors are
// *Refusal. Time and memory are linear in the length of the program: proofs that
// would take more are given up. Verify is safe for concurrent use.
func Verify(spec *object.Spec, config Config) (*Program, error) {
	v := &verifier{spec: spec, config: config, scratch: scratches.Get().(*scratch)}
	defer v.release()
	if err := v.length(); err != nil {
		return nil, err
	}
	v.program = &Program{
		name:    spec.Name,
		trusted: config.Trusted,
		context: config.Context.bounded(),
		code:    make([]Instruction, len(spec.Instructions)),
		maps:    slices.Clone(spec.Maps),
		lines:   slices.Clone(spec.Lines),
	}
	for _, pass := range []func() error{v.instructions, v.functions, v.targets, v.pointers} {
		if err := pass(); err != nil {
			return nil, err
		}
	}
	v.blocks()
	if config.NoProofs || !v.obvious() {
		v.program.doubt()
	}
	if !config.NoProofs && !v.obvious() {
		v.program.prover(v.scratch).prove()
	}
	return v.program, nil
}

func (v *verifier) refuse(slot int, format string, args ...any) error {
	return &Refusal{Slot: slot, Line: v.spec.Lines.At(slot), Reason: fmt.Sprintf(format, args...)}
}

func (v *verifier) length() error {
	limit := v.config.MaxInstructions
	if limit <= 0 || limit > object.MaxInstructions {
		limit = object.MaxInstructions
	}
	switch n := len(v.spec.Instructions); {
	case n == 0:
		return v.refuse(0, "empty program")
	case n > limit:
		return v.refuse(limit, "%d slots, at most %d are accepted", n, limit)
	}
	return nil
}

// instructions checks every instruction alone, marks obvious accesses, and marks the
// leaders: the instructions after a jump, a local call or an exit.
func (v *verifier) instructions() error {
	in, code, context := v.spec.Instructions, v.program.code, &v.program.context
	for slot := 0; slot < len(in); slot++ {
		from, i := &in[slot], &code[slot]
		op, ok := from.Usual()
		if !ok {
			var err error
			if op, err = from.Check(); err != nil {
				return v.refuse(slot, "%v", err)
			}
		}
		i.Code, i.Op, i.Dst, i.Src, i.Off, i.Imm, i.extra = from.Code, op, from.Dst, from.Src, from.Off, from.Imm, from.High
		switch op.Form() {
		case isa.FormLoad:
			v.access(i, i.Src, read, context)
			v.change(i.Dst)
		case isa.FormStore, isa.FormStoreImm:
			v.access(i, i.Dst, write, context)
		case isa.FormAtomic:
			v.access(i, i.Dst, read|write, context)
		case isa.FormAtomicFetch:
			v.access(i, i.Dst, read|write, context)
			v.change(i.Src)
		case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc:
			v.jumps = append(v.jumps, slot)
			v.leader(slot + 1)
		case isa.FormNone:
			v.leader(slot + 1)
		case isa.FormCall, isa.FormCallLocal:
			v.changesR1 = true
			if err := v.refer(slot, i); err != nil {
				return err
			}
		default:
			v.change(i.Dst)
			if !from.Wide() {
				break
			}
			if err := v.refer(slot, i); err != nil {
				return err
			}
			if slot++; slot == len(in) || in[slot] != (isa.Instruction{}) {
				return v.refuse(slot-1, "wide instruction without its second half")
			}
		}
	}
	return nil
}

// leader marks a slot at which a basic block starts, by a Cost above 0.
func (v *verifier) leader(slot int) {
	if slot < len(v.program.code) {
		v.program.code[slot].Cost = 1
	}
}

// refer resolves the function, service or map that an instruction names.
func (v *verifier) refer(slot int, i *Instruction) error {
	switch i.Op.Form() {
	case isa.FormCallLocal, isa.FormWideCode:
		v.entries = append(v.entries, slot)
		if i.Op == isa.CallLocal {
			v.leader(slot + 1)
		}
	case isa.FormCall:
		return v.call(slot, i)
	case isa.FormWideIndex:
		if i.Op == isa.LdVariable {
			return v.refuse(slot, "unknown platform variable %d", i.Imm)
		}
		return v.mapIndex(slot, i.Imm)
	case isa.FormWideValue:
		return v.mapValue(slot, i)
	}
	return nil
}

// call finds the service of a call and checks that the program may call it.
func (v *verifier) call(slot int, i *Instruction) error {
	var called *service.Service
	if i.Op == isa.CallNamed {
		if int(i.Imm) >= len(v.spec.Externs) {
			return v.refuse(slot, "extern %d, the program has %d", i.Imm, len(v.spec.Externs))
		}
		name := v.spec.Externs[i.Imm]
		if called = v.config.Services.Name(name); called == nil {
			return v.refuse(slot, "unknown service %q; %s", name, v.config.Services.All())
		}
	} else if called = v.config.Services.Number(i.Imm); called == nil {
		return v.refuse(slot, "unknown service %d; %s", i.Imm, v.config.Services.All())
	}
	if called.Trusted && !v.config.Trusted {
		return v.refuse(slot, "service %v is for trusted extensions", called)
	}
	i.extra = int32(len(v.program.services))
	v.program.services = append(v.program.services, called)
	return nil
}

func (v *verifier) mapIndex(slot int, index int32) error {
	if int(index) >= len(v.spec.Maps) {
		return v.refuse(slot, "unknown map %d, the program has %d", index, len(v.spec.Maps))
	}
	if err := v.spec.Maps[index].Validate(); err != nil {
		return v.refuse(slot, "%v", err)
	}
	return nil
}

// pointers resolves the addresses in maps.
func (v *verifier) pointers() error {
	if len(v.spec.Pointers) == 0 {
		return nil
	}
	numbers := make(map[string]int)
	for n := range v.spec.Maps {
		numbers[v.spec.Maps[n].Name] = n
	}
	const size = 8
	for _, p := range v.spec.Pointers {
		holder, ok := numbers[p.Map]
		to, there := numbers[p.To]
		if !ok || !there {
			return v.refuse(0, "an address in map %q of map %q: the program has no such maps", p.Map, p.To)
		}
		for _, n := range []int{holder, to} {
			if m := &v.spec.Maps[n]; m.Validate() != nil || m.Kind != state.Array {
				return v.refuse(0, "an address in map %q of map %q: map %q has no single address", p.Map, p.To, m.Name)
			}
		}
		if uint64(p.Offset)+size > v.spec.Maps[holder].Length() || uint64(p.Distance) > v.spec.Maps[to].Length() {
			return v.refuse(0, "an address at %d of map %q, of %d in map %q, is not inside", p.Offset, p.Map, p.Distance, p.To)
		}
		v.program.pointers = append(v.program.pointers, Pointer{holder, to, p.Offset, p.Distance})
	}
	return nil
}

// mapValue checks an address inside a map (RFC 9669, section 5.4.1: only maps
// with a single contiguous memory region have one).
func (v *verifier) mapValue(slot int, i *Instruction) error {
	if err := v.mapIndex(slot, i.Imm); err != nil {
		return err
	}
	m := &v.spec.Maps[i.Imm]
	if m.Kind != state.Array {
		return v.refuse(slot, "map %q is a %v and has no single address", m.Name, m.Kind)
	}
	if uint64(i.High()) >= m.Length() {
		return v.refuse(slot, "offset %d in map %q of %d bytes", i.High(), m.Name, m.Length())
	}
	return nil
}
