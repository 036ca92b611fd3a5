package qemu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"margay/qemu/console"
	"margay/qemu/ether"
)

// patience bounds every wait of a test for something that must happen.
const patience = 60 * time.Second

// holderEnv makes the test binary start a VM of this kernel, say its pid and wait to be killed.
const holderEnv = "MARGAY_QEMU_TEST_HOLDER"

func TestMain(m *testing.M) {
	if kernel := os.Getenv(holderEnv); kernel != "" {
		hold(kernel)
	}
	os.Exit(m.Run())
}

func hold(kernel string) {
	e, err := Find(context.Background(), AMD64, "")
	if err != nil {
		panic(err)
	}
	vm, err := e.Start(context.Background(), Config{Name: "held", Kernel: kernel})
	if err != nil {
		panic(err)
	}
	fmt.Println(vm.PID())
	select {}
}

// installed returns the machine's QEMU.
func installed(t testing.TB) *Emulator {
	t.Helper()
	e, err := Find(t.Context(), AMD64, "")
	if errors.Is(err, exec.ErrNotFound) {
		t.Skip("needs QEMU: ", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return e
}

func start(t testing.TB, e *Emulator, cfg Config) *VM {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "test"
	}
	vm, err := e.Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { vm.Kill(); <-vm.Done() })
	return vm
}

func waitExit(t testing.TB, vm *VM) *Exit {
	t.Helper()
	select {
	case <-vm.Done():
		return vm.Exit()
	case <-time.After(patience):
		t.Fatalf("VM runs after %v; console: %q", patience, vm.Console().Tail(10))
		return nil
	}
}

func waitLine(t testing.TB, vm *VM, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if !appears(ctx, vm.Console(), text) {
		t.Fatalf("no line %q on the console: %q", text, vm.Console().Tail(10))
	}
}

func TestGuestPrintsAndEnds(t *testing.T) {
	dir := t.TempDir()
	vm := start(t, installed(t), Config{
		Kernel:  kernel(t, "hello\r\nfrom the guest\n", restarts),
		Console: console.Config{Path: filepath.Join(dir, "console")},
		Stderr:  console.Config{Path: filepath.Join(dir, "stderr")},
	})
	exit := waitExit(t, vm)
	if !exit.PoweredOff() || exit.Killed || exit.Signal != 0 || exit.After <= 0 {
		t.Errorf("exit %+v", exit)
	}
	if want := []string{"hello", "from the guest"}; !slices.Equal(exit.Console, want) {
		t.Errorf("console %q, want %q", exit.Console, want)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "console")); string(b) != "hello\nfrom the guest\n" {
		t.Errorf("console log %q, %v", b, err)
	}
	if !strings.Contains(exit.Error(), "powered off or restarted") || !strings.Contains(exit.Error(), `"from the guest"`) {
		t.Error(exit)
	}
	if vm.Kill() != nil || vm.Pause() == nil {
		t.Error("after the end, Kill must be no error and Pause one")
	}
}

func TestKill(t *testing.T) {
	vm := start(t, installed(t), Config{Kernel: kernel(t, "up\n", hangs), CPUs: 2})
	waitLine(t, vm, "up")
	if vm.Exit() != nil {
		t.Fatal("the VM has ended: ", vm.Exit())
	}
	if pgid, err := syscall.Getpgid(vm.PID()); err != nil || pgid != vm.PID() {
		t.Errorf("process group %d, %v; want the VM's own", pgid, err)
	}
	if err := vm.Pause(); err != nil { // a paused one must be gone too
		t.Fatal(err)
	}
	if err := vm.Kill(); err != nil {
		t.Fatal(err)
	}
	exit := waitExit(t, vm)
	if !exit.Killed || exit.Signal != syscall.SIGKILL || exit.PoweredOff() || !strings.Contains(exit.Error(), "on request") {
		t.Errorf("exit %+v: %v", exit, exit)
	}
}

func TestKilledByOthers(t *testing.T) {
	vm := start(t, installed(t), Config{Kernel: kernel(t, "up\n", hangs)})
	waitLine(t, vm, "up")
	syscall.Kill(vm.PID(), syscall.SIGKILL)
	exit := waitExit(t, vm)
	if exit.Killed || exit.Signal != syscall.SIGKILL || !strings.Contains(exit.Error(), "killed by signal 9") {
		t.Errorf("exit %+v: %v", exit, exit)
	}
}

func TestContextEndsTheVM(t *testing.T) {
	e := installed(t)
	ctx, cancel := context.WithCancel(t.Context())
	vm, err := e.Start(ctx, Config{Name: "test", Kernel: kernel(t, "up\n", hangs)})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if exit := waitExit(t, vm); !exit.Killed {
		t.Errorf("exit %+v", exit)
	}
	if _, err := e.Start(ctx, Config{Name: "test", Kernel: kernel(t, "up\n", hangs)}); !errors.Is(err, context.Canceled) {
		t.Errorf("start after the end of the context: %v", err)
	}
}

