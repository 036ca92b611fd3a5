package stack

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/check"
)

// nested calls through functions without frame pointers, with a signal handler in between, and ends
// in a fault if it has a second argument.
const nested = `
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
volatile int depth;
int *volatile nowhere;
__attribute__((noinline)) void innermost(int fault)
{
	volatile char room[5000];
	memset((char *)room, depth, sizeof room);
	puts("here");
	fflush(stdout);
	if (fault)
		*nowhere = room[7];
	for (;;)
		pause();
}
static int faults;
__attribute__((noinline)) void handler(int sig) { innermost(faults); depth = sig; }
__attribute__((noinline)) int deep(int n)
{
	volatile int more[n + 1];
	more[n] = n;
	if (n > 0)
		return deep(n - 1) + more[n];
	raise(SIGUSR1);
	return more[0];
}
int main(int argc, char **argv)
{
	faults = argc > 1;
	signal(SIGUSR1, handler);
	return deep(3);
}
`

// want are the functions on the stack of nested, without the C library's.
var want = []string{"innermost", "handler", "deep", "deep", "deep", "deep", "main"}

func openFile(path string) (File, error) { return os.Open(path) }

// counting writes a letter for each signal.
const counting = `
#include <signal.h>
#include <unistd.h>
static void handler(int sig) { write(1, "x", 1); }
int main(void)
{
	signal(SIGUSR1, handler);
	write(1, "here\n", 5);
	for (;;)
		pause();
}
`

func compile(t *testing.T, args ...string) string { return compileText(t, nested, args...) }

func compileText(t *testing.T, text string, args ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, program := filepath.Join(dir, "nested.c"), filepath.Join(dir, "nested")
	if err := os.WriteFile(source, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args = append(args, "-O2", "-fomit-frame-pointer", "-fno-optimize-sibling-calls", "-fno-inline", "-o", program, source)
	if out, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("gcc %v: %v\n%s", args, err, out)
	}
	return program
}

// start starts a program in its own folder, and waits for its first line.
func start(t *testing.T, program string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(program, args...)
	cmd.Dir = filepath.Dir(program)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "here\n" {
		t.Fatalf("the program writes %q, %v", line, err)
	}
	return cmd
}

// functions names the frames that are in functions of nested.
func functions(t *testing.T, program string, modules []Module, s Stack) (names []string) {
	t.Helper()
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	symbols, err := f.Symbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, frame := range s {
		if frame.Module < 0 || modules[frame.Module].Path != program {
			continue
		}
		for _, symbol := range symbols {
			if slices.Contains(want, symbol.Name) && symbol.Value <= frame.Addr && frame.Addr < symbol.Value+symbol.Size {
				names = append(names, symbol.Name)
			}
		}
	}
	return names
}

// read reads a process on a thread that ends.
func read(pid int) (p *Process, err error) {
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread()
		p, err = Read(pid, openFile)
	}()
	<-done
	return p, err
}

func TestRead(t *testing.T) {
	for _, link := range []string{"-pie", "-static"} {
		t.Run(link, func(t *testing.T) {
			t.Parallel()
			program := compile(t, link)
			cmd := start(t, program)
			p, err := read(cmd.Process.Pid)
			if err != nil || len(p.Threads) != 1 || !p.Threads[0].Main || p.Threads[0].Count != 1 || p.Left != 0 {
				t.Fatalf("%+v, %v", p, err)
			}
			names := functions(t, program, p.Modules, p.Threads[0].Stack)
			if !slices.Equal(names, want) {
				t.Errorf("the stack has %v", names)
			}
			for _, m := range p.Modules {
				if m.Path == program && len(m.Build) == 0 {
					t.Error("the program has no build id")
				}
			}
		})
	}
}

// state returns the state of a process, as in ps.
func state(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "State:"); ok {
			return strings.TrimSpace(value)[:1]
		}
	}
	return ""
}

