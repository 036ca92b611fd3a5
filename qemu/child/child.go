// Package child starts processes that cannot outlive their parent, not even one that is killed with SIGKILL.
//
// Linux sends a process the signal of PR_SET_PDEATHSIG when the *thread* that created it ends, and the Go runtime ends
// threads as it likes. So every start goes through one goroutine that keeps its thread as long as the process lives.
//
// The promise has limits of the kernel's: it does not pass on to the child's own children, and a child loses it when it
// executes a set-user-id program or changes its user. A child that is the first process of a PID namespace takes its
// whole namespace with it; it alone is missed if the parent dies in the instant between creating it and the child's
// asking for the signal, because it does not see its parent there.
package child

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Start starts cmd like cmd.Start, with the difference that the kernel kills the process as soon as the calling process
// is gone. Everything that cmd.SysProcAttr asks for stays, Cloneflags included; only its Pdeathsig is replaced. The
// rest, Wait above all, is the caller's as usual. Start is safe for concurrent use; processes are created one after
// another.
func Start(cmd *exec.Cmd) error {
	attr := syscall.SysProcAttr{}
	if cmd.SysProcAttr != nil {
		attr = *cmd.SysProcAttr
	}
	attr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr = &attr

	err := make(chan error, 1)
	starter() <- func() { err <- cmd.Start() }
	return <-err
}

// starter returns the queue of the thread that creates all children.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})
