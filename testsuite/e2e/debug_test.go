package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// stuck is a program whose rank 2 waits elsewhere than the others. After SIGUSR1 a rank ends by a
// fault.
const stuck = `
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t fault;
static int *volatile nowhere;
static void note(int sig) { fault = sig; }
__attribute__((noinline)) void receive(void)
{
	while (!fault)
		usleep(1000);
	*nowhere = 1; // line 13
}
__attribute__((noinline)) void compute(void)
{
	receive();
	puts("");
}
int main(void)
{
	signal(SIGUSR1, note);
	printf("waits %s\n", getenv("MARGAY_RANK"));
	fflush(stdout);
	if (atoi(getenv("MARGAY_RANK")) == 2)
		receive();
	else
		compute();
	return 0;
}
`

func compileStuck(t *testing.T) string {
	source, program := filepath.Join(t.TempDir(), "stuck.c"), filepath.Join(t.TempDir(), "stuck")
	if err := os.WriteFile(source, []byte(stuck), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O2", "-g", "-fno-optimize-sibling-calls", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// traced returns, for each group of first threads, its ranks and the functions of the program.
func (m *machine) traced(args ...string) map[string]string {
	m.t.Helper()
	r := m.margay(append([]string{"backtrace", "--json"}, args...)...)
	var answer struct {
		Groups []struct {
			Ranks  []int
			Main   bool
			Frames []struct{ Function, File string }
		}
		Unread []any
	}
	if err := json.Unmarshal([]byte(r.stdout), &answer); err != nil || r.code != 0 {
		m.t.Fatalf("margay backtrace: %v: %v", err, r)
	}
	groups := make(map[string]string)
	if len(answer.Unread) > 0 {
		groups["unread"] = fmt.Sprint(answer.Unread) // on a busy host a rank may not stop in time
	}
	for _, g := range answer.Groups {
		var names []string
		for _, f := range g.Frames {
			if strings.HasSuffix(f.File, "stuck.c") {
				names = append(names, f.Function)
			}
		}
		groups[strings.Join(names, " ")] = fmt.Sprint(groups[strings.Join(names, " ")], g.Ranks)
	}
	return groups
}

// The stacks of ranks on two nodes are merged, also of a stopped job, which stays stopped. gdb
// reads the variables of a rank. A rank that ends by a fault is reported with its line.
func TestBacktrace(t *testing.T) {
	m := use(t, "hosted")
	program := compileStuck(t)
	c := m.start("run", "-n", "4", "-N", "2", program)
	c.awaitRanks("waits", 4)
	job := m.onlyJob()
	compute, receive := "receive compute main", "receive main"
	where := func() map[string]string { return m.traced(job) }
	expect := func(state string) {
		t.Helper()
		// A rank that has just been continued or stopped may be between two calls.
		eventually(t, "merged stacks", func() bool {
			got := where()
			return len(got) == 2 && strings.Count(got[compute], "0")+strings.Count(got[compute], "1")+strings.Count(got[compute], "3") == 3 &&
				strings.Contains(got[receive], "2")
		}, func() string { return fmt.Sprint(state, ": ", where()) })
	}
	expect("running")
	if r := m.margay("backtrace", job, "2"); r.code != 0 || !strings.Contains(r.stdout, "receive() in stuck.c:") || strings.Contains(r.stdout, "compute") {
		t.Error(r)
	}
	if r := m.margay("debug", job, "2", "-nx", "-batch", "-ex", "bt", "-ex", "print fault"); !strings.Contains(r.stdout, "receive () at ") || !strings.Contains(r.stdout, "\n$1 = 0\n") ||
		strings.Contains(r.stdout, "compute") {
		t.Error(r)
	}
	if r := m.margay("debug", job, "4"); r.code != 125 || !strings.Contains(r.stderr, "has no rank 4") {
		t.Error(r)
	}
	if r := m.margay("kill", "-s", "STOP", job); r.code != 0 {
		t.Fatal(r)
	}
	below := m.processes()
	ranks := slices.DeleteFunc(pids(t, program), func(pid int) bool { return !slices.Contains(below, pid) })
	stopped := func() bool { all, _ := halted(ranks); return all && len(ranks) == 4 }
	eventually(t, "stopped ranks", stopped, func() string { return fmt.Sprint(ranks) })
	expect("stopped")
	eventually(t, "ranks that are stopped still", stopped, func() string { return fmt.Sprint(ranks) })
	for _, k := range [][2]string{{"9", "has no rank 9"}, {"x", "not a list of ranks"}} {
		if r := m.margay("backtrace", job, k[0]); r.code == 0 || !strings.Contains(r.stderr, k[1]) {
			t.Errorf("rank %s: %v", k[0], r)
		}
	}
	for _, args := range [][]string{{"kill", "-s", "CONT", job}, {"kill", "-s", "USR1", "--rank", "2", job}} {
		if r := m.margay(args...); r.code != 0 {
			t.Fatal(r)
		}
	}
	r := c.wait()
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	want := "was killed by SIGSEGV"
	if strings.TrimSpace(string(pattern)) == "core" { // else the host may keep it from the node
		want += " (address 0x0) at receive() in stuck.c:13"
	}
	if r.code != 139 || !strings.Contains(r.stderr, want) || !strings.Contains(r.stderr, "rank 2 on node") {
		t.Error(r)
	}
	if r := m.margay("backtrace", job); r.code == 0 || !strings.Contains(r.stderr, "does not run") {
		t.Error(r)
	}
	m.usable()
}

// Ranks that are held have not begun, and do after Enter at the terminal, or when another continues
// them. All other input is theirs.
func TestAttach(t *testing.T) {
	m := use(t, "hosted")
	const input = "for the ranks\n"
	held := func(stdin *os.File, way string) *command {
		t.Helper()
		c := start(t, func(c *exec.Cmd) { c.Stdin = stdin }, "-m", m.name, "run", "--attach", "-n", "2", "--with", "/bin/cat", "/bin/sh", "-c", "echo begun $MARGAY_RANK; exec cat")
		eventually(t, "the processes", func() bool { return strings.Contains(c.stderr.String(), way) }, c.stderr.String)
		text := c.stderr.String()
		if strings.Count(text, "gdb -p ") != 2 || !strings.Contains(m.margay("ps").stdout, "stopped") || c.stdout.String() != "" {
			t.Errorf("the held job: %s", text)
		}
		return c
	}
	resume := func() {
		t.Helper()
		if r := m.margay("kill", "-s", "CONT", m.onlyJob()); r.code != 0 {
			t.Error(r)
		}
	}
	write := func(w *os.File, text string) {
		t.Helper()
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	ends := func(c *command) {
		t.Helper()
		if r := c.wait(); r.code != 0 || strings.Count(r.stdout, input) != 1 || strings.Count(r.stdout, "begun") != 2 { // in any order
			t.Error(r)
		}
	}
	master, slave := terminal(t)
	for _, goOn := range []func(){func() { write(master, "\n") }, resume} {
		c := held(slave, "Enter lets it go on")
		goOn()
		c.awaitRanks("begun", 2)
		write(master, input+"\x04")
		ends(c)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	c := held(r, " lets it go on")
	write(w, input)
	w.Close()
	resume()
	ends(c)
	if r := m.run(125, "--attach", "--detach", "/bin/true"); !strings.Contains(r.stderr, "--attach") {
		t.Error(r)
	}
	m.usable()
}

// A debugger of margay run finds the ranks by MPIR while they are held, and reads the types of the
// table as well. The ranks go on with margay run. gdb does not wait for its end: gdb 13 sometimes
// fails or hangs at the end of a program with threads.
func TestDebuggerOfRun(t *testing.T) {
	m := use(t, "hosted")
	// A rank that has not had its core yet stops when it gets it.
	const shell = `for try in $(seq 600); do grep -q '^State:.T' /proc/%d/status && break; sleep 0.1; done; ` +
		`tr '\\0' '\\n' </proc/%d/environ | grep ^MARGAY_RANK=; grep ^State: /proc/%d/status`
	look := func(rank int) []string {
		pid := fmt.Sprintf(", MPIR_proctable[%d].pid", rank)
		return []string{"-ex", fmt.Sprintf("print/s MPIR_proctable[%d]", rank), "-ex", `eval "shell ` + shell + `"` + strings.Repeat(pid, 3)}
	}
	args := slices.Concat([]string{
		"-nx", "-batch", "-ex", "break MPIR_Breakpoint", "-ex", "starti", "-ex", "set var MPIR_being_debugged = 1", "-ex", "continue",
		"-ex", "print MPIR_debug_state", "-ex", "print MPIR_proctable_size", "-ex", "print &MPIR_i_am_starter",
	}, look(0), look(1), []string{"-ex", "detach", "--args", filepath.Join(bin, "margay"), "-m", m.name, "run", "-n", "2", "-N", "2", "/bin/sh", "-c", "echo ran"})
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	gdb := exec.CommandContext(ctx, "gdb", args...)
	gdb.WaitDelay = time.Minute // margay run goes on without it, and has its pipe as well
	out, err := gdb.CombinedOutput()
	if err != nil {
		t.Fatalf("gdb: %v\n%s", err, out)
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	text := string(out)
	for _, want := range []string{"$1 = 1\n", "$2 = 2\n", `"/bin/sh"`, fmt.Sprintf("%q", host), "MARGAY_RANK=0\nState:\tT", "MARGAY_RANK=1\nState:\tT"} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q", want)
		}
	}
	if strings.Count(text, "ran\n") != 2 || t.Failed() {
		t.Errorf("gdb and the ranks print:\n%s", out)
	}
	m.usable()
}
