package schedtest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/sched"
	"margay/kernel/usage"
)

// Kind says what a process does, as testsuite/programs/worker has it.
type Kind string

// The kinds.
const (
	Spin        Kind = "spin"    // computes for ever
	SpinThreads Kind = "threads" // computes for ever on two threads
	SpinFour    Kind = "four"    // computes for ever on four threads
	Wait        Kind = "wait"    // waits for Poke, computes for a millisecond, answers
	Leave       Kind = "leave"   // leaves sched_ext as soon as it is in it, and computes for ever
	Breed       Kind = "breed"   // makes a thread from time to time
	Blink       Kind = "blink"   // computes and waits in turns
)

// threads returns how many threads of a process compute from Begin on.
func (k Kind) threads() int {
	switch k {
	case Wait:
		return 0
	case SpinThreads:
		return 2
	case SpinFour:
		return 4
	}
	return 1
}

// worker is the program of the processes, in a guest.
const worker = "/tests/worker"

// The main thread stays with the main goroutine, so that no process is started from it: its CPUs
// count as the CPUs of the whole test.
func init() { runtime.LockOSThread() }

// Process is a process of a test.
type Process struct {
	Task     sched.Task
	kind     Kind
	cmd      *exec.Cmd
	poke     *os.File
	answers  *os.File
	messages atomic.Uint32
	ran      time.Duration // at the last reading
	kill     sync.Once
	end      sync.Once
	t        testing.TB
}

// Start starts a process for a CPU, which does nothing before Begin. It ends with the test. It
// starts on another CPU and moves when it is ready: beside real-time tasks Linux would leave it a
// twentieth of the CPU.
func Start(t testing.TB, kind Kind, cpu id.CPU) *Process {
	t.Helper()
	p := &Process{t: t, kind: kind, cmd: exec.Command(worker)}
	p.cmd.Env = []string{"KIND=" + string(kind), fmt.Sprint("GOMAXPROCS=", max(2, kind.threads())), "GODEBUG=asyncpreemptoff=1"}
	p.cmd.Stderr = os.Stderr
	in, out := pipe(t), pipe(t)
	p.cmd.Stdin, p.poke = in[0], in[1]
	p.answers, p.cmd.Stdout = out[0], out[1]
	pidfd := -1
	p.cmd.SysProcAttr = &unix.SysProcAttr{Setsid: true, Pdeathsig: unix.SIGKILL, PidFD: &pidfd}
	started := make(chan error)
	go func() {
		// The thread stays until the process has ended: it is the parent.
		runtime.LockOSThread()
		var set unix.CPUSet
		err := unix.SchedGetaffinity(0, &set)
		if set.Clear(int(cpu)); err == nil && set.Count() > 0 {
			err = unix.SchedSetaffinity(0, &set)
		}
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // it is killed
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	in[0].Close()
	out[1].Close()
	p.Task = sched.Task{CPU: cpu, PID: p.cmd.Process.Pid, Process: os.NewFile(uintptr(pidfd), "process"), Waiting: p.messages.Load}
	t.Cleanup(func() {
		p.Kill()
		p.poke.Close()
		p.answers.Close()
		p.Task.Process.Close()
	})
	if !p.Answered(patience) {
		t.Fatal("the process does not start")
	}
	p.move(cpu)
	return p
}

// Begin makes a process that computes do so, and returns when it does or could. Processes of one
// core are all started before the first begins: an emulated CPU that computes while another one
// starts a process takes one more processor of the host.
func (p *Process) Begin() {
	p.t.Helper()
	for range p.kind.threads() {
		p.Poke()
	}
	if p.kind.threads() == 0 {
		return
	}
	for deadline := time.Now().Add(patience); !p.runnable(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatalf("process %d does not begin", p.Task.PID)
		}
	}
}

// move moves all threads of the process to a CPU.
func (p *Process) move(cpu id.CPU) {
	p.t.Helper()
	var want unix.CPUSet
	want.Set(int(cpu))
	for moved := true; moved; { // again, because a thread may make one before it is moved
		moved = false
		for _, thread := range sched.Threads(p.Task.PID) {
			var set unix.CPUSet
			err := unix.SchedGetaffinity(thread.ID, &set)
			if err == nil && set != want {
				moved = true
				err = unix.SchedSetaffinity(thread.ID, &want)
			}
			if err != nil && err != unix.ESRCH { // the thread has ended
				p.t.Fatal(err)
			}
		}
	}
}

