package enginetest

import (
	"math"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/state"
)

// Generate makes a program from any bytes: it uses every instruction, local calls,
// loops, services and accesses that mostly hit a region. The verifier accepts it;
// it may fault and may run forever. The same bytes give the same program.
func Generate(data []byte) *object.Spec {
	g := &generator{data: data}
	functions := make([][]jumping, 1+g.below(3))
	for i := range functions {
		functions[i] = g.function(len(functions))
	}
	return generated(functions)
}

// GenerateOnce is Generate of a program that executes each instruction at most once
// and calls nothing. Many have no atomic operations, no divisions, or no accesses
// that can miss their region.
func GenerateOnce(data []byte) *object.Spec {
	g := &generator{data: data, once: true}
	g.atomics, g.divisions, g.strays = g.below(3) == 0, g.below(2) == 0, g.below(2) == 0
	return generated([][]jumping{g.function(1)})
}

func generated(functions [][]jumping) *object.Spec {
	return &object.Spec{
		Name:         "generated",
		Instructions: link(functions),
		Externs:      []string{"sum", "map_lookup_elem", "map_update_elem"},
		Maps: []state.Spec{
			{Name: "array", ValueSize: 24, Entries: 4},
			{Name: "constants", ValueSize: 16, Entries: 1, ReadOnly: true, Contents: []byte{1, 2, 3}},
		},
	}
}

// generator makes decisions from bytes, and from zeros when they run out.
type generator struct {
	data []byte
	once bool // see GenerateOnce; the others matter only then

	atomics, divisions, strays bool
}

func (g *generator) next() int {
	if len(g.data) == 0 {
		return 0
	}
	b := g.data[0]
	g.data = g.data[1:]
	return int(b)
}

// below returns a number in [0, n).
func (g *generator) below(n int) int { return g.next() % n }

// jumping is an instruction with its target, if any, by position in its
// function, or by number of function.
type jumping struct {
	isa.Instruction
	op     isa.Op
	target int
}

// function makes one function. Its first instructions leave pointers in r6 to
// r8, which the others mostly keep.
func (g *generator) function(functions int) []jumping {
	var code []jumping
	for _, text := range []string{"mov r6, r1", "lddw_value r7, 0, 0", "lddw_map r8, 0"} {
		i, err := isa.Parse(text)
		if err != nil {
			panic("enginetest: " + err.Error())
		}
		code = append(code, jumping{Instruction: i, op: i.Op()})
	}
	for n := 1 + g.below(32); n > 0; n-- {
		code = append(code, g.instruction())
	}
	code = append(code, jumping{Instruction: isa.Instruction{Code: isa.Exit.Row().Code}, op: isa.Exit})
	for n := range code {
		switch i := &code[n]; i.op.Form() {
		case isa.FormJump, isa.FormJumpLong, isa.FormCondImm, isa.FormCondSrc:
			i.target = min(n+1+g.below(8), len(code)-1)
			if !g.once && g.below(8) == 0 {
				i.target = g.below(len(code))
			}
		case isa.FormCallLocal, isa.FormWideCode:
			i.target = g.below(functions)
		}
	}
	return code
}

// instruction picks a row and fills its fields within their bounds.
func (g *generator) instruction() jumping {
	op := isa.Op(1 + (g.next()<<8|g.next())%(isa.Ops-1))
	if op.Row().Refused != "" || op == isa.LdVariable {
		op = isa.AddX
	}
	if g.once && !g.includes(op) {
		op = isa.MovX
	}
	row := op.Row()
	i := isa.Instruction{Code: row.Code}
	pick := func(f isa.Field, choices ...int) int {
		b := op.Bounds(f)
		return int(min(max(int64(choices[g.below(len(choices))]), b.Min), b.Max))
	}
	i.Dst = isa.Register(pick(isa.Dst, 0, 0, 2, 2, 3, 4, 5, 9, 9, 1, 6, 7, 10))
	i.Src = isa.Register(pick(isa.Src, 0, 2, 3, 4, 5, 9, 1, 6, 7, 8, 10))
	i.Off = int16(pick(isa.Off, 0, 0, 8, 16, 24, 60, 63, 64, 88, -1, -8, -16, -512, 1, 2, 4))
	i.Imm = int32(pick(isa.Imm, 0, 1, 2, 5, 8, -1, 63, 64, 0x7f, 0x1234, math.MaxInt32, math.MinInt32))
	i.High = int32(pick(isa.High, 0, 1, 15, -1))
	switch row.Form {
	case isa.FormLoad:
		i.Src = g.base()
	case isa.FormStore, isa.FormStoreImm, isa.FormAtomic, isa.FormAtomicFetch:
		i.Dst = g.base()
	case isa.FormCall:
		i.Imm = []int32{1, 5, 9}[g.below(3)]
		if op == isa.CallNamed {
			i.Imm = int32(g.below(3))
		}
	case isa.FormWideIndex, isa.FormWideValue:
		i.Imm = int32(g.below(2))
	}
	if g.once && !g.strays && op.Size() > 0 {
		g.tame(&i, op)
	}
	return jumping{Instruction: i, op: op}
}

// includes reports whether a program of GenerateOnce may have an instruction.
func (g *generator) includes(op isa.Op) bool {
	switch op.Form() {
	case isa.FormCall, isa.FormCallLocal, isa.FormWideCode:
		return false
	case isa.FormAtomic, isa.FormAtomicFetch:
		return g.atomics
	}
	return g.divisions || !op.Divides()
}

// tame makes an access one that the verifier can prove, unless another instruction
// changes the register of its address.
func (g *generator) tame(i *isa.Instruction, op isa.Op) {
	base, offsets := []isa.Register{6, 7}[g.below(2)], []int16{0, 8, 16, 24, 48}
	if op.Form() == isa.FormLoad {
		i.Src = base
	} else {
		i.Dst = base
	}
	i.Off = offsets[g.below(len(offsets))]
}

// base picks a register that mostly holds a pointer.
func (g *generator) base() isa.Register {
	return []isa.Register{1, 6, 6, 7, 7, 10, 10, 0, 9}[g.below(9)]
}

// link lays out the functions and turns targets into distances.
func link(functions [][]jumping) []isa.Instruction {
	starts := make([]int, len(functions))
	slots := make([][]int, len(functions))
	at := 0
	for f, code := range functions {
		starts[f] = at
		for _, i := range code {
			slots[f] = append(slots[f], at)
			if at++; i.Wide() {
				at++
			}
		}
	}
	var program []isa.Instruction
	for f, code := range functions {
		for n, i := range code {
			next := slots[f][n] + 1
			switch i.op.Form() {
			case isa.FormJump, isa.FormCondImm, isa.FormCondSrc:
				i.Off = int16(slots[f][i.target] - next)
			case isa.FormJumpLong:
				i.Imm = int32(slots[f][i.target] - next)
			case isa.FormCallLocal, isa.FormWideCode:
				i.Imm = int32(starts[i.target] - next)
			}
			program = isa.Append(program, i.Instruction)
		}
	}
	return program
}
