package task_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/internal/check"
	"margay/internal/slack"
	"margay/kernel/abi/id"
	"margay/kernel/hardware"
	"margay/kernel/task"
)

// namespaces are what each job has of its own.
var namespaces = []string{"pid", "mnt", "ipc", "net", "uts"}

func TestUnprivileged(t *testing.T) {
	e := newEvents()
	err := slack.Start(slack.Daemon, func() error { // as a node kernel does
		start(t, spec(1, "status"), e)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	e.await(t, "exit", func() bool { return len(e.exits()) == 1 })
	wants := []string{
		"Uid:\t70001\t70001\t70001\t70001\n", "Gid:\t70001\t70001\t70001\t70001\n",
		"CapInh:\t0000000000000000\n", "CapPrm:\t0000000000000000\n", "CapEff:\t0000000000000000\n",
		"CapBnd:\t0000000000000000\n", "CapAmb:\t0000000000000000\n", "NoNewPrivs:\t1\n", "Umask:\t0027\n",
		"TimerSlack:\t50000 <nil>\n", // its init has more
	}
	if os.Getuid() == 0 {
		wants = append(wants, "Groups:\t \n") // an ordinary user cannot let go of groups
	}
	status := e.text(0, task.Stdout)
	for _, want := range wants {
		if !strings.Contains(status, want) {
			t.Errorf("the status lacks %q:\n%s", want, status)
		}
	}
}

// Two jobs on a node see neither it nor each other.
func TestSurroundings(t *testing.T) {
	var seen []string // namespaces of this process and of the jobs
	for _, kind := range namespaces {
		name, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		seen = append(seen, name)
	}
	dumps := "" // where Linux leaves memory of ranks that a fault ends
	if pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern"); err != nil {
		t.Fatal(err)
	} else if strings.HasPrefix(string(pattern), "/dev/dumps/") {
		dumps = "/dev/dumps "
	}
	for i := range 2 {
		s := spec(1, "surroundings")
		s.Job += id.Job(i)
		e := newEvents()
		start(t, s, e)
		e.await(t, "interfaces", func() bool { return strings.Contains(e.text(0, task.Stdout), "interfaces ") })
		lines := strings.Split(strings.TrimSpace(e.text(0, task.Stdout)), "\n")
		want := []string{
			"[/bin /dev /etc /home /proc /tmp] <nil>",
			"[/proc/1 /proc/2] <nil>",
			"[" + dumps + "/dev/fd /dev/full /dev/null /dev/ptmx /dev/pts /dev/random /dev/shm /dev/stderr /dev/stdin /dev/stdout /dev/tty /dev/urandom /dev/zero] <nil>",
			"host node0 <nil>",
			"interface lo true",
			"interfaces 1 <nil>",
		}
		if len(lines) != len(namespaces)+len(want) {
			t.Fatalf("%q", lines)
		}
		for k, line := range lines[len(namespaces):] {
			if k == 1 {
				// Its own number depends on how many threads its init has.
				if !strings.HasPrefix(line, "[/proc/1 /proc/") || strings.Count(line, "/proc/") != 2 {
					t.Errorf("processes %s", line)
				}
			} else if line != want[k] {
				t.Errorf("%q, want %q", line, want[k])
			}
		}
		for _, line := range lines[:len(namespaces)] {
			name, problem, _ := strings.Cut(line, " ")
			if problem != "<nil>" {
				t.Error(line)
			}
			for _, other := range seen {
				if name == other {
					t.Errorf("job %d shares %s", i, name)
				}
			}
			seen = append(seen, name)
		}
	}
}

func TestPinned(t *testing.T) {
	cpus := allowed(t)
	s := spec(len(cpus), "status")
	for i, cpu := range cpus {
		s.Ranks[i].Cores = []id.CPU{cpu}
	}
	e := newEvents()
	start(t, s, e)
	e.await(t, "exits", func() bool { return len(e.exits()) == len(cpus) })
	for rank, cpu := range cpus {
		if status := e.text(id.Rank(rank), task.Stdout); !strings.Contains(status, fmt.Sprintf("Cpus_allowed_list:\t%d\n", cpu)) {
			t.Errorf("rank %d should be on CPU %d alone:\n%s", rank, cpu, status)
		}
	}
}

// allowed returns the CPUs that ranks may be pinned to, two at most.
func allowed(t *testing.T) []id.CPU {
	t.Helper()
	cores, err := hardware.Own()
	if err != nil {
		t.Fatal(err)
	}
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		t.Fatal(err)
	}
	var cpus []id.CPU
	for _, c := range cores {
		// In a guest they are isolated, so that the affinity does not show them.
		if len(cpus) < 2 && (inGuest || set.IsSet(int(c.CPU))) {
			cpus = append(cpus, c.CPU)
		}
	}
	return cpus
}

