package verify

import (
	"slices"
	"sort"

	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/state"
)

// Program is a program that Verify has accepted. It does not change, so it is
// safe for concurrent use. The zero Program has no instructions.
type Program struct {
	name      string
	trusted   bool
	code      []Instruction
	functions []Function         // ascending, without gaps
	services  []*service.Service // of calls
	maps      []state.Spec
	pointers  []Pointer
	lines     object.Lines
	context   Context
}

// Context is what whoever runs a program promises of every context that it is
// run for. The zero Context promises nothing.
type Context struct {
	Size     uint64 // least length, in bytes
	Readable bool   // all of it, if it has any length
	Writable bool   // the same
}

// Instruction is an instruction with what the verifier found out about it. The
// second slot of a wide instruction has Op Invalid and is never executed. It has
// no pointers, since the garbage collector would go through every program.
type Instruction struct {
	isa.Instruction
	Op     isa.Op
	Proved bool   // its memory access cannot leave its region
	Cost   uint32 // instructions in the basic block that starts here; 0: none does
	Target int    // slot that a jump or local call goes to, or whose address is loaded; index in Services of what a Call or CallNamed calls
}

// Function is a function of a program, the slots [Start, End).
type Function struct {
	Start, End int
	Frame      bool // it names r10, so it has a stack frame of FrameSize bytes
}

// Pointer is an address in a map, which is known when the program is inserted:
// the 8 bytes at Offset of map number Map are the address of the byte at Distance
// of map number To. They are inside, but Distance may be the end.
type Pointer struct {
	Map, To          int
	Offset, Distance uint32
}

// Pointers returns the addresses in maps. Nobody may change them.
func (p *Program) Pointers() []Pointer { return p.pointers }

// Name returns the name of the program.
func (p *Program) Name() string { return p.name }

// Trusted reports whether the program was verified as trusted.
func (p *Program) Trusted() bool { return p.trusted }

// Context returns what was promised of every context.
func (p *Program) Context() Context { return p.context }

// Len returns the number of slots.
func (p *Program) Len() int { return len(p.code) }

// At returns the instruction of a slot in [0, Len), in the program itself so
// that an engine need not copy it. Nobody may change it.
func (p *Program) At(slot int) *Instruction { return &p.code[slot] }

// Functions returns the functions, ascending.
func (p *Program) Functions() []Function { return slices.Clone(p.functions) }

// Function returns the function that a slot in [0, Len) belongs to.
func (p *Program) Function(slot int) Function {
	after := sort.Search(len(p.functions), func(n int) bool { return p.functions[n].Start > slot })
	return p.functions[after-1]
}

// Services returns what instructions call, by their Target. Nobody may change it.
func (p *Program) Services() []*service.Service { return p.services }

// Maps returns the descriptions of the maps by index.
func (p *Program) Maps() []state.Spec { return slices.Clone(p.maps) }

// Line returns the source line of an instruction, the zero Line if unknown.
func (p *Program) Line(slot int) object.Line {
	return p.lines.At(slot)
}
