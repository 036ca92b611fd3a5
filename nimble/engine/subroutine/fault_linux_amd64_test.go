package subroutine

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/memory"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// program is a trusted program on an engine.
type program struct {
	code engine.Code
	m    *engine.Machine
}

func load(t *testing.T, calls bool, lines ...string) program {
	t.Helper()
	spec := &object.Spec{}
	for _, line := range lines {
		i, err := isa.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	p, err := verify.Verify(spec, verify.Config{Trusted: true})
	if err != nil {
		t.Fatal(err)
	}
	e, err := newEngine(calls)
	if err != nil {
		t.Fatal(err)
	}
	c, err := e.Thread(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	m, err := engine.NewMachine(p, nil, 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); m.Close() })
	return program{c, m}
}

// wantFault runs the program with r1 and expects a fault at a slot and address.
func (p program) wantFault(t *testing.T, r1 uint64, slot int, addr, left uint64) {
	t.Helper()
	p.m.Args[0], p.m.Fuel = r1, 100
	_, err := p.code.Run(p.m)
	f, ok := errors.AsType[*engine.Fault](err)
	if !ok || f.Kind != engine.Memory || f.PC != slot || f.Addr != addr || f.Fuel != left || p.m.Fuel != left {
		t.Errorf("%v, want a fault at %d, address %#x, fuel %d", err, slot, addr, left)
	}
}

func (p program) wantResult(t *testing.T, r1, want uint64) {
	t.Helper()
	p.m.Args[0], p.m.Fuel = r1, 100
	if r0, err := p.code.Run(p.m); err != nil || r0 != want {
		t.Errorf("%#x, %v, want %#x", r0, err, want)
	}
}

// TestFaultAddress tests accesses beyond the end of memory, stores to read-only
// memory, and operations that borrow a register for their address.
func TestFaultAddress(t *testing.T) {
	page := uint64(os.Getpagesize())
	rw, err := memory.Map("rw", int(page))
	if err != nil {
		t.Fatal(err)
	}
	defer rw.Close()
	ro, err := memory.Map("ro", int(page))
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	if err := unix.Mprotect(ro.Bytes(), unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	end, readonly := rw.Region(true).Base+page, ro.Region(true).Base
	for _, calls := range []bool{false, true} {
		for text, addr := range map[string]uint64{
			"ldxdw r0, [r1+3]":              end - 4,
			"ldxw r0, [r1-1]":               0xffff_8000_0000_0000,
			"stxdw [r1+8], r0":              readonly,
			"sth [r1+1], 7":                 end - 1,
			"atomic_add [r1+8], r3":         readonly,
			"atomic_fetch_or [r1+8], r0":    readonly,
			"atomic_fetch_xor32 [r1+4], r1": readonly + 4,
			"atomic_fetch_and [r1+0], r6":   0xffff_8000_0000_0000,
		} {
			i, err := isa.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			load(t, calls, "mov r6, 1", text, "exit").wantFault(t, addr-uint64(int64(i.Off)), 1, addr, 97)
		}
		for _, text := range []string{"atomic_fetch_or [r0+8], r6", "atomic_fetch_and [r0+8], r1", "atomic_fetch_or [r0+8], r0", "ldxdw r0, [r0+8]"} {
			p := load(t, calls, "mov r0, r1", "mov r6, r1", text, "exit")
			p.wantFault(t, 1<<40, 2, 1<<40+8, 96)
			if strings.HasPrefix(text, "atomic") {
				p.wantFault(t, readonly, 2, readonly+8, 96)
			}
		}
	}
}

// TestHandler reads the installed actions after a program with unchecked accesses
// was threaded: the handler is ours, and the other fields are as Go sets them for
// another such signal.
func TestHandler(t *testing.T) {
	load(t, false, "ldxb r0, [r1]", "exit").wantFault(t, 8, 0, 8, 98)
	if start, size := executable.bounds(); start != codeStart || size != codeSize || size == 0 {
		t.Errorf("the handler looks at %d bytes at %#x, the code is in %d at %#x", codeSize, codeStart, size, start)
	}
	want, err := handlerOf(unix.SIGFPE)
	if err != nil {
		t.Fatal(err)
	}
	for signal, next := range map[unix.Signal]uintptr{unix.SIGSEGV: afterSegv, unix.SIGBUS: afterBus} {
		now, err := handlerOf(signal)
		if err != nil {
			t.Fatal(err)
		}
		if now.handler != onFaultAddress() || next != want.handler {
			t.Errorf("%v: handler %#x before %#x, want %#x before %#x", signal, now.handler, next, onFaultAddress(), want.handler)
		}
		if now.handler = want.handler; now != want {
			t.Errorf("%v: %+v, want %+v", signal, now, want)
		}
	}
}

// TestOtherHandler replaces our handler. Programs that rely on it are refused, and
// accepted again once ours is back.
func TestOtherHandler(t *testing.T) {
	p := load(t, false, "ldxb r0, [r1]", "exit")
	ours, err := handlerOf(unix.SIGBUS)
	if err != nil {
		t.Fatal(err)
	}
	other := ours
	other.handler = afterBus
	if err := handle(unix.SIGBUS, &other); err != nil {
		t.Fatal(err)
	}
	e, _ := newEngine(false)
	if _, err := e.Thread(p.code.(*code).program, nil); !errors.Is(err, errTaken) {
		t.Errorf("got %v", err)
	}
	if err := handle(unix.SIGBUS, &ours); err != nil {
		t.Fatal(err)
	}
	load(t, false, "ldxb r0, [r1]", "exit").wantFault(t, 8, 0, 8, 98)
}

// TestFaultsOfGo raises faults in Go between faults of a program: they are still
// panics, or panics on fault.
func TestFaultsOfGo(t *testing.T) {
	p := load(t, false, "ldxb r0, [r1]", "exit")
	panics := func(f func()) (why error) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { why, _ = recover().(error) }()
		f()
		return nil
	}
	for range 3 {
		p.wantFault(t, 8, 0, 8, 98)
		var nobody *object.Spec
		if why := panics(func() { t.Log(nobody.Name) }); why == nil || !strings.Contains(why.Error(), "nil pointer") {
			t.Errorf("nil: %v", why)
		}
		guard := uintptr(1 << 40)
		why := panics(func() { t.Log(**(**byte)(unsafe.Pointer(&guard))) })
		if addressed, ok := why.(interface{ Addr() uintptr }); !ok || addressed.Addr() != guard {
			t.Errorf("fault: %v", why)
		}
	}
}

