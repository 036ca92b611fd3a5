//go:build guest

package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
)

// root is where control groups are in a guest.
const root = "/sys/fs/cgroup"

// The test binary is also what runs in the groups.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "sleep":
			fmt.Println("up")
			time.Sleep(time.Hour)
		case "eat":
			eat()
		case "fork":
			fork()
		}
	}
	os.Exit(m.Run())
}

// eat allocates memory until none is left.
func eat() {
	fmt.Println("up")
	for {
		hold = append(hold, make([]byte, 1<<20))
		last := hold[len(hold)-1]
		for i := 0; i < len(last); i += 4096 {
			last[i] = 1
		}
	}
}

var hold [][]byte

// fork starts processes until it may not.
func fork() {
	for n := 0; ; n++ {
		cmd := exec.Command("/proc/self/exe", "sleep")
		if err := cmd.Start(); err != nil {
			fmt.Printf("%d started: %v\n", n, err)
			time.Sleep(time.Hour)
		}
	}
}

// tree takes the control groups of the guest that the tests run in.
func tree(t *testing.T) *Tree {
	t.Helper()
	g, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func create(t *testing.T, g *Tree, l Limits) *Job {
	t.Helper()
	j, err := g.Create("job-1", l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Remove(2 * time.Minute); err != nil {
			t.Error(err)
		}
	})
	return j
}

// start runs the test binary in a leaf of a job and waits for its first line.
func start(t *testing.T, leaf func() (*os.File, error), args ...string) (cmd *exec.Cmd, line string) {
	t.Helper()
	group, err := leaf()
	if err != nil {
		t.Fatal(err)
	}
	defer group.Close()
	cmd = exec.Command("/proc/self/exe", args...)
	cmd.Env = []string{"GOMAXPROCS=1"}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(group.Fd())}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	buf := make([]byte, 100)
	n, err := out.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, string(buf[:n])
}

// killed waits until a process has been ended by SIGKILL.
func killed(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	timer := time.AfterFunc(2*time.Minute, func() {
		t.Errorf("process %d still runs after 2 minutes", cmd.Process.Pid)
		cmd.Process.Kill()
	})
	defer timer.Stop()
	cmd.Wait()
	if s := cmd.ProcessState.Sys().(syscall.WaitStatus); s.Signal() != unix.SIGKILL {
		t.Errorf("process %d: %v", cmd.Process.Pid, cmd.ProcessState)
	}
}

