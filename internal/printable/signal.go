package printable

import (
	"fmt"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Real-time signals, as the C library and shells number them: the first two are its own.
const (
	firstRealTime = 34
	lastRealTime  = 64
)

// Signal returns the name of a signal, such as SIGTERM or SIGRTMIN+2.
func Signal(sig syscall.Signal) string {
	if name := unix.SignalName(sig); name != "" {
		return name
	}
	switch {
	case sig == firstRealTime:
		return "SIGRTMIN"
	case sig > firstRealTime && sig <= lastRealTime:
		return fmt.Sprintf("SIGRTMIN+%d", sig-firstRealTime)
	}
	return fmt.Sprintf("signal %d", int(sig))
}

// ParseSignal returns the signal of a name, which begins with SIG; 0: there is none.
func ParseSignal(name string) syscall.Signal {
	for prefix, from := range map[string]int{"SIGRTMIN": firstRealTime, "SIGRTMAX": lastRealTime} {
		rest, ok := strings.CutPrefix(name, prefix)
		if !ok {
			continue
		}
		distance, err := strconv.Atoi(rest)
		if rest != "" && (err != nil || rest[0] != '+' && rest[0] != '-') {
			return 0
		}
		if sig := from + distance; sig >= firstRealTime && sig <= lastRealTime {
			return syscall.Signal(sig)
		}
		return 0
	}
	return unix.SignalNum(name)
}
