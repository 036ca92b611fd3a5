//go:build linux && amd64

package subroutine_test

import (
	"io"
	"os"
	"runtime"
	"runtime/pprof"
	"runtime/trace"
	"strings"
	"sync"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/engine/portable"
	"margay/nimble/engine/subroutine"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/service"
	"margay/nimble/verify"
)

func newEngine(tb testing.TB) engine.Engine {
	tb.Helper()
	return must(tb, subroutine.New)
}

func newCalls(tb testing.TB) engine.Engine {
	tb.Helper()
	return must(tb, subroutine.NewCalls)
}

func must(tb testing.TB, constructor func() (engine.Engine, error)) engine.Engine {
	tb.Helper()
	e, err := constructor()
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestEngine(t *testing.T) { enginetest.Test(t, newEngine(t)) }

func TestCalls(t *testing.T) { enginetest.Test(t, newCalls(t)) }

// BenchmarkEngine compares with the other engines.
func BenchmarkEngine(b *testing.B) {
	enginetest.Benchmark(b, portable.New(), newEngine(b), newCalls(b))
}

func TestAgreesWithPortable(t *testing.T) {
	enginetest.TestAgreement(t, portable.New(), newEngine(t), 3000)
}

func TestRegisters(t *testing.T) {
	for _, e := range []engine.Engine{newEngine(t), newCalls(t)} {
		enginetest.TestRegisters(t, portable.New(), e)
	}
}

func TestCallsAgreesWithPortable(t *testing.T) {
	enginetest.TestAgreement(t, portable.New(), newCalls(t), 3000)
}

// FuzzAgree compares with portable on programs made of random bytes.
func FuzzAgree(f *testing.F) {
	f.Add([]byte{2, 30, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) {
		enginetest.Agree(t, portable.New(), newEngine(t), data)
		enginetest.Agree(t, portable.New(), newCalls(t), data)
	})
}

// TestCodeIsNotWritable checks that no mapping of a process with emitted code is
// both writable and executable.
func TestCodeIsNotWritable(t *testing.T) {
	p, err := verify.Verify(enginetest.Generate(nil), verify.Config{Services: enginetest.Services()})
	if err != nil {
		t.Fatal(err)
	}
	enginetest.NewRig(t, newEngine(t), p, 1, 0)
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	executable := 0
	for line := range strings.Lines(string(maps)) {
		permissions := strings.Fields(line)[1]
		if permissions[1:3] == "wx" {
			t.Errorf("writable and executable: %s", line)
		}
		if permissions[2] == 'x' && (len(strings.Fields(line)) == 5 || strings.Contains(line, "memfd:code")) {
			executable++ // not of the program's own file
		}
	}
	if executable == 0 {
		t.Error("the emitted code is in no mapping")
	}
}

// deepening is a program that counts r1 down, computes for a while at each
// number and calls a service that makes the stack of its goroutine grow. It
// returns the sum of the service's results.
func deepening(t *testing.T, trusted bool) *verify.Program {
	t.Helper()
	var deep func(n int) uint64
	deep = func(n int) uint64 {
		var room [64]uint64
		if room[n%64] = uint64(n); n > 0 {
			return deep(n-1) + room[n%64]
		}
		return 0
	}
	table, err := service.NewTable(service.Service{Number: 5, Args: []service.Kind{service.Scalar}, Func: func(c *service.Call) (uint64, error) {
		return deep(int(c.Args[0])), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	spec := &object.Spec{}
	for _, text := range []string{"mov r6, r1", "mov r7, 0", "mov r2, 5000", "add r2, -1", "jne r2, 0, -2", "mov r1, r6",
		"call 5", "add r7, r0", "add r6, -1", "jne r6, 0, -8", "mov r0, r7", "exit"} {
		i, err := isa.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	p, err := verify.Verify(spec, verify.Config{Services: table, Trusted: trusted})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestRuntimeLooks lets the runtime profile, trace and collect garbage while
// programs run, and move their stacks during services.
func TestRuntimeLooks(t *testing.T) {
	if err := pprof.StartCPUProfile(io.Discard); err != nil {
		t.Fatal(err)
	}
	defer pprof.StopCPUProfile()
	if err := trace.Start(io.Discard); err != nil {
		t.Fatal(err)
	}
	defer trace.Stop()
	const from, want = 300, 300 * 301 * 302 / 6
	for _, e := range []engine.Engine{newEngine(t), newCalls(t)} {
		for _, trusted := range []bool{false, true} {
			p := deepening(t, trusted)
			var wait sync.WaitGroup
			for range 4 {
				rig := enginetest.NewRig(t, e, p, 1, 0)
				wait.Go(func() {
					for range 10 {
						rig.Machine.Args[0], rig.Machine.Fuel = from, 1<<30
						if r0, err := rig.Code.Run(rig.Machine); err != nil || r0 != want {
							t.Errorf("got %d, %v, want %d", r0, err, want)
						}
					}
				})
			}
			for range 20 {
				runtime.GC()
				runtime.Stack(make([]byte, 1<<16), true)
			}
			wait.Wait()
		}
	}
}
