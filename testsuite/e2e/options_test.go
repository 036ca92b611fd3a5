package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// threads is a program whose threads print the cores that they run on.
const threads = `
#define _GNU_SOURCE
#include <omp.h>
#include <sched.h>
#include <stdio.h>
int main(void) {
	int cpu[64] = {0}, n = 0;
	#pragma omp parallel
	{
		cpu[omp_get_thread_num()] = sched_getcpu();
		#pragma omp single
		n = omp_get_num_threads();
	}
	cpu_set_t set;
	sched_getaffinity(0, sizeof set, &set);
	printf("%d threads on", n);
	for (int i = 0; i < n; i++)
		printf(" %d", cpu[i]);
	printf("\n");
	return n != 2;
}
`

// A rank with two cores runs two OpenMP threads, and no other job gets one of the cores. Hosted
// nodes may have fewer processors than cores, so the placement of the threads is only printed.
func TestCoresEach(t *testing.T) {
	ownMachine(t, "own")
	source, program := filepath.Join(t.TempDir(), "threads.c"), filepath.Join(t.TempDir(), "threads")
	if err := os.WriteFile(source, []byte(threads), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-fopenmp", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc -fopenmp: %v\n%s", err, out)
	}
	m := up(t, "hosted", 2, 2)
	r := m.run(0, "-n", "2", "-c", "2", program)
	if got := strings.Count(r.stdout, "2 threads on "); got != 2 {
		t.Errorf("%d ranks have two threads: %v", got, r)
	}
	m.run(0, "-w", "node1", "/bin/true")
	m.awaitIdle()
	if r := m.run(125, "-n", "3", "-c", "2", program); !strings.Contains(r.stderr, "3 ranks of 2 cores each do not fit (the cores of a rank are on one node): node0 has 2 of 2 free, node1 has 2 of 2 free") {
		t.Errorf("three ranks: %v", r)
	}
	held := m.start("run", "-w", "0", "-c", "2", "--stdin", "none", probe(), "sleep")
	m.awaitJobs(1)
	if r := m.run(125, "-w", "node0", "/bin/true"); !strings.Contains(r.stderr, "job ") {
		t.Errorf("its cores: %v", r)
	}
	held.signal(syscall.SIGTERM)
	held.wait()
}

// Lists of nodes choose the nodes of a job: by number, name and range.
func TestChosenNodes(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 4, 1)
	for _, c := range []struct{ flags, want string }{
		{"-w node[0,2-3] -N 3", "node0 node2 node3"},
		{"-w node1,node3 -N 2", "node1 node3"},
		{"-w 0..2 -x node[0-1] -n 1", "node2"},
		{"--exclude 1,node2 -n 2", "node0 node3"},
		{"--nodelist node1..node2,3 -n 3", "node1 node2 node3"},
	} {
		r := m.run(0, append(strings.Fields(c.flags), "-q", "--label", "hostname")...)
		var nodes []string
		for i, line := range slices.Sorted(strings.Lines(r.stdout)) {
			nodes = append(nodes, strings.TrimSpace(strings.TrimPrefix(line, fmt.Sprintf("[%d] ", i))))
		}
		if got := strings.Join(nodes, " "); got != c.want {
			t.Errorf("%s: %q, %v", c.flags, got, r)
		}
	}
	if r := m.run(125, "-w", "0", "-x", "node[0-3]", "hostname"); !strings.Contains(r.stderr, "-w and -x leave no node") {
		t.Errorf("no node is left: %v", r)
	}
}

// awaitJobs waits until this many jobs run.
func (m *machine) awaitJobs(n int) {
	m.t.Helper()
	var last string
	eventually(m.t, fmt.Sprintf("%d jobs run", n), func() bool {
		last = m.margay("ps").stdout
		return strings.Count(last, "running") == n
	}, func() string { return last })
}

// awaitErrors waits until the standard error contains a text.
func (c *command) awaitErrors(text string) {
	c.t.Helper()
	eventually(c.t, "message "+text, func() bool { return strings.Contains(c.stderr.String(), text) }, c.stderr.String)
}