// TestSignalsThatAreSent sends SIGSEGV to threads that run emitted code: os/signal
// receives it, and the program does not fault. Then os/signal is reset.
func TestSignalsThatAreSent(t *testing.T) {
	received := make(chan os.Signal, 100)
	signal.Notify(received, unix.SIGSEGV, unix.SIGBUS)
	p := load(t, false, "mov r2, r1", "ldxb r3, [r10-1]", "add r2, -1", "jne r2, 0, -3", "ldxb r0, [r1]", "exit")
	thread := make(chan int)
	done := make(chan bool)
	var sent atomic.Bool
	go func() {
		defer close(done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		thread <- unix.Gettid()
		for !sent.Load() {
			p.m.Args[0], p.m.Fuel = 1000, 1<<20
			if f, ok := errors.AsType[*engine.Fault](second(p.code.Run(p.m))); !ok || f.PC != 4 || f.Addr != 1000 {
				t.Errorf("got %v", f)
				return
			}
		}
	}()
	id := <-thread
	deadline := time.After(time.Minute)
	for n := 0; n < 5 && !t.Failed(); { // Linux drops one that is sent while the signal of a bad access is pending
		if err := unix.Tgkill(unix.Getpid(), id, unix.SIGSEGV); err != nil {
			t.Fatal(err)
		}
		select {
		case <-received:
			n++
		case <-deadline:
			t.Errorf("%d of 5 signals were received", n)
		case <-time.After(time.Millisecond):
		}
	}
	sent.Store(true)
	<-done
	signal.Ignore(unix.SIGSEGV, unix.SIGBUS)
	p.wantFault(t, 2, 4, 2, 91)
	signal.Reset(unix.SIGSEGV, unix.SIGBUS)
	signal.Stop(received)
	p.wantFault(t, 2, 4, 2, 91)
}

func second(_ uint64, err error) error { return err }

// TestFaultsInMany raises faults in many goroutines, which change threads, while
// the garbage collector runs.
func TestFaultsInMany(t *testing.T) {
	var wait sync.WaitGroup
	for n := range 8 {
		p := load(t, n%2 != 0, "mov r6, r1", "call_local +1", "exit", "stxdw [r10-8], r6", "ldxb r0, [r6]", "exit")
		m, err := memory.Map("good", 8)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		wait.Go(func() {
			for i := range uint64(300) {
				p.wantFault(t, 1<<40+i, 4, 1<<40+i, 95)
				p.wantResult(t, m.Region(true).Base, 0)
				if i%50 == 0 {
					runtime.GC()
				}
				runtime.Gosched()
			}
		})
	}
	wait.Wait()
}

// TestCrash runs a process that installs the handler and then crashes by a fault
// in Go: the runtime reports it as usual.
func TestCrash(t *testing.T) {
	const variable = "MARGAY_TEST_CRASH"
	if os.Getenv(variable) != "" {
		load(t, false, "ldxb r0, [r1]", "exit").wantFault(t, 8, 0, 8, 98)
		wild := uintptr(1 << 40)
		go func() { println(**(**byte)(unsafe.Pointer(&wild))) }()
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrash$")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	exit, ok := errors.AsType[*exec.ExitError](err)
	if !ok || exit.ExitCode() != 2 || !strings.Contains(string(out), "unexpected fault address 0x10000000000") ||
		!strings.Contains(string(out), "SIGSEGV") || !strings.Contains(string(out), "TestCrash") {
		t.Errorf("%v:\n%s", err, out)
	}
}
