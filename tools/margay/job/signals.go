package job

import (
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"margay/tools/margay/command"
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

// prompt are the signals that are passed on from the beginning. Terminals and shells send them.
var prompt = []os.Signal{
	unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2, unix.SIGALRM, unix.SIGTERM, unix.SIGCONT, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU,
	unix.SIGWINCH,
}

// othersAfter is when the others are passed on at the latest. To catch them all is a tenth of the
// processor time of a job that does nothing, and such a job has ended by then.
const othersAfter = 50 * time.Millisecond

// catchForwarded catches the signals that are passed on. others must be called before ranks can be
// known to run, by their output or the number of their job: from then on none is lost.
func catchForwarded() (c *command.Catcher, others func(), stop func()) {
	c = command.NewCatcher(signalRoom)
	c.Catch(prompt...)
	others = sync.OnceFunc(func() {
		c.Catch(slices.DeleteFunc(forwarded(), func(s os.Signal) bool { return slices.Contains(prompt, s) })...)
	})
	late := time.AfterFunc(othersAfter, others)
	return c, others, func() {
		late.Stop()
		c.Stop()
	}
}

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
