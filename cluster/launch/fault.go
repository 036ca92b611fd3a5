package launch

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/cluster/symbol"
)

// about lists the signals that are about an address.
var about = []unix.Signal{unix.SIGSEGV, unix.SIGBUS, unix.SIGILL}

// divisions are the values of si_code of SIGFPE that need words (sigaction(2)).
var divisions = map[int32]string{1: " (integer division by zero)", 3: " (division by zero)"}

// describeFault says what a signal that has ended a rank was about, and where the rank was: the
// innermost place whose source is known, which is that of a caller if a library without debug
// information noticed the fault.
func describeFault(exit *control.ExitStatus) string {
	f := exit.GetFault()
	if f == nil {
		return ""
	}
	text := ""
	sig := unix.Signal(exit.Signal)
	switch {
	case f.Code <= 0 || f.Code == siKernel: // sent by a process, or without an address
	case slices.Contains(about, sig):
		text = fmt.Sprintf(" (address %#x)", f.Address)
	case sig == unix.SIGFPE:
		text = divisions[f.Code]
	}
	table := symbol.NewTable()
	defer table.Close()
	frames := table.Stack(f.Files, f.Stack)
	if len(frames) == 0 {
		return text
	}
	at := max(0, slices.IndexFunc(frames, func(f symbol.Frame) bool { return f.Known() }))
	return text + " at " + frames[at].String()
}

// siKernel is the si_code of a fault that the processor gives no address of.
const siKernel = 0x80
