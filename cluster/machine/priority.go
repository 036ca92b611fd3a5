package machine

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// serveNice is the nice value of serve, and of its session where Linux schedules each session as a
// group (autogroup).
const serveNice = -10

// goFirst gives serve the processor before nodes and jobs on its host, if the host lets it. Each
// hosted node and each job on it is a session. When hundreds of them have work, the share of one of
// them is too small for serve, for whose answers all of them wait: nodes would take it for dead. It
// must be called before other goroutines run.
func goFirst() {
	_ = os.WriteFile("/proc/self/autogroup", []byte(strconv.Itoa(serveNice)), 0)
	threads, _ := os.ReadDir("/proc/self/task")
	for _, t := range threads {
		if id, err := strconv.Atoi(t.Name()); err == nil {
			_ = unix.Setpriority(unix.PRIO_PROCESS, id, serveNice) // Linux has a nice value for each thread
		}
	}
}
