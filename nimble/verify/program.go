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
	functions []Function // ascending, without gaps
	registers uint16     // see Registers
	repeats   bool       // see Repeats
	slowest   Block
	services  []*service.Service // of calls
	maps      []state.Spec
	pointers  []Pointer
	lines     object.Lines
	context   Context
}

// Context is a promise about the context of every run of a program, which the
// caller of the engine must keep: see Kept. The zero Context promises nothing.
type Context struct {
	Size     uint64 // least length, in bytes
	Readable bool   // all of it, if it has any length
	Writable bool   // the same
}

// Instruction is an instruction with the verifier's findings. The second slot of a
// wide instruction has Op Invalid and is never executed. It has no pointers, so
// that the garbage collector need not scan programs, and is small, because each
// page of a new program may cost an insertion a page fault.
type Instruction struct {
	Code     uint8 // fields of the isa.Instruction
	Op       isa.Op
	Dst, Src isa.Register
	Off      int16
	Proved   bool // its memory access cannot leave its region
	Imm      int32
	Cost     uint32 // instructions in the basic block that starts here; 0: none does
	extra    int32  // Target or High
}

// Target returns the slot of a jump, local call or loaded code address; for a Call
// or CallNamed, the index in Services. For other instructions it is meaningless.
func (i *Instruction) Target() int { return int(i.extra) }

// High returns the second immediate of a wide instruction other than LdCode, which
// has none. For other instructions it is meaningless.
func (i *Instruction) High() int32 { return i.extra }

// Const returns the 64-bit constant of LdDW.
func (i *Instruction) Const() uint64 { return uint64(uint32(i.extra))<<32 | uint64(uint32(i.Imm)) }

// Encoded returns the instruction as it was encoded.
func (i *Instruction) Encoded() isa.Instruction {
	encoded := isa.Instruction{Code: i.Code, Dst: i.Dst, Src: i.Src, Off: i.Off, Imm: i.Imm}
	if encoded.Wide() && i.Op != isa.LdCode {
		encoded.High = i.extra
	}
	return encoded
}

// Block says how long a basic block may take.
type Block struct {
	Cost uint32 // its instructions
	Slow uint32 // the slow ones: they divide, or access memory, which may miss every cache
}

// slower reports whether a larger share of the instructions is slow than in o.
func (b *Block) slower(o *Block) bool {
	return uint64(b.Slow)*uint64(o.Cost) > uint64(o.Slow)*uint64(b.Cost)
}

// Function is a function of a program, the slots [Start, End).
type Function struct {
	Start, End int
	Frame      bool // it uses r10, so it has a stack frame of FrameSize bytes
	Called     bool // there is a local call of it
}

// Pointer is an address in a map, which is set when the program is inserted: the 8
// bytes at Offset in map number Map are the address of the byte at Distance in map
// number To. Both are inside their maps, but Distance may be the end.
type Pointer struct {
	Map, To          int
	Offset, Distance uint32
}

// Pointers returns the addresses in maps. The caller must not change the slice.
func (p *Program) Pointers() []Pointer { return p.pointers }

// Name returns the name of the program.
func (p *Program) Name() string { return p.name }

// Trusted reports whether the program was verified as trusted.
func (p *Program) Trusted() bool { return p.trusted }

// Context returns the promise about the context of every run.
func (p *Program) Context() Context { return p.context }

// Len returns the number of slots.
func (p *Program) Len() int { return len(p.code) }

// At returns a pointer to the instruction of a slot in [0, Len). The caller must
// not change it.
func (p *Program) At(slot int) *Instruction { return &p.code[slot] }

// Functions returns the functions, ascending.
func (p *Program) Functions() []Function { return slices.Clone(p.functions) }

// Function returns the function that a slot in [0, Len) belongs to.
func (p *Program) Function(slot int) Function { return *p.functionOf(slot) }

func (p *Program) functionOf(slot int) *Function {
	after := sort.Search(len(p.functions), func(n int) bool { return p.functions[n].Start > slot })
	return &p.functions[after-1]
}

// Registers returns the registers that instructions use, a bit each. It may include
// registers that none uses.
func (p *Program) Registers() uint16 { return p.registers }

// Repeats reports whether a run may execute an instruction more than once: a jump
// goes back, or there is a local call.
func (p *Program) Repeats() bool { return p.repeats }

// Slowest returns the block with the largest share of slow instructions.
func (p *Program) Slowest() Block { return p.slowest }

// Services returns the called services, by the Target of calls. The caller must
// not change the slice.
func (p *Program) Services() []*service.Service { return p.services }

// Maps returns the descriptions of the maps by index.
func (p *Program) Maps() []state.Spec { return slices.Clone(p.maps) }

// Line returns the source line of an instruction, the zero Line if unknown.
func (p *Program) Line(slot int) object.Line {
	return p.lines.At(slot)
}
