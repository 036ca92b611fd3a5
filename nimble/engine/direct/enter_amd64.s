#include "go_asm.h"
#include "textflag.h"
#include "funcdata.h"

// func handlers() *[handlerCount]uintptr
TEXT ·handlers(SB), NOSPLIT, $0-8
	LEAQ ·table(SB), AX
	MOVQ AX, ret+0(FP)
	RET

// func enter(k *cpu, at *cell)
//
// Not NOSPLIT: the stack check is where a goroutine that runs extensions is
// stopped. The frame makes the assembler save BP.
TEXT ·enter(SB), 0, $8-16
	NO_LOCAL_POINTERS
	MOVQ at+8(FP), SI
	MOVQ k+0(FP), BP
	MOVQ cpu_ahead(BP), R13
	MOVQ cpu_left(BP), X2
	MOVQ (cpu_reg+0)(BP), AX
	MOVQ (cpu_reg+8)(BP), DI
	MOVQ (cpu_reg+16)(BP), R12
	MOVQ (cpu_reg+24)(BP), R8
	MOVQ (cpu_reg+32)(BP), DX
	MOVQ (cpu_reg+40)(BP), R9
	MOVQ (cpu_reg+48)(BP), BX
	MOVQ (cpu_reg+56)(BP), R10
	MOVQ (cpu_reg+64)(BP), R11
	MOVQ (cpu_reg+72)(BP), R15
	MOVQ cell_handler(SI), CX
	CALL CX
	RET

// func start(k *cpu, at *cell, args *[5]uint64)
//
// The registers do not go through the cpu, which would make a short run a sixth
// longer. R13 is set by the cell, which pays for the first block.
TEXT ·start(SB), 0, $8-24
	NO_LOCAL_POINTERS
	MOVQ at+8(FP), SI
	MOVQ k+0(FP), BP
	MOVQ args+16(FP), CX
	MOVQ cpu_left(BP), X2
	XORL AX, AX
	MOVQ 0(CX), DI
	MOVQ 8(CX), R12
	MOVQ 16(CX), R8
	MOVQ 24(CX), DX
	MOVQ 32(CX), R9
	XORL BX, BX
	XORL R10, R10
	XORL R11, R11
	XORL R15, R15
	MOVQ cell_handler(SI), CX
	CALL CX
	RET
