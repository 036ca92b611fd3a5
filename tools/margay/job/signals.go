package job

import (
	"os"

	"golang.org/x/sys/unix"
)

// signalRoom is how many signals may wait to be passed on: several of each kind.
const signalRoom = 256

// kept are the signals that margay run does not pass on, and why.
var kept = map[unix.Signal]string{
	unix.SIGKILL: "no process can catch it; it ends margay run, and the job with it",
	unix.SIGSTOP: "no process can catch it; it stops margay run alone",
	unix.SIGCHLD: "Linux sends it to margay run for children of its own",
	unix.SIGPIPE: "a closed pipe of the output ends margay run, and the job with it",
	unix.SIGURG:  "the runtime of Go interrupts threads with it",
	unix.SIGPROF: "the runtime of Go measures with it",
	32:           "threads of the C library use it",
	33:           "threads of the C library use it",
	34:           "the runtime of Go leaves it to the C library",
}

// lastSignal is the number of the last real-time signal.
const lastSignal = 64

// forwarded returns the signals that margay run passes on to the ranks: all but those that are
// kept. SIGTSTP, SIGTTIN and SIGTTOU also stop the job and margay run.
func forwarded() (signals []os.Signal) {
	for sig := unix.Signal(1); sig <= lastSignal; sig++ {
		if _, keeps := kept[sig]; !keeps {
			signals = append(signals, sig)
		}
	}
	return signals
}