func TestReadStopped(t *testing.T) {
	program := compile(t)
	cmd := start(t, program)
	if err := cmd.Process.Signal(unix.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	check.Await(t, "the stop", func() bool { return state(t, cmd.Process.Pid) == "T" })
	for range 3 {
		p, err := read(cmd.Process.Pid)
		if err != nil || !slices.Equal(functions(t, program, p.Modules, p.Threads[0].Stack), want) {
			t.Fatalf("%+v, %v", p, err)
		}
		// It runs for a moment before it stops again.
		check.Await(t, "the stop", func() bool { return state(t, cmd.Process.Pid) == "T" })
	}
	if err := cmd.Process.Signal(unix.SIGCONT); err != nil {
		t.Fatal(err)
	}
	check.Await(t, "the process to go on", func() bool { return state(t, cmd.Process.Pid) == "S" })
}

// A signal that stops a traced thread before the request to stop does reaches the thread.
func TestLetGo(t *testing.T) {
	cmd := exec.Command(compileText(t, counting))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	if _, err := io.ReadFull(out, make([]byte, 5)); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	check.Await(t, "the pause", func() bool { return state(t, pid) == "S" })
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		err := errors.Join(unix.PtraceSeize(pid), cmd.Process.Signal(unix.SIGUSR1))
		for err == nil && state(t, pid) != "t" {
			time.Sleep(time.Millisecond)
		}
		done <- errors.Join(err, letGo(pid))
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := out.(*os.File).SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		t.Errorf("the signal is lost: %v", err)
	}
}

func TestReadEnded(t *testing.T) {
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	check.Await(t, "the end", func() bool { return state(t, cmd.Process.Pid) == "Z" })
	if p, err := read(cmd.Process.Pid); err == nil || err.Error() != "it has ended" {
		t.Errorf("a process that is not reaped gives %+v, %v", p, err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if p, err := read(cmd.Process.Pid); err == nil {
		t.Errorf("an ended process gives %+v", p)
	}
}

// dump has Linux dump the memory of a process that ends by a fault.
func dump(t *testing.T, program string) (pid int, path string) {
	t.Helper()
	pattern, err := os.ReadFile("/proc/sys/kernel/core_pattern")
	if err != nil {
		t.Fatal(err)
	}
	if name := strings.TrimSpace(string(pattern)); name != "core" {
		t.Skipf("this test needs core in /proc/sys/kernel/core_pattern, and there is %s", name)
	}
	cmd := exec.Command("sh", "-c", `ulimit -c 16384; echo 1 >/proc/self/coredump_filter; exec "$0" fault`, program)
	cmd.Dir = filepath.Dir(program)
	err = cmd.Run()
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus).Signal(); status != unix.SIGSEGV {
		t.Fatalf("the program ends with %v, %v", status, err)
	}
	pid = cmd.Process.Pid
	for _, name := range []string{"core", fmt.Sprintf("core.%d", pid)} {
		if path := filepath.Join(cmd.Dir, name); fileExists(path) {
			return pid, path
		}
	}
	t.Fatal("there is no dump")
	return 0, ""
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func TestReadCore(t *testing.T) {
	program := compile(t)
	pid, path := dump(t, program)
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fault, err := ReadCore(f, pid, openFile)
	if err != nil {
		t.Fatal(err)
	}
	if fault.Signal != int(unix.SIGSEGV) || fault.Code != 1 || fault.Addr != 0 {
		t.Errorf("signal %d, code %d, address %#x", fault.Signal, fault.Code, fault.Addr)
	}
	if names := functions(t, program, fault.Modules, fault.Stack); !slices.Equal(names, want) {
		t.Errorf("the stack has %v", names)
	}
	if _, err := ReadCore(f, pid+1, openFile); err == nil {
		t.Error("a dump of another process is accepted")
	}
	// Linux cuts a dump at its limit: the registers are there, the stack is not.
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(t.TempDir(), "core")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(cut, whole[:info.Size()-64<<10], 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := os.Open(cut)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	fault, err = ReadCore(g, pid, openFile)
	if err != nil || !slices.Equal(functions(t, program, fault.Modules, fault.Stack), want[:1]) {
		t.Errorf("a dump without a stack gives %+v, %v", fault, err)
	}
}