func pipe(t testing.TB) [2]*os.File {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return [2]*os.File{r, w}
}

// KillAll ends processes at the same time: one that is to end while others compute may have to wait
// for a CPU, and these take one more processor of the host.
func KillAll(all []*Process) {
	for _, p := range all {
		p.signal()
	}
	for _, p := range all {
		p.Kill()
	}
}

// signal begins to end the process.
func (p *Process) signal() {
	p.kill.Do(func() {
		if err := unix.Kill(p.Task.PID, unix.SIGKILL); err != nil {
			p.t.Error(err)
		}
	})
}

// Kill ends the process.
func (p *Process) Kill() {
	p.signal()
	p.end.Do(func() {
		if err := p.ended(patience); err != nil {
			p.t.Errorf("process %d does not end when it is killed: %v\n%s", p.Task.PID, err, busy())
		}
	})
}

// ended waits until the process has ended.
func (p *Process) ended(d time.Duration) error {
	for deadline := time.Now().Add(d); ; {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("it runs after %v", d)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.Task.Process.Fd()), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n == 1 {
			return nil
		}
		if err != nil && err != unix.EINTR {
			return err
		}
	}
}

// busy describes what keeps Linux busy: threads that do not sleep, with the CPU that they are on,
// where they are in the kernel, and which interrupts come in a second.
func busy() string {
	var text strings.Builder
	stats, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*/stat")
	for _, file := range stats {
		stat, _ := os.ReadFile(file)
		_, rest, _ := bytes.Cut(stat, []byte(") "))
		if len(rest) == 0 || rest[0] == 'S' || rest[0] == 'I' {
			continue
		}
		stack, err := os.ReadFile(filepath.Join(filepath.Dir(file), "stack"))
		fmt.Fprintf(&text, "%s%s%v\n", stat, stack, err)
	}
	for range 2 {
		interrupts, _ := os.ReadFile("/proc/interrupts")
		fmt.Fprintf(&text, "%s\n", interrupts)
		time.Sleep(time.Second)
	}
	return text.String()
}

// Poke has a waiting process go on.
func (p *Process) Poke() {
	if _, err := p.poke.Write([]byte{1}); err != nil {
		p.t.Error(err)
	}
}

// Answered waits for what a waiting process says.
func (p *Process) Answered(d time.Duration) bool {
	var b [1]byte
	if err := p.answers.SetReadDeadline(time.Now().Add(d)); err != nil {
		p.t.Fatal(err)
	}
	n, err := p.answers.Read(b[:])
	return n == 1 && err == nil
}

// Ran returns how much processor time the process has had, as far as that is known: when it has
// ended it is not.
func (p *Process) Ran() time.Duration {
	if cpu, err := usage.CPU(p.Task.PID); err == nil {
		p.ran = cpu
	}
	return p.ran
}

// runnable reports whether a thread of the process computes or waits for a CPU.
func (p *Process) runnable() bool {
	for _, thread := range sched.Threads(p.Task.PID) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/stat", thread.Process, thread.ID))
		if _, rest, _ := bytes.Cut(stat, []byte(") ")); err != nil || rest[0] == 'R' {
			return true
		}
	}
	return false
}

// Group puts a process into a control group of its own, in a machine that has no others.
func Group(t testing.TB, p *Process) {
	p.Task.Group = filepath.Join("/sys/fs/cgroup", fmt.Sprint("sched-", p.Task.PID))
	if err := os.Mkdir(p.Task.Group, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.Kill()
		for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
			if err := os.Remove(p.Task.Group); err == nil || time.Now().After(deadline) {
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	})
	if err := os.WriteFile(filepath.Join(p.Task.Group, "cgroup.procs"), []byte(fmt.Sprint(p.Task.PID)), 0); err != nil {
		t.Fatal(err)
	}
}
