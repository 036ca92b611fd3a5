#include "textflag.h"

// Offsets in the ucontext of Linux for amd64 (struct ucontext, struct
// sigcontext) and in its siginfo.
#define CONTEXT_BP 120
#define CONTEXT_IP 168
#define INFO_CODE 8

// Offsets in a cpu. CPU_NONE is zero there, and the return address in a frame of
// Go, which BP points to in plain code.
#define CPU_NONE 8
#define CPU_STRAY 96
#define CPU_AT 112

// func onFault()
//
// The handler of SIGSEGV and SIGBUS. The kernel calls it with the signal in DI,
// the siginfo in SI and the ucontext in DX, on the signal stack of the thread.
TEXT ·onFault(SB), NOSPLIT|NOFRAME, $0-0
	CMPL INFO_CODE(SI), $0 // not a fault: a process sent the signal
	JLE  next
	MOVQ CONTEXT_IP(DX), AX
	MOVQ AX, CX
	SUBQ ·codeStart(SB), CX
	CMPQ CX, ·codeSize(SB)
	JAE  next
	MOVQ CONTEXT_BP(DX), R8
	CMPQ CPU_NONE(R8), $0
	JNE  next
	MOVQ CPU_STRAY(R8), R9
	TESTQ R9, R9
	JEQ  next
	MOVQ AX, CPU_AT(R8)
	MOVQ R9, CONTEXT_IP(DX)
	RET

next:
	CMPL DI, $11 // SIGSEGV
	JNE  bus
	MOVQ ·afterSegv(SB), AX
	JMP  AX

bus:
	MOVQ ·afterBus(SB), AX
	JMP  AX

// func onFaultAddress() uintptr
TEXT ·onFaultAddress(SB), NOSPLIT, $0-8
	LEAQ ·onFault(SB), AX
	MOVQ AX, ret+0(FP)
	RET
