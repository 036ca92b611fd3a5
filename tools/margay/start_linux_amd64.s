// The first instructions of margay: the linker's -E names them, see the Makefile. Descriptors 0 to 2
// that are closed become /dev/null, open for reading only, so that writing to a closed standard
// output is an error. Go's runtime would open it for writing too, and the output would be lost
// without one. open takes the lowest free number, which is the closed one.
//
// All threads get the timer slack of a daemon (package slack), in nanoseconds. The thread of Go's
// runtime that it is for starts before all code in Go.

#include "textflag.h"

#define SYS_open 2
#define SYS_fcntl 72
#define SYS_prctl 157
#define F_GETFD 1
#define EBADF 9
#define PR_SET_TIMERSLACK 29
#define SLACK 1000000

TEXT margay_start(SB), NOSPLIT|NOFRAME, $0
	MOVL $0, R12

next:
	MOVL R12, DI
	MOVL $F_GETFD, SI
	MOVL $SYS_fcntl, AX
	SYSCALL
	CMPQ AX, $-EBADF
	JNE  open
	LEAQ margay_null<>(SB), DI
	MOVL $0, SI                // O_RDONLY
	MOVL $SYS_open, AX
	SYSCALL

open:
	INCL R12
	CMPL R12, $3
	JLT  next
	MOVL $PR_SET_TIMERSLACK, DI
	MOVL $SLACK, SI
	MOVL $SYS_prctl, AX
	SYSCALL
	JMP  _rt0_amd64_linux(SB)

DATA margay_null<>+0(SB)/8, $"/dev/nul"
DATA margay_null<>+8(SB)/2, $"l\x00"
GLOBL margay_null<>(SB), RODATA, $10
