package isa

// Op names one instruction: one row of the table. Several Ops share an opcode byte if RFC 9669
// distinguishes them by another field.
type Op uint8

// The instructions of RFC 9669. K takes the 32-bit immediate as operand, X the
// source register; 32 in the name is a 32-bit operation.
const (
	Invalid Op = iota // no instruction
	AddK
	AddX
	SubK
	SubX
	MulK
	MulX
	DivK
	DivX
	SDivK
	SDivX
	OrK
	OrX
	AndK
	AndX
	LshK
	LshX
	RshK
	RshX
	Neg
	ModK
	ModX
	SModK
	SModX
	XorK
	XorX
	MovK
	MovX
	MovSX8
	MovSX16
	MovSX32
	ArshK
	ArshX
	Add32K
	Add32X
	Sub32K
	Sub32X
	Mul32K
	Mul32X
	Div32K
	Div32X
	SDiv32K
	SDiv32X
	Or32K
	Or32X
	And32K
	And32X
	Lsh32K
	Lsh32X
	Rsh32K
	Rsh32X
	Neg32
	Mod32K
	Mod32X
	SMod32K
	SMod32X
	Xor32K
	Xor32X
	Mov32K
	Mov32X
	Mov32SX8
	Mov32SX16
	Arsh32K
	Arsh32X

	LE16
	LE32
	LE64
	BE16
	BE32
	BE64
	BSwap16
	BSwap32
	BSwap64

	JA
	GotoL
	JEqK
	JEqX
	JGTK
	JGTX
	JGEK
	JGEX
	JSetK
	JSetX
	JNEK
	JNEX
	JSGTK
	JSGTX
	JSGEK
	JSGEX
	JLTK
	JLTX
	JLEK
	JLEX
	JSLTK
	JSLTX
	JSLEK
	JSLEX
	JEq32K
	JEq32X
	JGT32K
	JGT32X
	JGE32K
	JGE32X
	JSet32K
	JSet32X
	JNE32K
	JNE32X
	JSGT32K
	JSGT32X
	JSGE32K
	JSGE32X
	JLT32K
	JLT32X
	JLE32K
	JLE32X
	JSLT32K
	JSLT32X
	JSLE32K
	JSLE32X

	Call

	CallLocal

	CallNamed

	CallX
	Exit

	LdXB
	LdXH
	LdXW
	LdXDW

	LdXSB
	LdXSH
	LdXSW

	StB
	StH
	StW
	StDW
	StXB
	StXH
	StXW
	StXDW

	AtomicAdd
	AtomicOr
	AtomicAnd
	AtomicXor
	AtomicFetchAdd
	AtomicFetchOr
	AtomicFetchAnd
	AtomicFetchXor
	AtomicXchg
	AtomicCmpXchg
	AtomicAdd32
	AtomicOr32
	AtomicAnd32
	AtomicXor32
	AtomicFetchAdd32
	AtomicFetchOr32
	AtomicFetchAnd32
	AtomicFetchXor32
	AtomicXchg32
	AtomicCmpXchg32

	LdDW
	LdMapFD
	LdValueFD
	LdVariable
	LdCode
	LdMap
	LdValue

	LdAbsB
	LdAbsH
	LdAbsW
	LdIndB
	LdIndH
	LdIndW

	// Ops is the number of values of Op, Invalid included.
	Ops = int(iota)
)
