package reap_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/reap"
)

// A process that reaps everything cannot use os/exec, and so cannot be the one that tests. The test
// binary is started again as the reaper, and by the reaper as each of its children.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "reaper":
			reaper()
		case "collector":
			collector()
		case "exit":
			status, _ := strconv.Atoi(os.Args[2])
			os.Exit(status)
		case "kill":
			_ = unix.Kill(os.Getpid(), unix.SIGKILL)
			time.Sleep(time.Hour)
		case "parent":
			parent()
		}
	}
	os.Exit(m.Run())
}

// reaper starts a child for each line of its standard input and says how each of its processes
// ends.
func reaper() {
	// Orphans come to it as they do to init.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	go reap.All(func(pid int, status unix.WaitStatus, _ *unix.Rusage) {
		if status.Signaled() {
			fmt.Printf("%d killed %d\n", pid, status.Signal())
		} else {
			fmt.Printf("%d exited %d\n", pid, status.ExitStatus())
		}
	})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if lines.Text() == "traced" {
			traced()
			continue
		}
		if _, err := spawn(strings.Fields(lines.Text())...); err != nil {
			panic(err)
		}
	}
	time.Sleep(time.Hour) // until it is killed
}

// collector collects a child that has ended without the signal, and then nothing.
func collector() {
	r := reap.New(func(pid int, status unix.WaitStatus, _ *unix.Rusage) {
		fmt.Printf("%d exited %d\n", pid, status.ExitStatus())
	})
	pid, err := spawn("exit", "5")
	if err != nil {
		panic(err)
	}
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
	}
	r.Collect()
	r.Collect()
	fmt.Printf("%d collected\n", pid)
	os.Exit(0)
}

// traced starts a child that is traced, and kills it when its stop has been waited for.
func traced() {
	runtime.LockOSThread() // which is the tracer
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"reap", "exit", "0"}, &syscall.ProcAttr{
		Env: os.Environ(), Sys: &syscall.SysProcAttr{Ptrace: true},
	})
	if err != nil {
		panic(err)
	}
	for state := ""; state != "t"; time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return // taken for ended
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		state, _, _ = strings.Cut(after, " ")
	}
	for {
		var stop unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &stop, unix.WSTOPPED|unix.WNOHANG|unix.WNOWAIT, nil)
		if err == nil && stop.Signo == 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	_ = unix.Kill(pid, unix.SIGKILL)
}

func spawn(args ...string) (int, error) {
	return syscall.ForkExec("/proc/self/exe", append([]string{"reap"}, args...), &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2},
	})
}

// parent leaves an orphan that ends after it, with status 7.
func parent() {
	if len(os.Args) > 2 {
		for os.Getppid() == atoi(os.Args[2]) {
			time.Sleep(time.Millisecond)
		}
		os.Exit(7)
	}
	pid, err := spawn("parent", strconv.Itoa(os.Getpid()))
	if err != nil {
		panic(err)
	}
	fmt.Printf("%d orphan\n", pid)
	os.Exit(6)
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}

// run starts children under a reaper and returns the first n lines about them, each without its
// pid, and the pids.
func run(t *testing.T, children []string, n int) (lines []string, pids []int) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "reaper")
	cmd.Stdin = strings.NewReader(strings.Join(children, "\n") + "\n")
	cmd.Stderr = os.Stderr
	cmd.Env = append(os.Environ(), "GORACE=halt_on_error=1 atexit_sleep_ms=0") // the race detector does not hold up ends
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(2*time.Minute, func() { cmd.Process.Kill() })
	defer timer.Stop()
	defer cmd.Wait()
	defer cmd.Process.Kill()
	text := bufio.NewScanner(out)
	for len(lines) < n && text.Scan() {
		pid, what, _ := strings.Cut(text.Text(), " ")
		lines, pids = append(lines, what), append(pids, atoi(pid))
	}
	if len(lines) < n {
		t.Fatalf("%d of %d lines: %q", len(lines), n, lines)
	}
	for i, pid := range pids {
		if err := unix.Kill(pid, 0); err != unix.ESRCH {
			t.Errorf("process %d %s and is still there: %v", pid, lines[i], err)
		}
	}
	return lines, pids
}

func TestStatus(t *testing.T) {
	for child, want := range map[string]string{"exit 0": "exited 0", "exit 3": "exited 3", "kill": "killed 9"} {
		t.Run(child, func(t *testing.T) {
			if lines, _ := run(t, []string{child}, 1); lines[0] != want {
				t.Errorf("%q", lines)
			}
		})
	}
}

// A traced child that stops has not ended.
func TestStop(t *testing.T) {
	if lines, _ := run(t, []string{"traced"}, 1); lines[0] != "killed 9" {
		t.Errorf("%q", lines)
	}
}

// Children that have ended can be collected without the signal, once each.
func TestCollect(t *testing.T) {
	out, err := exec.Command("/proc/self/exe", "collector").Output()
	if err != nil {
		t.Fatal(err)
	}
	var pid, status, again int
	if n, err := fmt.Sscanf(string(out), "%d exited %d\n%d collected\n", &pid, &status, &again); n != 3 || status != 5 || pid != again {
		t.Errorf("%q, %v", out, err)
	}
}

func TestOrphan(t *testing.T) {
	lines, pids := run(t, []string{"parent"}, 3)
	if strings.Join(lines, ", ") != "orphan, exited 6, exited 7" || pids[0] != pids[2] || pids[0] == pids[1] {
		t.Errorf("%q of %v", lines, pids)
	}
}

// Signals that come together are one signal, and yet no child is missed.
func TestBurst(t *testing.T) {
	const n = 40
	children := make([]string, n)
	for i := range children {
		children[i] = fmt.Sprint("exit ", i)
	}
	lines, _ := run(t, children, n)
	seen := make(map[string]bool)
	for _, line := range lines {
		seen[line] = true
	}
	for i := range n {
		if !seen[fmt.Sprint("exited ", i)] {
			t.Errorf("child %d was not reaped", i)
		}
	}
}
