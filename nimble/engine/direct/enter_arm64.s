#include "go_asm.h"
#include "textflag.h"
#include "funcdata.h"

// func handlers() *[handlerCount]uintptr
TEXT ·handlers(SB), NOSPLIT, $0-8
	MOVD $·table(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func enter(k *cpu, at *cell)
//
// Not NOSPLIT: the stack check is where a goroutine that runs extensions is
// stopped.
TEXT ·enter(SB), 0, $8-16
	NO_LOCAL_POINTERS
	MOVD k+0(FP), R0
	MOVD at+8(FP), R1
	MOVD cpu_left(R0), R2
	MOVD cell_handler(R1), R7
	CALL (R7)
	RET
