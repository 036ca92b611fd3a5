#include "textflag.h"

// Go's runtime moves no goroutine to another thread while it is in assembly: it would run into the
// breakpoint again there.

TEXT ·breakpoint(SB), NOSPLIT, $0-0
	CALL MPIR_Breakpoint(SB)
	RET

TEXT MPIR_Breakpoint(SB), NOSPLIT, $0-0
	RET
