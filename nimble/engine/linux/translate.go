package linux

import (
	"errors"
	"fmt"
	"math"

	"margay/nimble/isa"
	"margay/nimble/service"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// Offsets and size of the element of control: r1 to r5, then r0.
const (
	controlArgs = 0
	controlR0   = 5 * 8
	controlSize = 6 * 8
)

// Indices of maps in a translated program. The maps of the program follow.
const (
	controlMap = iota
	contextMap
	firstMap
)

// helpers holds the numbers of the services that do the same in Linux. Services
// about the core differ: Nimble's core is the event's.
var helpers = linuxHelpers("map_lookup_elem", "map_update_elem", "map_delete_elem", "ktime_get_ns", "get_prandom_u32")

func linuxHelpers(names ...string) map[string]int32 {
	numbers := make(map[string]int32)
	for _, s := range service.Linux() {
		for _, name := range names {
			if s.Name == name {
				numbers[name] = s.Number
			}
		}
	}
	return numbers
}

// use is how a program uses one of its maps.
type use struct {
	handle bool // by services
	direct bool // by the address of its memory
}

// thisCore is the service that says which core the event is for.
const thisCore = "get_smp_processor_id"

// uses is findUses for a program that runs by BPF_PROG_TEST_RUN.
func uses(p *verify.Program, maps []*state.Map) ([]use, error) {
	all, err := findUses(p, false)
	if err != nil {
		return nil, err
	}
	return all, private(maps)
}

// lackedError is about a call of a service that Linux lacks.
type lackedError struct {
	slot   int
	called *service.Service
}

func (e *lackedError) Error() string {
	return fmt.Sprintf("insn=%d: service %v is not one that the kernel has", e.slot, e.called)
}

// findUses returns the use of each map of a program, or the reason to refuse the
// program. With oneCore it may call thisCore. An error that is a lackedError is the
// first of these, and the uses are complete.
func findUses(p *verify.Program, oneCore bool) ([]use, error) {
	var lacked error
	if len(p.Pointers()) > 0 {
		return nil, errors.New("global data holds addresses, which differ in the kernel")
	}
	all := make([]use, len(p.Maps()))
	for slot := range p.Len() {
		i := p.At(slot)
		switch i.Op {
		case isa.LdMap, isa.LdMapFD:
			all[i.Imm].handle = true
		case isa.LdValue, isa.LdValueFD:
			all[i.Imm].direct = true
		case isa.Call, isa.CallNamed:
			called := p.Services()[i.Target()]
			if helpers[called.Name] == 0 && !(oneCore && called.Name == thisCore) && lacked == nil {
				lacked = &lackedError{slot, called}
			}
		case isa.CallLocal:
			if i.Target() == 0 {
				return nil, fmt.Errorf("insn=%d: calls the program from its beginning", slot)
			}
		}
	}
	for n, spec := range p.Maps() {
		if all[n].handle && all[n].direct && spec.Entries > 1 {
			return nil, fmt.Errorf("map %q: the kernel has no address for the whole of a map that services use", spec.Name)
		}
	}
	return all, lacked
}

// private refuses maps that a twin in the kernel cannot replace.
func private(maps []*state.Map) error {
	for _, m := range maps {
		spec := m.Spec()
		if spec.Kind != state.Array {
			return fmt.Errorf("map %q: the core of a %v is the event's, not the kernel's", spec.Name, spec.Kind)
		}
		if _, shared := m.Memory().FD(); shared {
			return fmt.Errorf("map %q: it is shared with other processes, which would not see what the kernel does", spec.Name)
		}
	}
	return nil
}

// translator translates a program for the kernel.
type translator struct {
	program *verify.Program
	part    bool  // a Part: called with the context in r1
	core    int32 // result of thisCore
	code    []isa.Instruction
	at      []int       // index in code, by slot
	entry   map[int]int // index in code of a function, by its first slot; -1: the epilogue
}

// translate returns the translation of a program. It names maps by index: an
// instruction that loads one is an LdMapFD or LdValueFD.
func translate(p *verify.Program) *translator {
	t := &translator{program: p}
	t.translate()
	return t
}

func (t *translator) translate() {
	p := t.program
	t.at, t.entry = make([]int, p.Len()), make(map[int]int)
	for n, f := range p.Functions() {
		t.entry[f.Start] = len(t.code)
		t.clearStack(f)
		switch {
		case n == 0 && t.part:
			t.arguments()
		case n == 0:
			t.prologue()
		}
		for slot := f.Start; slot < f.End; slot++ {
			t.at[slot] = len(t.code)
			t.code = append(t.code, t.instruction(slot))
		}
		if n == 0 && !t.part {
			t.epilogue()
		}
	}
	t.link()
}

// emit adds an instruction written as text.
func (t *translator) emit(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	i, err := isa.Parse(text)
	if err != nil {
		panic("linux: " + text + ": " + err.Error())
	}
	t.code = isa.Append(t.code, i)
}

// clearStack emits stores that zero the part of its frame that a function may
// access, because the kernel does not zero it.
func (t *translator) clearStack(f verify.Function) {
	for offset := -frame(t.program, f); offset < 0; offset += 8 {
		t.emit("stdw [r10%d], 0", offset)
	}
}

// frame returns how many bytes at the top of its frame a function may access: all
// of it if r10 is copied or stored, except to give a service the address of something
// in it, else down to its lowest access.
func frame(p *verify.Program, f verify.Function) int {
	lowest := 0
	for slot := f.Start; slot < f.End; slot++ {
		i := p.At(slot)
		base, value := i.Dst, i.Src
		if i.Op.Form() == isa.FormLoad {
			base, value = value, base
		}
		switch {
		case i.Op == isa.Invalid:
		case value == isa.FramePointer && i.Op.Size() == 0:
			offset, ok := argument(p, slot, f.End)
			if !ok {
				return verify.FrameSize
			}
			lowest = min(lowest, offset)
		case value == isa.FramePointer, base == isa.FramePointer && i.Op.Size() == 0:
			return verify.FrameSize
		case base == isa.FramePointer:
			lowest = min(lowest, int(i.Off))
		}
	}
	return min(-lowest+7, verify.FrameSize) &^ 7
}

// The classes of jumps in a code (RFC 9669, 4).
const (
	classJump   = 5
	classJump32 = 6
)

// argument recognizes the code that makes an address in the frame for a service: a
// copy of r10 in a register of arguments, from which the next instruction subtracts
// a constant, and that is not used again before the service is called. It returns
// the offset of that address.
func argument(p *verify.Program, slot, end int) (offset int, ok bool) {
	to := p.At(slot).Dst
	if p.At(slot).Op != isa.MovX || to < 1 || to > 5 || slot+1 >= end {
		return 0, false
	}
	sum := p.At(slot + 1)
	if sum.Op != isa.AddK || sum.Dst != to || sum.Imm >= 0 || sum.Imm < -verify.FrameSize {
		return 0, false
	}
	for slot += 2; slot < end; slot++ {
		switch i := p.At(slot); {
		case i.Op == isa.Invalid: // the second half of the one before
		case i.Op == isa.Call || i.Op == isa.CallNamed:
			return int(sum.Imm), true
		case i.Dst == to || i.Src == to || i.Code&7 == classJump || i.Code&7 == classJump32:
			return 0, false
		}
	}
	return 0, false
}

// prologue emits the loads of all registers. A context overwrites r1.
func (t *translator) prologue() {
	t.emit("lddw_value_fd r9, %d, 0", controlMap)
	for r := 1; r <= 5; r++ {
		t.emit("ldxdw r%d, [r9+%d]", r, controlArgs+8*(r-1))
	}
	if t.program.Context().Size > 0 {
		t.emit("lddw_value_fd r1, %d, 0", contextMap)
	}
	t.clear(0, 6, 7, 8, 9)
}

// arguments emits the loads of a part's registers. The caller sets r1.
func (t *translator) arguments() {
	t.emit("mov r2, %d", t.program.Context().Size)
	t.clear(0, 3, 4, 5, 6, 7, 8, 9)
}

func (t *translator) clear(registers ...int) {
	for _, r := range registers {
		t.emit("mov r%d, 0", r)
	}
}

// epilogue emits the end of the run.
func (t *translator) epilogue() {
	t.entry[-1] = len(t.code)
	t.emit("lddw_value_fd r1, %d, 0", controlMap)
	t.emit("stxdw [r1+%d], r0", controlR0)
	t.emit("mov r0, 0")
	t.emit("exit")
}

// instruction returns the translation of an instruction. link sets its distance.
func (t *translator) instruction(slot int) isa.Instruction {
	i := *t.program.At(slot) // a copy: programs are shared
	switch i.Op {
	case isa.LdMap, isa.LdMapFD:
		i.Src = isa.Register(isa.LdMapFD.Row().Key.Value)
		i.Imm += firstMap
	case isa.LdValue, isa.LdValueFD:
		i.Src = isa.Register(isa.LdValueFD.Row().Key.Value)
		i.Imm += firstMap
	case isa.Call, isa.CallNamed:
		called := t.program.Services()[i.Target()]
		if called.Name == thisCore {
			return isa.Instruction{Code: isa.MovK.Row().Code, Imm: t.core}
		}
		return isa.Instruction{Code: isa.Call.Row().Code, Imm: helpers[called.Name]}
	case isa.Exit:
		if t.program.Function(slot).Start == 0 && !t.part {
			return isa.Instruction{Code: isa.JA.Row().Code}
		}
	}
	return i.Encoded()
}

// link sets the distances of calls, code addresses and exits.
func (t *translator) link() {
	for slot, at := range t.at {
		i := t.program.At(slot)
		out := &t.code[at]
		switch i.Op {
		case isa.CallLocal, isa.LdCode:
			out.Imm = int32(t.entry[i.Target()] - at - 1)
		case isa.Exit:
			if t.program.Function(slot).Start == 0 && !t.part {
				jump(out, t.entry[-1]-at-1)
			}
		}
	}
}

// jump sets the distance of a jump. It avoids the long form where possible:
// Linux before 6.6 does not know it.
func jump(i *isa.Instruction, distance int) {
	if distance <= math.MaxInt16 {
		i.Off = int16(distance)
		return
	}
	*i = isa.Instruction{Code: isa.GotoL.Row().Code, Imm: int32(distance)}
}

// callDepth returns how many functions of a program without recursion may be
// active at once.
func callDepth(p *verify.Program) int {
	known := make(map[int]int) // by first slot
	var depth func(start int) int
	depth = func(start int) int {
		if known[start] > 0 {
			return known[start]
		}
		deepest := 0
		for slot, f := start, p.Function(start); slot < f.End; slot++ {
			if i := p.At(slot); i.Op == isa.CallLocal {
				deepest = max(deepest, depth(i.Target()))
			}
		}
		known[start] = 1 + deepest
		return known[start]
	}
	return depth(0)
}
