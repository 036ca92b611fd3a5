// Macros and common code of the handlers in handlers_arm64.s. R0 is the cpu, R1
// the cell, R2 the fuel. A handler loads dst into R4, its offset into R3, the
// other operand into R6 and an address into R8.

#include "go_asm.h"
#include "textflag.h"

// HANDLER begins a handler and puts its address into the table.
#define HANDLER(place, name) DATA ·table+place(SB)/8, $name<>(SB); TEXT name<>(SB), NOSPLIT|NOFRAME, $0-0

// NEXT continues with the next cell, AGAIN with the same one.
#define NEXT ADD $cell__size, R1; AGAIN
#define AGAIN MOVD cell_handler(R1), R7; JMP (R7)

// ENTER pays for the block that begins with the cell at R1 and continues there.
#define ENTER MOVWU cell_cost(R1), R7; SUBS R7, R2, R2; BPL 2(PC); JMP refill<>(SB); AGAIN

// FALL enters the block that begins with the next cell, JUMP the target's block.
#define FALL ADD $cell__size, R1; ENTER
#define JUMP MOVW cell_extra(R1), R7; ADD R7, R1; ENTER

// LEAVE stores the state and returns to Go.
#define LEAVE(why) MOVD $why, R7; JMP leave<>(SB)

// Operands.
#define DST MOVHU cell_dst(R1), R3; MOVD (R0)(R3), R4
#define SRC MOVHU cell_src(R1), R6; MOVD (R0)(R6), R6
#define CONSTANT MOVD cell_operand(R1), R6
#define PUT MOVD R4, (R0)(R3); NEXT

// ADDRESS adds the offset of an access to its base.
#define ADDRESS(base) MOVD cell_operand(R1), R8; ADD base, R8

// CHECK compares an access of 1<<n bytes with a window, MISSED ends a handler
// with a CHECK.
#define CHECK(window, n) \
	MOVD window(R0), R9; \
	SUB R9, R8, R9; \
	MOVD (window+const_offLimit+8*n)(R0), R10; \
	CMP R10, R9; \
	BHS miss
#define MISSED(handler, n) miss: MOVD $(const_offLimit+8*n), R11; JMP handler<>(SB)

// ALIGNED requires the address to be a multiple of 1<<n, MISALIGNED ends a
// handler with an ALIGNED.
#define ALIGNED(n) TST $((1<<n)-1), R8; BNE misaligned
#define MISALIGNED misaligned: LEAVE(const_misaligned)

// NOTE records an unchecked access.
#define NOTE MOVD R1, cpu_at(R0); MOVD R8, cpu_addr(R0); MOVD R2, cpu_paid(R0)

// leave stores the state that Go may read or change. R7 is the reason.
TEXT leave<>(SB), NOSPLIT|NOFRAME, $0-0
	MOVD R7, cpu_reason(R0)
	MOVD R1, cpu_pc(R0)
	MOVD R8, cpu_addr(R0)
	MOVD R2, cpu_left(R0)
	RET

// refill refunds a block that costs more than the slice has left, and leaves.
TEXT refill<>(SB), NOSPLIT|NOFRAME, $0-0
	ADD R7, R2
	LEAVE(const_refill)

TEXT missread<>(SB), NOSPLIT|NOFRAME, $0-0
	ADD $cpu_read, R0, R9
	MOVD cpu_reads(R0), R10
	MOVD (cpu_reads+8)(R0), R12
	JMP search<>(SB)

TEXT misswrite<>(SB), NOSPLIT|NOFRAME, $0-0
	ADD $cpu_write, R0, R9
	MOVD cpu_writes(R0), R10
	MOVD (cpu_writes+8)(R0), R12
	JMP search<>(SB)

// missatomic leaves the search to Go.
TEXT missatomic<>(SB), NOSPLIT|NOFRAME, $0-0
	LEAVE(const_elsewhere)

// search searches the windows from R10 to R12 for the region of an access that is
// outside the window at R9. It copies the region's window there and executes the
// cell again. R11 is the offset of the limit in a window.
TEXT search<>(SB), NOSPLIT|NOFRAME, $0-0
again:
	MOVD (R10), R13
	SUB R13, R8, R13
	MOVD (R10)(R11), R14
	CMP R14, R13
	BLO found
	ADD $const_windowSize, R10
	CMP R12, R10
	BNE again
	LEAVE(const_access)
found:
	MOVD (R10), R13
	MOVD R13, (R9)
	MOVD 8(R10), R13
	MOVD R13, 8(R9)
	MOVD 16(R10), R13
	MOVD R13, 16(R9)
	MOVD 24(R10), R13
	MOVD R13, 24(R9)
	MOVD 32(R10), R13
	MOVD R13, 32(R9)
	AGAIN