func TestPauseAndContinue(t *testing.T) {
	vm := start(t, installed(t), Config{Kernel: kernel(t, "tick\n", repeats)})
	waitLine(t, vm, "tick")
	if err := vm.Pause(); err != nil {
		t.Fatal(err)
	}
	// What the pipe held may still arrive; then there must be silence.
	quiet := func() bool {
		_, before, _ := vm.Console().Follow(t.Context(), 0)
		time.Sleep(200 * time.Millisecond)
		_, after, _ := vm.Console().Follow(t.Context(), 0)
		return before == after
	}
	for end := time.Now().Add(patience); !quiet(); {
		if time.Now().After(end) {
			t.Fatal("a paused VM goes on")
		}
	}
	_, paused, _ := vm.Console().Follow(t.Context(), 0)
	if err := vm.Continue(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, _, err := vm.Console().Follow(ctx, paused); err != nil {
		t.Error("no line after Continue: ", err)
	}
}

func TestChattyGuestIsBounded(t *testing.T) {
	const limit = 10_000
	path := filepath.Join(t.TempDir(), "console")
	vm := start(t, installed(t), Config{
		Kernel:  kernel(t, strings.Repeat("chatter ", 40)+"\n", repeats),
		Console: console.Config{Path: path, MaxBytes: limit},
	})
	for from := uint64(0); from < 200; {
		_, next, err := vm.Console().Follow(t.Context(), from)
		if err != nil {
			t.Fatal(err)
		}
		from = next
	}
	vm.Kill()
	waitExit(t, vm)
	for _, p := range []string{path, path + console.OldSuffix} {
		// One write of the pipe's content may go beyond the limit.
		if info, err := os.Stat(p); err != nil || info.Size() > limit+64<<10 {
			t.Errorf("%s: %v, %v", p, info.Size(), err)
		}
	}
}

func TestQEMUsOwnErrorIsReported(t *testing.T) {
	e := installed(t)
	notAKernel := filepath.Join(t.TempDir(), "kernel")
	if err := os.WriteFile(notAKernel, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	exit := waitExit(t, start(t, e, Config{Kernel: notAKernel}))
	if exit.PoweredOff() || len(exit.Stderr) == 0 || !strings.Contains(exit.Error(), exit.Stderr[0]) {
		t.Errorf("exit %+v: %v", exit, exit)
	}
}

func TestVMConnectsToItsSwitchPort(t *testing.T) {
	e := installed(t)
	socket := filepath.Join(t.TempDir(), "with,comma")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	l.(*net.UnixListener).SetDeadline(time.Now().Add(patience))
	vm := start(t, e, Config{
		Kernel: kernel(t, "up\n", hangs),
		NIC:    NIC{Socket: socket, MAC: ether.MAC{0x52, 0x54, 0, 0, 0, 1}, MTU: 9000},
	})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	waitLine(t, vm, "up") // QEMU took the network card with its address and MTU
}

func TestVMDiesWithItsKilledHolder(t *testing.T) {
	installed(t)
	holder := exec.Command("/proc/self/exe")
	holder.Env = append(os.Environ(), holderEnv+"="+kernel(t, "up\n", hangs))
	out, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	defer holder.Wait()
	defer holder.Process.Kill()
	line := make([]byte, 32)
	n, err := out.Read(line)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(line[:n])))
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(100 * time.Millisecond)
	if err := syscall.Kill(pid, 0); err != nil {
		t.Fatal("the VM does not run: ", err)
	}
	holder.Process.Signal(syscall.SIGKILL)
	holder.Wait()
	for end := time.Now().Add(patience); running(pid); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			syscall.Kill(pid, syscall.SIGKILL)
			t.Fatal("the VM outlived its holder")
		}
	}
}

// running reports whether the process exists and is not a zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

func TestEndedVMsLeaveNothing(t *testing.T) {
	fake := find(t, script(t, okVersion, "echo bye"))
	k := kernel(t, "", hangs)
	cycle := func() {
		vm := start(t, fake, Config{Kernel: k, Console: console.Config{Path: filepath.Join(t.TempDir(), "log")}})
		if exit := waitExit(t, vm); !slices.Equal(exit.Console, []string{"bye"}) {
			t.Errorf("exit %+v", exit)
		}
	}
	cycle() // starts what the process keeps
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for range 5 {
		cycle()
	}
	for end := time.Now().Add(patience); runtime.NumGoroutine() > goroutines || openFiles(t) > files; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before; %d files, %d before",
				runtime.NumGoroutine(), goroutines, openFiles(t), files)
		}
	}
}

func openFiles(t *testing.T) int {
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}

// The error of a guest that panics is its panic, not the output after it.
func TestPanicIsQuoted(t *testing.T) {
	const panics = `echo '[ 4.1] Kernel panic - not syncing: Fatal exception in interrupt'; seq 100; echo ' </TASK>'
echo '[ 4.2] ---[ end Kernel panic - not syncing: Fatal exception in interrupt ]---'; echo more`
	exit := waitExit(t, start(t, find(t, script(t, okVersion, panics)), Config{Kernel: "/dev/null"}))
	const want = `its console: "[ 4.1] Kernel panic - not syncing: Fatal exception in interrupt"`
	if text := exit.Error(); !strings.HasSuffix(text, "; "+want) {
		t.Error(text)
	}
}
