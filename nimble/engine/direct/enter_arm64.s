#include "go_asm.h"
#include "textflag.h"
#include "funcdata.h"

// func handlers() *[handlerCount]uintptr
TEXT ·handlers(SB), NOSPLIT, $0-8
	MOVD $·table(SB), R0
	MOVD R0, ret+0(FP)
	RET

// func resume(k *cpu, at *cell)
TEXT ·resume(SB), 0, $8-16
	NO_LOCAL_POINTERS
	MOVD k+0(FP), R0
	MOVD at+8(FP), R1
	MOVD cpu_left(R0), R2
	MOVD ·table+8*const_handleEnter(SB), R7
	CALL (R7)
	RET

// func begin(k *cpu, at *cell, args *[5]uint64)
TEXT ·begin(SB), 0, $8-24
	NO_LOCAL_POINTERS
	MOVD k+0(FP), R0
	MOVD at+8(FP), R1
	MOVD args+16(FP), R3
	MOVD cpu_left(R0), R2
	MOVD ZR, (cpu_reg+0)(R0)
	LDP 0(R3), (R4, R5)
	LDP 16(R3), (R6, R7)
	MOVD 32(R3), R8
	STP (R4, R5), (cpu_reg+8)(R0)
	STP (R6, R7), (cpu_reg+24)(R0)
	MOVD R8, (cpu_reg+40)(R0)
	STP (ZR, ZR), (cpu_reg+48)(R0)
	STP (ZR, ZR), (cpu_reg+64)(R0)
	MOVD ·table+8*const_handleStart(SB), R7
	CALL (R7)
	RET
