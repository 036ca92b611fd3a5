// Package child starts processes that cannot outlive their parent, not even one that is killed with
// SIGKILL.
//
// Linux sends a process its PR_SET_PDEATHSIG signal when the *thread* that created it ends, and the
// Go runtime ends threads at any time. So every start goes through one goroutine that keeps its
// thread while the process lives.
//
// The kernel limits the guarantee: it does not extend to the child's own children, and a child
// loses it by executing a set-user-id program or changing its user. A child that is the first
// process of a PID namespace takes its whole namespace with it. Such a child survives if the parent
// dies between creating it and the child's request for the signal, because it cannot see its
// parent.
package child

import (
	"os/exec"
	"runtime"
	"sync"
	"syscall"
)

// Start is cmd.Start for a process that the kernel kills as soon as the calling process ends. It
// replaces only Pdeathsig in cmd.SysProcAttr. The caller must call Wait as usual. Start is safe for
// concurrent use; processes are created one at a time.
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
