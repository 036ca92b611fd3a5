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

// Kind says what a process does.
type Kind string

// The kinds.
const (
	Spin        Kind = "spin"    // computes for ever
	SpinThreads Kind = "threads" // computes for ever on two threads
	Wait        Kind = "wait"    // waits for Poke, computes for a millisecond, answers
)

// kindEnv has the test binary be such a process.
const kindEnv = "MARGAY_SCHEDTEST_KIND"

// Main must be called at the beginning of TestMain, because the processes of a test run the test's
// binary.
func Main() {
	kind := Kind(os.Getenv(kindEnv))
	if kind == "" {
		return
	}
	runtime.LockOSThread()
	if kind == SpinThreads {
		second := make(chan bool)
		go func() {
			runtime.LockOSThread()
			second <- true
			spin(forever)
		}()
		<-second
	}
	fmt.Print("r")
	if kind == Wait {
		wait()
	} else {
		spin(forever)
	}
	os.Exit(0)
}

const forever = 1 << 62

// spun keeps the compiler from leaving out what spin does.
var spun atomic.Uint64

// spin computes for so many nanoseconds of processor time.
func spin(d int64) {
	for {
		x := uint64(d)
		for range 10_000 {
			x = x*6364136223846793005 + 1
		}
		spun.Store(x)
		if d == forever {
			continue
		}
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil || ts.Nano() > d {
			return
		}
	}
}

func wait() {
	var b [1]byte
	for {
		if n, err := unix.Read(0, b[:]); n != 1 || err != nil {
			return
		}
		var ts unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts); err != nil {
			return
		}
		spin(ts.Nano() + int64(time.Millisecond))
		if _, err := unix.Write(1, b[:]); err != nil {
			return
		}
	}
}

// The main thread stays with the main goroutine, so that no process is started from it: its CPUs
// count as the CPUs of the whole test.
func init() { runtime.LockOSThread() }

// Process is a process of a test.
type Process struct {
	Task     sched.Task
	cmd      *exec.Cmd
	poke     *os.File
	answers  *os.File
	messages atomic.Uint32
	ran      time.Duration // at the last reading
	end      sync.Once
	t        testing.TB
}

// Start starts a process for a CPU. It ends with the test. It begins on another CPU and moves when
// it is ready: beside real-time tasks Linux would leave it a twentieth of the CPU.
func Start(t testing.TB, kind Kind, cpu id.CPU) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command("/proc/self/exe")}
	p.cmd.Env = append(os.Environ(), kindEnv+"="+string(kind), "GOMAXPROCS=2", "GODEBUG=asyncpreemptoff=1")
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

// Kill ends the process.
func (p *Process) Kill() {
	p.end.Do(func() {
		if err := unix.Kill(p.Task.PID, unix.SIGKILL); err != nil {
			p.t.Error(err)
		}
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
