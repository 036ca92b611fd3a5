// Package reap collects ended children for a process that is init of a PID namespace and so
// inherits every orphan in it.
package reap

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// All calls ended for each process that this one must reap, with the resource usage of that process
// and its reaped children, for as long as this process lives. It must be the only waiter in this
// process: os/exec also waits and cannot be used with it. A traced child that stops has not ended.
// A caller that starts processes holds a lock of its own around the start and in ended, so that
// ended knows the pid.
func All(ended func(pid int, status unix.WaitStatus, used *unix.Rusage)) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	for {
		for {
			var status unix.WaitStatus
			var used unix.Rusage
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &used)
			if err == unix.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if status.Stopped() {
				continue
			}
			ended(pid, status, &used)
		}
		<-children
	}
}