func TestPinnedToNothing(t *testing.T) {
	s := spec(1, "status")
	s.Ranks[0].Cores = []id.CPU{1000}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if inGuest { // the control group refuses
		if _, err := task.New(ctx, host(t), s, newEvents()); err == nil {
			t.Error("a core that is not there was taken")
		}
		return
	}
	c := prepare(t, s, newEvents())
	err := errors.Join(provide(t, c), c.Start(ctx))
	if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "pin to cores [1000]") {
		t.Error(err)
	}
}

func TestNoSuchProgram(t *testing.T) {
	s := spec(2, "hello")
	s.Path = "/bin/other"
	c := prepare(t, s, newEvents())
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	err := errors.Join(provide(t, c), c.Start(ctx))
	var refused *task.StartError
	if !errors.As(err, &refused) || refused.Rank != 0 || !errors.Is(err, unix.ENOENT) {
		t.Errorf("%+v", err)
	}
}

// members returns the processes of the PID namespace that the init of a job has made.
func members(t *testing.T, c *task.Container) func() []int {
	t.Helper()
	namespace, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/pid", c.PID()))
	if err != nil {
		t.Fatal(err)
	}
	return func() []int {
		links, err := filepath.Glob("/proc/[0-9]*/ns/pid")
		if err != nil {
			t.Fatal(err)
		}
		var pids []int
		for _, l := range links {
			if name, err := os.Readlink(l); err == nil && name == namespace {
				var pid int
				fmt.Sscanf(l, "/proc/%d/", &pid)
				pids = append(pids, pid)
			}
		}
		return pids
	}
}

// awaitNone waits until nothing of a job is left.
func awaitNone(t *testing.T, members func() []int) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("processes that are left: %v", members())
		}
	}()
	check.AwaitFor(t, patience, "end of all processes", func() bool { return len(members()) == 0 })
}

// A process that leaves its session and outlives its rank does not outlive the job, however that
// ends.
func TestNothingIsLeft(t *testing.T) {
	for name, end := range map[string]func(*testing.T, *task.Container){
		"end": func(t *testing.T, c *task.Container) {
			if err := c.End(); err != nil {
				t.Error(err)
			}
		},
		"killed init": func(t *testing.T, c *task.Container) {
			if err := unix.Kill(c.PID(), unix.SIGKILL); err != nil {
				t.Error(err)
			}
		},
		"nobody holds the link": func(t *testing.T, c *task.Container) { c.Detach() },
		"stopped init": func(t *testing.T, c *task.Container) {
			if err := errors.Join(unix.Kill(c.PID(), unix.SIGSTOP), c.End()); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEvents()
			c := start(t, spec(1, "orphan"), e)
			e.await(t, "end of the rank", func() bool { return len(e.exits()) == 1 })
			e.await(t, "orphan", func() bool { return e.text(0, task.Stdout) == "sleeping\n" })
			left := members(t, c)
			if pids := left(); len(pids) != 2 {
				t.Fatalf("processes %v, want the init and the orphan", pids)
			}
			end(t, c)
			awaitNone(t, left)
			e.await(t, "word of the end", e.isGone)
			if err := c.End(); err != nil {
				t.Error(err)
			}
			if groups, _ := filepath.Glob(cgroups + "/job-*"); len(groups) > 0 {
				t.Errorf("control groups %v are left", groups)
			}
		})
	}
}
