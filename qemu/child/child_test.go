package child

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// roleEnv makes the test binary play one of the roles instead of running tests.
const roleEnv = "MARGAY_CHILD_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); role {
	case "":
		os.Exit(m.Run())
	case "sleeper":
		fmt.Println(os.Getpid())
		time.Sleep(time.Hour)
	case "parent", "parent of a namespace":
		parent(role)
	}
}

// parent starts a sleeper that reports to this process's own standard output, and lets threads come
// and go.
func parent(role string) {
	cmd := sleeper()
	if role == "parent of a namespace" {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID}
	}
	cmd.Stdout = os.Stdout
	if err := Start(cmd); err != nil {
		fmt.Println("start:", err)
		os.Exit(1)
	}
	fmt.Println(cmd.Process.Pid)
	churn()
	time.Sleep(time.Hour)
}

// churn makes the runtime end threads: a goroutine that returns while locked takes its thread with
// it.
func churn() {
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			runtime.LockOSThread()
			time.Sleep(time.Millisecond)
		})
	}
	wg.Wait()
}

func self(role string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd
}

func sleeper() *exec.Cmd { return self("sleeper") }

func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); alive(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d outlived its parent", pid)
		}
	}
}

// startParent starts a process in that role; it returns the process, its child's pid and the pid
// the child sees.
func startParent(t *testing.T, role string) (cmd *exec.Cmd, pid, own int) {
	t.Helper()
	cmd = self(role)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	// Two lines in either order: of the parent and of the child.
	var pids []int
	for lines := bufio.NewScanner(out); len(pids) < 2 && lines.Scan(); {
		n, err := strconv.Atoi(lines.Text())
		if errors.Is(err, strconv.ErrSyntax) && strings.Contains(lines.Text(), "operation not permitted") {
			t.Skip("needs user namespaces for this user: ", lines.Text())
		} else if err != nil {
			t.Fatal(lines.Text())
		}
		pids = append(pids, n)
	}
	if len(pids) < 2 {
		t.Fatal("the parent ended early")
	}
	return cmd, max(pids[0], pids[1]), min(pids[0], pids[1])
}

func TestChildDiesWithItsKilledParent(t *testing.T) {
	cmd, pid, _ := startParent(t, "parent")
	time.Sleep(50 * time.Millisecond) // the threads of churn have ended
	if !alive(pid) {
		t.Fatal("the child ended with a thread of its parent")
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	waitGone(t, pid)
}

func TestNamespaceDiesWithItsKilledParent(t *testing.T) {
	cmd, pid, own := startParent(t, "parent of a namespace")
	if own != 1 {
		t.Fatalf("the child is process %d of its namespace, want 1", own)
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	waitGone(t, pid)
}

func TestChildOutlivesTheGoroutineThatStartedIt(t *testing.T) {
	cmd := sleeper()
	end := make(chan error)
	go func() {
		runtime.LockOSThread() // this thread ends with the goroutine
		end <- Start(cmd)
	}()
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	churn()
	time.Sleep(100 * time.Millisecond)
	if !alive(cmd.Process.Pid) {
		t.Error("the child is gone")
	}
}

func TestStartKeepsTheCallersAttributes(t *testing.T) {
	shared := &syscall.SysProcAttr{Setpgid: true}
	cmd := sleeper()
	cmd.SysProcAttr = shared
	if err := Start(cmd); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if pgid, err := syscall.Getpgid(cmd.Process.Pid); err != nil || pgid != cmd.Process.Pid {
		t.Errorf("process group %d, %v; want its own", pgid, err)
	}
	if shared.Pdeathsig != 0 {
		t.Error("the caller's attributes were changed")
	}
}

func TestStartReportsErrors(t *testing.T) {
	if err := Start(exec.Command("/nonexistent/program")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			cmd := exec.Command("/proc/self/exe", "-test.list=none")
			if err := Start(cmd); err != nil {
				t.Error(err)
			} else if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
