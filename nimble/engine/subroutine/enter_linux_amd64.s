#include "textflag.h"
#include "funcdata.h"

// func enter(k *cpu, at uintptr)
//
// Not NOSPLIT: the stack check is where a goroutine that runs extensions is
// stopped. The frame makes the assembler save BP.
TEXT ·enter(SB), 0, $8-16
	NO_LOCAL_POINTERS
	MOVQ at+8(FP), DX
	MOVQ k+0(FP), BP
	MOVQ 264(BP), AX
	MOVQ 272(BP), DI
	MOVQ 280(BP), SI
	MOVQ 288(BP), R8
	MOVQ 296(BP), CX
	MOVQ 304(BP), R9
	MOVQ 312(BP), BX
	MOVQ 320(BP), R10
	MOVQ 328(BP), R11
	MOVQ 336(BP), R15
	MOVQ 344(BP), R13
	MOVQ 16(BP), R12
	CALL DX
	RET
