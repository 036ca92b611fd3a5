package sched

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper starts a process that waits, and has one more that does.
func sleeper(t *testing.T) (task Task, child int) {
	t.Helper()
	pidfd := -1
	cmd := exec.Command("sh", "-c", "sleep 100 & echo $!; wait")
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true, PidFD: &pidfd}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	task = Task{PID: cmd.Process.Pid, Process: os.NewFile(uintptr(pidfd), "process")}
	t.Cleanup(func() {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait() // it was killed
		task.Process.Close()
	})
	if _, err := fmt.Fscan(out, &child); err != nil {
		t.Fatal(err)
	}
	return task, child
}

func TestThreads(t *testing.T) {
	task, child := sleeper(t)
	all := Threads(os.Getpid())
	for _, want := range []Thread{{os.Getpid(), os.Getpid()}, {task.PID, task.PID}, {child, child}} {
		if n := len(slices.DeleteFunc(slices.Clone(all), func(x Thread) bool { return x != want })); n != 1 {
			t.Errorf("%v is there %d times in %v", want, n, all)
		}
	}
	if all := Threads(task.PID); !slices.Equal(all, []Thread{{task.PID, task.PID}, {child, child}}) {
		t.Errorf("process %d with child %d has %v", task.PID, child, all)
	}
	if all := Threads(1 << 30); all != nil {
		t.Errorf("a process that is not there has %v", all)
	}
}

// stopped reports whether signals have stopped a process.
func stopped(t *testing.T, pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Contains(text, []byte(") T "))
}

func TestStopBySignals(t *testing.T) {
	task, child := sleeper(t)
	for _, on := range []bool{true, false, false} {
		if err := task.Stop(on, task.PID, child, 1<<30); err != nil { // a pid without a process
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); stopped(t, task.PID) != on || stopped(t, child) != on; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("stopped: %v and %v, want %v", stopped(t, task.PID), stopped(t, child), on)
			}
		}
	}
	// A process has ended, and its number is another's.
	if err := unix.Kill(task.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(task.Process.Fd()), Events: unix.POLLIN}}, 10_000); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	task.PID = child
	err := task.Stop(true, child)
	time.Sleep(20 * time.Millisecond)
	if err != nil || stopped(t, child) {
		t.Errorf("it was stopped: %v, %v", stopped(t, child), err)
	}
}

func TestStopByFreezer(t *testing.T) {
	task, _ := sleeper(t)
	task.Group = t.TempDir()
	for _, on := range []bool{true, false} {
		if err := task.Stop(on, task.PID); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(task.Group, "cgroup.freeze"))
		if want := map[bool]string{true: "1", false: "0"}[on]; err != nil || string(text) != want || stopped(t, task.PID) {
			t.Errorf("the group was told %q, not %q, %v", text, want, err)
		}
	}
	task.Group = filepath.Join(task.Group, "gone")
	if err := task.Stop(true, task.PID); err != nil {
		t.Error(err)
	}
}
