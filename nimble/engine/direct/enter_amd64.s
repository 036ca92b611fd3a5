#include "textflag.h"

// func handlers() *[handlerCount]uintptr
TEXT ·handlers(SB), NOSPLIT, $0-8
	LEAQ ·table(SB), AX
	MOVQ AX, ret+0(FP)
	RET