func read(t *testing.T, parts ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func TestOpen(t *testing.T) {
	tree(t)
	tree(t) // a node kernel that is started again finds its own groups
	if got := read(t, "/proc/self/cgroup"); got != "0::/system" {
		t.Errorf("the caller is in %q", got)
	}
	for _, c := range controllers {
		if on := read(t, root, "cgroup.subtree_control"); !strings.Contains(on, c) {
			t.Errorf("controllers %q, want %s, too", on, c)
		}
	}
}

func TestOpenMovesOthers(t *testing.T) {
	g := tree(t)
	cmd, _ := start(t, create(t, g, Limits{}).Init, "sleep")
	if _, err := Open(root, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if got := read(t, fmt.Sprintf("/proc/%d/cgroup", cmd.Process.Pid)); got != "0::/system" {
		t.Errorf("the other process is in %q", got)
	}
	if _, err := Open(root, 1<<30); !errors.Is(err, ErrUnavailable) {
		t.Errorf("with a process that does not exist: %v", err)
	}
}

func TestLimits(t *testing.T) {
	j := create(t, tree(t), Limits{Memory: 64 << 20, Pids: 30, Cores: []id.CPU{0, 1}})
	for file, want := range map[string]string{
		"memory.max": "67108864", "ranks/pids.max": "30", "ranks/cpuset.cpus": "0-1", "ranks/memory.oom.group": "1",
		// What the init writes to the RAM disk counts, what it needs to work does not.
		"ranks/memory.max": "max", "pids.max": "max", "memory.oom.group": "0", "init/memory.oom.group": "0",
	} {
		if got := read(t, j.path, file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
}

func TestNoLimits(t *testing.T) {
	j := create(t, tree(t), Limits{})
	for file, want := range map[string]string{"memory.max": "max", "ranks/pids.max": "max", "ranks/cpuset.cpus": ""} {
		if got := read(t, j.path, file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
}

// A group that is cleared has no limits, and can get another job's. As long as a rank runs, it is
// not cleared.
func TestClear(t *testing.T) {
	j := create(t, tree(t), Limits{Memory: 64 << 20, Pids: 30, Cores: []id.CPU{0}, Ranks: []id.Rank{3, 4}})
	rank := func() (*os.File, error) { return os.OpenFile(j.Rank(3), os.O_RDONLY, 0) }
	cmd, _ := start(t, rank, "sleep")
	if err := j.Clear(); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a group with a rank: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed(t, cmd)
	if err := j.Clear(); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{"memory.max": "max", "ranks/pids.max": "max", "ranks/cpuset.cpus": ""} {
		if got := read(t, j.path, file); got != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
	if err := j.Limit(Limits{Memory: 32 << 20, Pids: 20, Cores: []id.CPU{1}, Ranks: []id.Rank{3}}); err != nil {
		t.Fatal(err)
	}
	if got := read(t, j.path, "memory.max"); got != "33554432" {
		t.Errorf("memory.max is %q", got)
	}
}

func TestCreateRefuses(t *testing.T) {
	g := tree(t)
	for name, l := range map[string]Limits{
		"core that is not there": {Cores: []id.CPU{4000}},
		"negative core":          {Cores: []id.CPU{-1}},
		"negative memory":        {Memory: -1},
		"negative pids":          {Pids: -1},
		"more than Linux takes":  {Pids: 1 << 40},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := g.Create("job-9", l); err == nil {
				t.Errorf("%+v was taken", l)
			}
			if _, err := os.Stat(g.Job("job-9").path); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("a group is left: %v", err)
			}
		})
	}
}

// What an earlier node kernel has left of a job of the same number is ended.
func TestCreateAnew(t *testing.T) {
	g := tree(t)
	cmd, _ := start(t, create(t, g, Limits{Pids: 10}).Ranks, "sleep")
	j := create(t, g, Limits{Pids: 20})
	killed(t, cmd)
	if got := read(t, j.path, "ranks", "pids.max"); got != "20" {
		t.Errorf("pids.max is %s", got)
	}
}

func TestKill(t *testing.T) {
	j := create(t, tree(t), Limits{})
	inInit, _ := start(t, j.Init, "sleep")
	inRanks, _ := start(t, j.Ranks, "sleep")
	if got := read(t, fmt.Sprintf("/proc/%d/cgroup", inRanks.Process.Pid)); got != "0::/job-1/ranks" {
		t.Errorf("the process is in %q", got)
	}
	if err := j.Kill(); err != nil {
		t.Fatal(err)
	}
	killed(t, inInit)
	killed(t, inRanks)
}

func TestRemove(t *testing.T) {
	g := tree(t)
	j := create(t, g, Limits{})
	cmd, _ := start(t, j.Ranks, "sleep")
	if err := g.Job("job-1").Remove(2 * time.Minute); err != nil {
		t.Fatal(err)
	}
	killed(t, cmd)
	if _, err := os.Stat(j.path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the group is still there: %v", err)
	}
	if err := errors.Join(j.Kill(), j.Remove(0)); err != nil {
		t.Errorf("of a group that is gone: %v", err)
	}
	if _, err := j.Ranks(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a leaf that is gone was opened: %v", err)
	}
}

// The ranks of a job that wants too much die together. Its init and the other jobs do not notice.
func TestOutOfMemory(t *testing.T) {
	g := tree(t)
	j := create(t, g, Limits{Memory: 48 << 20})
	other, err := g.Create("job-2", Limits{Memory: 48 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := other.Remove(2 * time.Minute); err != nil {
			t.Error(err)
		}
	})
	inInit, _ := start(t, j.Init, "sleep")
	elsewhere, _ := start(t, other.Ranks, "sleep")
	beside, _ := start(t, j.Ranks, "sleep")
	if n := j.OOMKills(); n != 0 {
		t.Errorf("%d were killed before anything was eaten", n)
	}
	eater, _ := start(t, j.Ranks, "eat")
	killed(t, eater)
	killed(t, beside)
	if j.OOMKills() == 0 {
		t.Error("no reason was given")
	}
	if other.OOMKills() != 0 || g.Job("job-3").OOMKills() != 0 {
		t.Error("a job that did not want too much is said to have done so")
	}
	for _, cmd := range []*exec.Cmd{inInit, elsewhere} {
		if err := cmd.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("process %d: %v", cmd.Process.Pid, err)
		}
	}
}

// An application at its limit of processes cannot start another, but its init can.
func TestTooManyProcesses(t *testing.T) {
	const limit = 30
	j := create(t, tree(t), Limits{Pids: limit})
	_, line := start(t, j.Ranks, "fork")
	var n int
	if _, err := fmt.Sscanf(line, "%d started:", &n); err != nil || n == 0 || n >= limit || !strings.Contains(line, unix.EAGAIN.Error()) {
		t.Errorf("it says %q, %v", line, err)
	}
	start(t, j.Init, "sleep")
}

func TestPinned(t *testing.T) {
	last := runtime.NumCPU() // a node's application cores are isolated, so that is core 0 alone
	j := create(t, tree(t), Limits{Cores: []id.CPU{id.CPU(last)}})
	cmd, _ := start(t, j.Ranks, "sleep")
	status := read(t, fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	if !strings.Contains(status, fmt.Sprintf("Cpus_allowed_list:\t%d\n", last)) {
		t.Errorf("status:\n%s", status)
	}
}
