package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// waiter is a program that calls a function over and over until SIGUSR1, says once that it goes on
// when a debugger has asked it, and ends with a status of its own.
const waiter = `
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile sig_atomic_t end;
static volatile int ticks, asked;
static void note(int sig) { end = sig; }
__attribute__((noinline)) void tick(void)
{
	ticks++; // line 12
	if (asked) {
		asked = 0;
		if (!fork())
			_exit(0);
		wait(NULL);
		printf("goes on\n");
		fflush(stdout);
	}
	usleep(20000);
}
int main(void)
{
	signal(SIGUSR1, note);
	printf("waits %s\n", getenv("MARGAY_RANK"));
	fflush(stdout);
	while (!end)
		tick();
	return 7;
}
`

// compileWaiter returns the path of waiter with its symbols.
func compileWaiter(t *testing.T) string {
	t.Helper()
	return compile(t, "waiter", waiter)
}

// compile returns the path of a program in C with its symbols.
func compile(t *testing.T, name, text string) string {
	t.Helper()
	source, program := filepath.Join(t.TempDir(), name+".c"), filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O0", "-g", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	return program
}

// gdb debugs a rank on a virtual node with the symbols of this host. A margay debug that is killed
// while the rank runs towards a breakpoint leaves no breakpoint, no gdbserver and a rank that runs.
func TestDebugVirtual(t *testing.T) {
	m := use(t, "qemu")
	c := m.start("run", "-n", "2", "-N", "2", compileWaiter(t))
	c.awaitRanks("waits", 2)
	job := m.onlyJob()

	// The condition never holds, so the breakpoint is passed often and gdb has nothing to do.
	killed := m.start("debug", job, "1", "-nx", "-batch", "-ex", "break tick if ticks < 0", "-ex", "set var asked = 1", "-ex", "continue")
	eventually(t, "the rank behind the breakpoint", func() bool { return strings.Contains(c.stdout.String(), "goes on") },
		func() string { return fmt.Sprint(killed.stdout.String(), killed.stderr.String()) })
	if r := m.margay("debug", job, "1", "-batch"); r.code != 125 || !strings.Contains(r.stderr, "a debugger has rank 1") {
		t.Error(r)
	}
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed.wait()

	var r result
	eventually(t, "the next debugger", func() bool {
		r = m.margay("debug", job, "1", "-nx", "-batch", "-ex", "break tick", "-ex", "continue", "-ex", "bt")
		return !strings.Contains(r.stderr, "a debugger has rank 1")
	}, func() string { return fmt.Sprint(r) })
	if r.code != 0 || !strings.Contains(r.stdout, "waiter.c:12\n") || !strings.Contains(r.stdout, "waiter.c:29\n") || !strings.Contains(r.stdout, "in main () at ") {
		t.Error(r)
	}
	if r := m.margay("kill", "-s", "USR1", job); r.code != 0 {
		t.Fatal(r)
	}
	if r := c.wait(); r.code != 7 {
		t.Error(r)
	}
	if r := m.margay("debug", job, "1"); r.code != 125 || !strings.Contains(r.stderr, "there is no job") && !strings.Contains(r.stderr, "does not run") {
		t.Error(r)
	}
	m.usable()
}

// debugHeld starts a rank that is held before its first instruction, and has gdb let it go to a
// breakpoint.
func debugHeld(t *testing.T, substrate string) (m *machine, c *command, job string) {
	t.Helper()
	m = use(t, substrate)
	c = m.start("run", "--attach", compileWaiter(t))
	eventually(t, "the held job", func() bool { return strings.Contains(c.stderr.String(), " lets it go on") }, c.stderr.String)
	job = m.onlyJob()
	if r := m.margay("debug", job, "-nx", "-batch", "-ex", "break main", "-ex", "continue", "-ex", "bt"); r.code != 0 || !strings.Contains(r.stdout, "#0  main () at ") {
		t.Error(r)
	}
	return m, c, job
}

// gdb lets a rank on a hosted node that is held go to a breakpoint.
func TestDebugHeldHere(t *testing.T) {
	m, c, job := debugHeld(t, "hosted")
	m.margay("kill", job)
	c.wait()
}

// gdb lets a rank on a virtual node that is held go to a breakpoint. Its job is still held when gdb
// has ended, and the rank goes on with it.
func TestDebugHeld(t *testing.T) {
	m, c, job := debugHeld(t, "qemu")
	if r := m.margay("ps"); !strings.Contains(r.stdout, "stopped") || c.stdout.String() != "" {
		t.Errorf("%v, and the rank says %q", r, c.stdout.String())
	}
	if r := m.margay("kill", "-s", "CONT", job); r.code != 0 {
		t.Fatal(r)
	}
	c.awaitRanks("waits", 1)
	if r := m.margay("kill", "-s", "USR1", job); r.code != 0 {
		t.Fatal(r)
	}
	if r := c.wait(); r.code != 7 {
		t.Error(r)
	}
	m.usable()
}
