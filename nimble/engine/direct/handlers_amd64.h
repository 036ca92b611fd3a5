// Macros and common code of the handlers in handlers_amd64.s. See direct.go for
// the use of registers.

#include "go_asm.h"
#include "textflag.h"

#define REG(n) (cpu_reg+8*n)(BP)

// HANDLER begins a handler and puts its address into the table.
#define HANDLER(place, name) DATA ·table+place(SB)/8, $name<>(SB); TEXT name<>(SB), NOSPLIT|NOFRAME, $0-0

// NEXT continues with the next cell.
#define NEXT ADDQ $cell__size, SI; JMP (SI)

// ENTER pays for the block that begins with the cell at SI and continues there.
// PAY does the same without loading the cell ahead.
#define ENTER MOVLQSX cell_ahead(SI), R13; ADDQ SI, R13; PAY
#define PAY \
	MOVL cell_cost(SI), X1; \
	PSUBL X1, X2; \
	MOVMSKPS X2, CX; \
	TESTL CX, CX; \
	JNE 2(PC); \
	JMP (SI); \
	JMP refill<>(SB)

// FALL enters the block that begins with the next cell, JUMP the block at the
// cell ahead. BACK is JUMP to the current block, where R13 does not change: a
// loop of one block does not wait for a load in each iteration.
#define FALL ADDQ $cell__size, SI; ENTER
#define JUMP MOVQ R13, SI; ENTER
#define BACK MOVQ R13, SI; PAY

// GO takes the arguments that Go passes to both entries. RETURN returns to Go,
// with the reason in BX.
#define GO MOVQ BP, cpu_back(AX); MOVQ AX, BP; MOVQ BX, SI; MOVQ CX, X2
#define RETURN MOVQ X2, CX; MOVQ cpu_back(BP), BP; RET

// START is the entry for a run and pays for its first block. The registers do not
// go through the cpu, which would make a short run a sixth longer. RESUME is the
// entry for a run that continues.
#define START \
	GO; \
	MOVQ DI, CX; \
	MOVQ 0(CX), DI; \
	MOVQ 8(CX), R12; \
	MOVQ 16(CX), R8; \
	MOVQ 24(CX), DX; \
	MOVQ 32(CX), R9; \
	XORL AX, AX; \
	XORL BX, BX; \
	XORL R10, R10; \
	XORL R11, R11; \
	XORL R15, R15; \
	ENTER
#define RESUME \
	GO; \
	MOVQ cpu_ahead(BP), R13; \
	MOVQ REG(0), AX; \
	MOVQ REG(1), DI; \
	MOVQ REG(2), R12; \
	MOVQ REG(3), R8; \
	MOVQ REG(4), DX; \
	MOVQ REG(5), R9; \
	MOVQ REG(6), BX; \
	MOVQ REG(7), R10; \
	MOVQ REG(8), R11; \
	MOVQ REG(9), R15; \
	JMP (SI)

// FINISH ends the run.
#define FINISH XORL BX, BX; RETURN

// LEAVE stores the registers and returns to Go.
#define LEAVE(why) MOVQ $why, cpu_reason(BP); JMP leave<>(SB)

// PUSH calls a function that has no stack frame, POP exits from one.
#define PUSH \
	MOVQ cpu_frame(BP), CX; \
	CMPQ CX, (cpu_frames+8)(BP); \
	JEQ full; \
	MOVQ BX, (const_offSaved+0)(CX); \
	MOVQ R10, (const_offSaved+8)(CX); \
	MOVQ R11, (const_offSaved+16)(CX); \
	MOVQ R15, (const_offSaved+24)(CX); \
	ADDQ $cell__size, SI; \
	MOVQ SI, const_offReturn(CX); \
	MOVQ R13, SI; \
	MOVQ REG(10), R13; \
	MOVQ R13, const_offFP(CX); \
	ADDQ $const_frameSize, CX; \
	MOVQ CX, cpu_frame(BP); \
	MOVQ cpu_stack(BP), R13; \
	MOVQ R13, REG(10); \
	ENTER; \
full: \
	LEAVE(const_deep)
#define POP \
	MOVQ cpu_frame(BP), CX; \
	SUBQ $const_frameSize, CX; \
	MOVQ CX, cpu_frame(BP); \
	MOVQ (const_offSaved+0)(CX), BX; \
	MOVQ (const_offSaved+8)(CX), R10; \
	MOVQ (const_offSaved+16)(CX), R11; \
	MOVQ (const_offSaved+24)(CX), R15; \
	MOVQ const_offFP(CX), R13; \
	MOVQ R13, REG(10); \
	MOVQ const_offReturn(CX), SI; \
	ENTER

