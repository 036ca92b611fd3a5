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

// The element of control: r1 to r5, then r0.
const (
	controlArgs = 0
	controlR0   = 5 * 8
	controlSize = 6 * 8
)

// The maps that a translated program refers to by index come after these.
const (
	controlMap = iota
	contextMap
	firstMap
)

// helpers are the services that Linux has and that do the same there. Those of
// the core are not: it is the event's here.
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

// uses looks at the maps and services of a program whose runs are tests. The
// error is a reason to refuse it.
func uses(p *verify.Program, maps []*state.Map) ([]use, error) {
	all, err := findUses(p, false)
	if err != nil {
		return nil, err
	}
	return all, private(maps)
}

// findUses looks at the maps and services of a program. The error is a reason
// to refuse it. A program for one core may ask which that is.
func findUses(p *verify.Program, oneCore bool) ([]use, error) {
	if len(p.Pointers()) > 0 {
		return nil, errors.New("global data holds addresses, and the kernel has it elsewhere")
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
			called := p.Services()[i.Target]
			if helpers[called.Name] == 0 && !(oneCore && called.Name == thisCore) {
				return nil, fmt.Errorf("insn=%d: service %v is not one that the kernel has", slot, called)
			}
		case isa.CallLocal:
			if i.Target == 0 {
				return nil, fmt.Errorf("insn=%d: calls the program from its beginning", slot)
			}
		}
	}
	for n, spec := range p.Maps() {
		if all[n].handle && all[n].direct && spec.Entries > 1 {
			return nil, fmt.Errorf("map %q: the kernel has no address for the whole of a map that services use", spec.Name)
		}
	}
	return all, nil
}

// private refuses maps whose twins in the kernel would not do.
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

// translator makes the kernel's form of a program.
type translator struct {
	program *verify.Program
	part    bool  // of another program, which calls it with the context in r1
	core    int32 // what it is told when it asks for the core that the event is for
	code    []isa.Instruction
	at      []int       // of each slot, where it is in code
	entry   map[int]int // of the first slot of each function, where the function is in code
}

// translate returns the program as the kernel is to have it. Maps are referred
// to by index: an instruction that loads one is an LdMapFD or LdValueFD.
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

// clearStack makes zero what a function may touch of its frame, since the
// kernel does not. Without an address of its own in a register a function can
// touch no more than its accesses say.
func (t *translator) clearStack(f verify.Function) {
	for offset := -frame(t.program, f); offset < 0; offset += 8 {
		t.emit("stdw [r10%d], 0", offset)
	}
}

// frame returns how much of a function's frame it may touch, in bytes.
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
		case value == isa.FramePointer, base == isa.FramePointer && i.Op.Size() == 0:
			return verify.FrameSize
		case base == isa.FramePointer:
			lowest = min(lowest, int(i.Off))
		}
	}
	return min(-lowest+7, verify.FrameSize) &^ 7
}

// prologue sets up the registers. r1 is overwritten if there is a context.
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

// arguments sets up the registers of a part: r1 is what it was called with.
func (t *translator) arguments() {
	t.emit("mov r2, %d", t.program.Context().Size)
	t.clear(0, 3, 4, 5, 6, 7, 8, 9)
}

func (t *translator) clear(registers ...int) {
	for _, r := range registers {
		t.emit("mov r%d, 0", r)
	}
}

// epilogue ends the run.
func (t *translator) epilogue() {
	t.entry[-1] = len(t.code)
	t.emit("lddw_value_fd r1, %d, 0", controlMap)
	t.emit("stxdw [r1+%d], r0", controlR0)
	t.emit("mov r0, 0")
	t.emit("exit")
}

// instruction returns the kernel's form of one. Where it goes comes later.
func (t *translator) instruction(slot int) isa.Instruction {
	i := *t.program.At(slot) // a copy: the program is not ours
	switch i.Op {
	case isa.LdMap, isa.LdMapFD:
		i.Src = isa.Register(isa.LdMapFD.Row().Key.Value)
		i.Imm += firstMap
	case isa.LdValue, isa.LdValueFD:
		i.Src = isa.Register(isa.LdValueFD.Row().Key.Value)
		i.Imm += firstMap
	case isa.Call, isa.CallNamed:
		called := t.program.Services()[i.Target]
		if called.Name == thisCore {
			return isa.Instruction{Code: isa.MovK.Row().Code, Imm: t.core}
		}
		return isa.Instruction{Code: isa.Call.Row().Code, Imm: helpers[called.Name]}
	case isa.Exit:
		if t.program.Function(slot).Start == 0 && !t.part {
			return isa.Instruction{Code: isa.JA.Row().Code}
		}
	}
	return i.Instruction
}

// link sets all distances.
func (t *translator) link() {
	for slot, at := range t.at {
		i := t.program.At(slot)
		out := &t.code[at]
		switch i.Op {
		case isa.CallLocal, isa.LdCode:
			out.Imm = int32(t.entry[i.Target] - at - 1)
		case isa.Exit:
			if t.program.Function(slot).Start == 0 && !t.part {
				jump(out, t.entry[-1]-at-1)
			}
		}
	}
}

// jump sets the distance of a jump. The long form is one that kernels before 6.6
// do not know.
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
				deepest = max(deepest, depth(i.Target))
			}
		}
		known[start] = 1 + deepest
		return known[start]
	}
	return depth(0)
}
