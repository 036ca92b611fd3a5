package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// waiter is a program that calls a function over and over until SIGUSR1, and ends with a status of
// its own.
const waiter = `
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static volatile sig_atomic_t end;
static volatile int ticks;
static void note(int sig) { end = sig; }
__attribute__((noinline)) void tick(void)
{
	ticks++; // line 11
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

// gdb debugs a rank on a virtual node with the symbols of this host. A margay debug that is killed
// while the rank runs towards a breakpoint leaves no breakpoint, no gdbserver and a rank that runs.
func TestDebugVirtual(t *testing.T) {
	m := use(t, "qemu")
	source, program := filepath.Join(t.TempDir(), "waiter.c"), filepath.Join(t.TempDir(), "waiter")
	if err := os.WriteFile(source, []byte(waiter), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-O0", "-g", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	c := m.start("run", "-n", "2", "-N", "2", program)
	c.awaitRanks("waits", 2)
	job := m.onlyJob()

	// The condition never holds, so the breakpoint is passed often and gdb has nothing to do.
	killed := m.start("debug", job, "1", "-nx", "-batch", "-ex", "break tick if ticks < 0", "-ex", `shell echo "goes on"`, "-ex", "continue")
	eventually(t, "the breakpoint", func() bool { return strings.Contains(killed.stdout.String(), "goes on") },
		func() string { return fmt.Sprint(killed.stdout.String(), killed.stderr.String()) })
	if r := m.margay("debug", job, "1", "-batch"); r.code != 125 || !strings.Contains(r.stderr, "a debugger has rank 1") {
		t.Error(r)
	}
	time.Sleep(time.Second) // gdb continues the rank
	if err := killed.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	killed.wait()

	var r result
	eventually(t, "the next debugger", func() bool {
		r = m.margay("debug", job, "1", "-nx", "-batch", "-ex", "break tick", "-ex", "continue", "-ex", "bt")
		return !strings.Contains(r.stderr, "a debugger has rank 1")
	}, func() string { return fmt.Sprint(r) })
	if r.code != 0 || !strings.Contains(r.stdout, "waiter.c:11\n") || !strings.Contains(r.stdout, "waiter.c:20\n") || !strings.Contains(r.stdout, "in main () at ") {
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
