package machine

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/node"
)

// serveNice is the nice value of serve, and of its session where Linux schedules each session as a
// group (autogroup).
const serveNice = -10

// goesFirst reports whether serve goes before nodes and jobs. Its session is the one of the holder,
// in which virtual machines are as well. Without a holder it is the one of a shell, which would
// keep the nice value after serve.
func (s *Spec) goesFirst(in Inherited) bool {
	return s.Substrate == node.Hosted && in.Lifeline != nil
}

// goFirst gives serve the processor before nodes and jobs on its host, if the host lets it. Each
// hosted node and each job on it is a session. When hundreds of them have work, the share of one of
// them is too small for serve, for whose answers all of them wait: nodes would take it for dead. A
// thread that starts during the call may keep the usual nice value.
func goFirst() {
	_ = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(serveNice)), 0)
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, serveNice) // Linux has a nice value for each thread
		}
	}
}