// ADDRESS puts the address of an access into CX.
#define ADDRESS(base) MOVQ cell_operand(SI), CX; ADDQ base, CX

// CHECK compares an access of 1<<n bytes at CX with a window. MISSED ends a
// handler with a CHECK. CHECKWITH is for handlers with a spare register.
#define CHECK(window, n) SUBQ window(BP), CX; CMPQ CX, (window+const_offLimit+8*n)(BP); JCC miss; ADDQ window(BP), CX
#define CHECKWITH(spare, window, n) MOVQ CX, spare; SUBQ window(BP), spare; CMPQ spare, (window+const_offLimit+8*n)(BP); JCC miss
#define MISSED(window, handler) miss: ADDQ window(BP), CX; JMP handler<>(SB)

// ALIGNED requires the address in CX to be a multiple of 1<<n. MISALIGNED ends a
// handler with an ALIGNED.
#define ALIGNED(n) TESTL $((1<<n)-1), CX; JNE misaligned
#define MISALIGNED misaligned: LEAVE(const_misaligned)

// NOTE records an unchecked access to the address in CX.
#define NOTE MOVQ SI, cpu_at(BP); MOVQ CX, cpu_addr(BP); MOVQ X2, cpu_paid(BP)

// leave stores the state that Go may read or change.
TEXT leave<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVQ SI, cpu_pc(BP)
	MOVQ CX, cpu_addr(BP)
	MOVQ R13, cpu_ahead(BP)
	MOVQ AX, REG(0)
	MOVQ DI, REG(1)
	MOVQ R12, REG(2)
	MOVQ R8, REG(3)
	MOVQ DX, REG(4)
	MOVQ R9, REG(5)
	MOVQ BX, REG(6)
	MOVQ R10, REG(7)
	MOVQ R11, REG(8)
	MOVQ R15, REG(9)
	MOVQ cpu_reason(BP), BX
	RETURN

// refill refunds a block that costs more than the slice has left, and leaves.
TEXT refill<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVL cell_cost(SI), X1
	PADDL X1, X2
	LEAVE(const_refill)

// MISS looks for the region of an access at CX that is outside the window. It
// copies the region's window and executes the cell again.
#define MISS(name, list, window, n) \
TEXT name<>(SB), NOSPLIT|NOFRAME, $0-0; \
	MOVQ AX, REG(0); \
	MOVQ R13, cpu_ahead(BP); \
	MOVQ list(BP), R13; \
again: \
	MOVQ CX, AX; \
	SUBQ (R13), AX; \
	CMPQ AX, (const_offLimit+8*n)(R13); \
	JCS found; \
	ADDQ $const_windowSize, R13; \
	CMPQ R13, (list+8)(BP); \
	JNE again; \
	MOVQ REG(0), AX; \
	MOVQ cpu_ahead(BP), R13; \
	LEAVE(const_access); \
found: \
	MOVQ (R13), AX; \
	MOVQ AX, window(BP); \
	MOVQ 8(R13), AX; \
	MOVQ AX, (window+8)(BP); \
	MOVQ 16(R13), AX; \
	MOVQ AX, (window+16)(BP); \
	MOVQ 24(R13), AX; \
	MOVQ AX, (window+24)(BP); \
	MOVQ 32(R13), AX; \
	MOVQ AX, (window+32)(BP); \
	MOVQ REG(0), AX; \
	MOVQ cpu_ahead(BP), R13; \
	JMP (SI)

MISS(missread0, cpu_reads, cpu_read, 0)
MISS(missread1, cpu_reads, cpu_read, 1)
MISS(missread2, cpu_reads, cpu_read, 2)
MISS(missread3, cpu_reads, cpu_read, 3)
MISS(misswrite0, cpu_writes, cpu_write, 0)
MISS(misswrite1, cpu_writes, cpu_write, 1)
MISS(misswrite2, cpu_writes, cpu_write, 2)
MISS(misswrite3, cpu_writes, cpu_write, 3)

// missatomic leaves the search for the region of an atomic operation to Go.
TEXT missatomic<>(SB), NOSPLIT|NOFRAME, $0-0
	LEAVE(const_elsewhere)
