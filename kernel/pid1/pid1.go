// Package pid1 is the first process of a node. It prepares the node (mounts, modules, network), and
// does the work that must continue when all else has failed: it reaps, restarts the node kernel,
// and keeps the descriptors that the next node kernel needs to adopt the jobs of the last.
//
// It talks to the node kernel over one link per start (package link). The node kernel leaves things
// with it (package keep), asks for them back with Resync, and may ask for the node to be turned
// off.
//
// Locks: process.mu guards which node kernel is running, output.mu where lines go, and
// output.entering is held while lines go into Linux's log. None is held while another one is taken.
package pid1

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/printable"
	"margay/internal/revival"
	"margay/internal/slack"
	"margay/kernel/abi/node"
	"margay/kernel/descriptor"
	"margay/kernel/keep"
	"margay/kernel/link"
	"margay/kernel/reap"
)

// Kinds of a node kernel's messages, besides the ones of package keep.
const (
	Resync   = "resync"   // -> everything kept (package keep)
	PowerOff = "poweroff" // end the node; not answered
)

// LinkFD is the descriptor of the node kernel's end of the link.
const LinkFD = 3

// The first pause before the node kernel is started again, and the longest one.
const (
	firstPause = 50 * time.Millisecond
	lastPause  = 5 * time.Second
)

// Node is how PID 1 gets its node ready, which differs between a machine of its own and a hosted
// node.
type Node interface {
	// SetUp mounts and configures, and returns the node's configuration. What it lacks but can live
	// without it logs.
	SetUp(log func(format string, args ...any)) (node.Config, error)
	// Log opens the log of the node's own Linux, if lines for the console belong there; otherwise
	// it returns nil. It may be able to only after a part of SetUp.
	Log() *os.File
	// Off ends the node. It does not return.
	Off(log func(format string, args ...any))
}

// lastWords bounds the time for reading the link of an ended node kernel. The link ends sooner
// unless another process has the other end.
const lastWords = 5 * time.Second

// memoryLimit bounds the node kernel's Go heap.
const memoryLimit = "GOMEMLIMIT=96MiB"

type process struct {
	*output
	program []string // command that becomes the node kernel
	kept    keep.Store
	off     chan struct{} // closed when the node kernel asks for the end

	mu      sync.Mutex
	kernel  int // pid of the node kernel, 0 while none runs
	ended   chan unix.WaitStatus
	offOnce sync.Once
}

// Main is the life of PID 1. program is the command that becomes the node kernel; it is started
// with the link at LinkFD. Main returns only when the node cannot be set up.
func Main(node Node, program []string) error {
	if err := descriptor.CloseOnExec(3); err != nil {
		return err
	}
	// Nothing may end this process, so nothing here may be chosen to be killed for want of memory.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0)
	out := &output{node: node}
	config, err := node.SetUp(out.logf)
	if err != nil {
		if out.open() != nil { // the caller writes to the console
			out.logf("%v", err)
			out.drain()
		}
		return err
	}
	out.logf("%s of machine %s is up, starting the node kernel", config.Hostname(), config.Machine)
	p := &process{output: out, program: program, ended: make(chan unix.WaitStatus, 1), off: make(chan struct{})}
	go reap.All(p.reaped)
	p.supervise()
	out.logf("the node goes off")
	out.drain()
	node.Off(out.logf)
	return nil
}

// supervise runs node kernels, one after the other, until one asks for the node to be turned off.
func (p *process) supervise() {
	pauses := revival.Pauses{First: firstPause, Last: lastPause}
	for {
		started := time.Now()
		status, err := p.runKernel()
		select {
		case <-p.off:
			return
		default:
		}
		pause := pauses.After(time.Since(started))
		switch {
		case err != nil:
			p.logf("cannot start the node kernel: %v; next try in %v", err, pause)
		case status.Signaled():
			p.logf("the node kernel was killed by %s; starting it again in %v", printable.Signal(status.Signal()), pause)
		default:
			p.logf("the node kernel ended with status %d; starting it again in %v", status.ExitStatus(), pause)
		}
		time.Sleep(pause)
	}
}

// runKernel starts a node kernel and serves it until it ends.
func (p *process) runKernel() (unix.WaitStatus, error) {
	near, far, err := link.Pair()
	if err != nil {
		return 0, err
	}
	defer near.Close()
	lines := p.kernels()
	p.mu.Lock()
	err = slack.Start(slack.Daemon, func() (err error) {
		p.kernel, err = syscall.ForkExec(p.program[0], p.program, &syscall.ProcAttr{
			Env:   []string{memoryLimit, "GOGC=100", "PATH=/"},
			Files: []uintptr{0, lines, lines, far.Fd()},
			Sys:   &syscall.SysProcAttr{Setsid: true},
		})
		return err
	})
	if err != nil {
		p.kernel = 0
	}
	p.mu.Unlock()
	runtime.KeepAlive(far)
	far.Close()
	if err != nil {
		return 0, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		p.serve(near)
	}()
	status := <-p.ended
	// What it said last is still on the link, and may be all that is known of a job.
	near.SetDeadline(time.Now().Add(lastWords))
	<-served
	return status, nil
}

// serve obeys one node kernel.
func (p *process) serve(conn *link.Conn) {
	for {
		m, err := conn.Recv()
		if err != nil {
			if err != io.EOF {
				p.logf("link to the node kernel: %v", err)
			}
			return
		}
		if mine, err := p.kept.Handle(m); mine {
			if err != nil {
				p.logf("link to the node kernel: %v", err)
			}
			continue
		}
		m.CloseFiles()
		switch m.Kind {
		case Resync:
			if err := p.kept.Replay(conn); err != nil {
				p.logf("link to the node kernel: %v", err)
			}
		case PowerOff:
			p.offOnce.Do(func() { close(p.off) })
			p.killKernel()
		default:
			p.logf("the node kernel asks for %q, which is unknown", m.Kind)
		}
	}
}

func (p *process) killKernel() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kernel != 0 {
		_ = unix.Kill(p.kernel, unix.SIGKILL)
	}
}

func (p *process) reaped(pid int, status unix.WaitStatus, _ *unix.Rusage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if pid == p.kernel {
		p.kernel = 0
		p.ended <- status
	}
}

// logf writes a line to the console.
func logf(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "margay: "+format+"\n", args...)
}