// A time limit ends a job, even one that no command waits for, and across a restart of serve.
// margay wait returns its status. A job that waits for the cores of another, which serve knows
// after a restart as well, runs when that has ended, and the next in the queue runs after it.
func TestTimeLimitAndQueue(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 1, 2)
	if r := m.run(124, "-n", "2", "--time", "1s", "--stdin", "none", probe(), "sleep"); !strings.Contains(r.stderr, "was ended at its time limit of 1s (--time)") {
		t.Errorf("the limit is not named: %v", r)
	}
	limited := strings.TrimSpace(m.run(0, "--detach", "-n", "2", "--time", "3s", probe(), "sleep").stdout)
	kill(t, m.serve())
	m.awaitUp()
	if r := m.margay("wait", limited); r.code != 124 || !strings.Contains(r.stderr, "job "+limited+" ended with status 124: job "+limited+" was ended at its time limit of 3s") {
		t.Errorf("margay wait: %v", r)
	}
	m.awaitIdle()
	job := strings.TrimSpace(m.run(0, "--detach", "-n", "2", probe(), "sleep").stdout)
	m.awaitJobs(1)
	kill(t, m.serve())
	m.awaitUp()
	waits := m.start("run", "--wait", "-n", "2", "--stdin", "none", "/bin/true")
	waits.awaitErrors("waiting for cores: 2 ranks need 2 application cores, but 0 of 2 are free; job " + job + " has the others")
	behind := m.start("run", "--wait=5m", "--stdin", "none", "/bin/true")
	behind.awaitErrors("waiting for cores, behind 1 job that came first")
	impatient := m.start("run", "--wait", "--stdin", "none", "/bin/true")
	impatient.awaitErrors("waiting for cores, behind 2 jobs that came first")
	if r := m.margay("ps"); strings.Count(r.stdout, "  waiting  ") != 3 || !strings.Contains(r.stdout, "\n/bin/true waits for cores, behind 2 jobs that came first\n") {
		t.Errorf("ps of a queue: %v", r)
	}
	impatient.signal(syscall.SIGINT)
	if r := impatient.wait(); r.code != 130 && r.code != -1 {
		t.Errorf("one that leaves the queue: %v", r)
	}
	if r := m.margay("kill", "--force", job); r.code != 0 {
		t.Error(r)
	}
	for _, c := range []*command{waits, behind} {
		if r := c.wait(); r.code != 0 {
			t.Errorf("a job that waited: %v", r)
		}
	}
}

// Ranks write to files of their own, in another working directory and with another environment.
func TestOutputFiles(t *testing.T) {
	ownMachine(t, "own")
	m := up(t, "hosted", 1, 2)
	dir := t.TempDir()
	m.run(0, "-n", "2", "-q", "-o", filepath.Join(dir, "out.%r"), "-e", filepath.Join(dir, "err"), "--chdir", "/tmp", "--export", "NONE", "--env", "WORD=of mouth",
		"/bin/sh", "-c", `echo "$MARGAY_RANK in $PWD: $WORD, $HOME"; echo error >&2`)
	for rank := range 2 {
		text, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("out.%d", rank)))
		if want := fmt.Sprintf("%d in /tmp: of mouth, \n", rank); err != nil || string(text) != want {
			t.Errorf("rank %d: %q, %v", rank, text, err)
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "err")); err != nil || string(text) != "error\nerror\n" {
		t.Errorf("standard error: %q, %v", text, err)
	}
	if r := m.run(125, "-o", "/dev/full", "/bin/sh", "-c", "echo a"); !strings.Contains(r.stderr, "/dev/full: no space left on device") {
		t.Errorf("a full disk: %v", r)
	}
	for _, c := range []struct{ stream, args string }{{"1", "version"}, {"1", "run echo a"}, {"2", "run ls /none"}} {
		lost := start(t, func(cmd *exec.Cmd) {
			cmd.Args = []string{"bash", "-c", `"$0" -m "$1" ` + c.args + " " + c.stream + ">&-", cmd.Path, m.name}
			cmd.Path = "/bin/bash"
		}).wait()
		if want := "bad file descriptor\n"; lost.code != 125 || c.stream == "1" && !strings.HasSuffix(lost.stderr, want) {
			t.Errorf("%s with a closed stream %s: %v, want status 125 and %q", c.args, c.stream, lost, want)
		}
	}
}
