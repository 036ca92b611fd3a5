package qemu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"margay/qemu/child"
	"margay/qemu/console"
)

// waitDelay bounds the wait for the output of a process that has ended; another process may hold it
// open.
const waitDelay = time.Second

// lastLines is how many lines of the console and of QEMU's messages an Exit quotes.
const lastLines = 20

// A VM is a started virtual machine. Its methods may be called from several goroutines.
type VM struct {
	cfg     Config
	cmd     *exec.Cmd
	console *console.Log
	stderr  *console.Log
	started time.Time
	done    chan struct{}
	exit    *Exit // written before done is closed

	mu     sync.Mutex
	killed bool // Kill was called, or the context ended
}

// Start starts a VM. It returns as soon as the process runs: a QEMU that refuses its arguments and
// a guest that crashes at once both end the VM, see Exit. The VM is killed when ctx ends; it dies
// with the calling process in any case.
func (e *Emulator) Start(ctx context.Context, cfg Config) (*VM, error) {
	vm, err := e.start(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("qemu: start VM %q: %w", cfg.Name, err)
	}
	return vm, nil
}

func (e *Emulator) start(ctx context.Context, cfg Config) (*VM, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	vm := &VM{cfg: cfg, started: time.Now(), done: make(chan struct{})}
	var err error
	if vm.console, err = console.New(cfg.Console); err != nil {
		return nil, err
	}
	if vm.stderr, err = console.New(cfg.Stderr); err != nil {
		return nil, errors.Join(err, vm.console.Close())
	}
	vm.cmd = exec.CommandContext(ctx, e.path, e.args(&cfg)...)
	vm.cmd.Cancel = vm.Kill
	vm.cmd.WaitDelay = waitDelay
	vm.cmd.Stdout = vm.console
	vm.cmd.Stderr = vm.stderr
	// A process group of its own shields the guest from the terminal's interrupt: the caller
	// decides.
	vm.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(vm.cmd); err != nil {
		return nil, errors.Join(err, vm.console.Close(), vm.stderr.Close())
	}
	go vm.wait()
	return vm, nil
}

func (vm *VM) wait() {
	vm.cmd.Wait() // what it returns is in ProcessState, or of the pipes, which end with the process
	vm.console.Close()
	vm.stderr.Close()
	status := vm.cmd.ProcessState.Sys().(syscall.WaitStatus)
	exit := &Exit{
		Name:    vm.cfg.Name,
		Status:  status.ExitStatus(),
		After:   time.Since(vm.started),
		Console: vm.console.Tail(lastLines),
		Panic:   panicOf(vm.console.Tail(console.KeepLines)),
		Stderr:  vm.stderr.Tail(lastLines),
	}
	if status.Signaled() {
		exit.Signal = status.Signal()
	}
	vm.mu.Lock()
	exit.Killed = vm.killed && exit.Signal == syscall.SIGKILL
	vm.mu.Unlock()
	vm.exit = exit
	close(vm.done)
}

// Name returns the VM's name.
func (vm *VM) Name() string { return vm.cfg.Name }

// PID returns QEMU's process id, valid until Done.
func (vm *VM) PID() int { return vm.cmd.Process.Pid }

// Done is closed when the process has ended and its output is logged.
func (vm *VM) Done() <-chan struct{} { return vm.done }

// Exit returns how the VM ended, nil as long as it has not. Done is closed before.
func (vm *VM) Exit() *Exit {
	select {
	case <-vm.done:
		return vm.exit
	default:
		return nil
	}
}

// Kill ends the process at once, even if paused. It does not wait: Done is closed when the process
// has ended. Killing a VM that has ended is not an error.
func (vm *VM) Kill() error {
	vm.mu.Lock()
	vm.killed = true
	vm.mu.Unlock()
	if err := vm.cmd.Process.Kill(); !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Pause stops the VM, its clock and its network link until Continue.
func (vm *VM) Pause() error { return vm.signal(syscall.SIGSTOP) }

// Continue resumes a paused VM.
func (vm *VM) Continue() error { return vm.signal(syscall.SIGCONT) }

func (vm *VM) signal(s syscall.Signal) error {
	if err := vm.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("qemu: VM %q: %v: %w", vm.cfg.Name, s, err)
	}
	return nil
}

// Console returns the guest's output. It stays readable after Done.
func (vm *VM) Console() *console.Log { return vm.console }

// An Exit describes how a VM ended. It is an error for callers that did not expect the end.
type Exit struct {
	Name    string         // of the VM
	Status  int            // exit status; -1 if a signal ended it
	Signal  syscall.Signal // that ended it; 0 if none
	Killed  bool           // by Kill or the context of Start
	After   time.Duration  // since the start
	Console []string       // the guest's last lines
	Panic   string         // the line of its Linux that reports a panic; empty: none
	Stderr  []string       // QEMU's last messages
}

// PoweredOff reports whether the guest ended the VM properly, by powering off or restarting.
func (x *Exit) PoweredOff() bool { return x.Status == 0 }

// panicOf returns the first line of a console that reports a Linux panic. A stack trace and more
// lines follow it.
func panicOf(lines []string) string {
	if i := slices.IndexFunc(lines, func(line string) bool { return strings.Contains(line, "Kernel panic") }); i >= 0 {
		return lines[i]
	}
	return ""
}

// Error describes the end in one line: QEMU's messages, else Linux's panic, else the last line of
// the console.
func (x *Exit) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "qemu: VM %q ended after %v", x.Name, x.After.Round(time.Millisecond))
	switch {
	case x.Killed:
		b.WriteString(": it was ended on request")
	case x.Signal != 0:
		fmt.Fprintf(&b, ": QEMU was killed by signal %d (%v)", x.Signal, x.Signal)
	case x.Status != 0:
		fmt.Fprintf(&b, ": QEMU exited with status %d", x.Status)
	default:
		b.WriteString(": the guest powered off or restarted")
	}
	if len(x.Stderr) > 0 && !x.Killed {
		fmt.Fprintf(&b, ": %s", strings.Join(x.Stderr, "; "))
	} else if x.Panic != "" {
		fmt.Fprintf(&b, "; its console: %q", x.Panic)
	} else if n := len(x.Console); n > 0 {
		fmt.Fprintf(&b, "; last line of its console: %q", x.Console[n-1])
	}
	return b.String()
}
