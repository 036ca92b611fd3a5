// Package reap collects ended children for a process that is init of a PID namespace and so
// inherits every orphan in it.
package reap

import (
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// All calls ended for each process that this one must reap, with the resource usage of that process
// and its reaped children, for as long as this process lives. It must be the only waiter in this
// process: os/exec also waits and cannot be used with it. A traced child that stops has not ended.
// A caller that starts processes holds a lock of its own around the start and in ended, so that
// ended knows the pid.
func All(ended func(pid int, status unix.WaitStatus, used *unix.Rusage)) { New(ended).Follow(nil) }

// Reaper is All for a process that may know before Linux's signal that children have ended. It is
// safe for concurrent use.
type Reaper struct {
	mu    sync.Mutex // held while ended is called
	ended func(pid int, status unix.WaitStatus, used *unix.Rusage)
}

// New returns a Reaper that calls ended as All does, one call at a time.
func New(ended func(pid int, status unix.WaitStatus, used *unix.Rusage)) *Reaper {
	return &Reaper{ended: ended}
}

// Follow collects children as they end, until over is closed. Go's runtime has two threads more for
// the signal.
func (r *Reaper) Follow(over <-chan struct{}) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, unix.SIGCHLD)
	defer signal.Stop(children)
	for {
		r.Collect()
		select {
		case <-children:
		case <-over:
			return
		}
	}
}

// Collect collects the children that have ended by now.
func (r *Reaper) Collect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		var status unix.WaitStatus
		var used unix.Rusage
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, &used)
		if err == unix.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		if !status.Stopped() {
			r.ended(pid, status, &used)
		}
	}
}
