package enginetest

import (
	"fmt"
	"strings"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/verify"
)

// loops are programs that take the number of rounds in r1 and a buffer in r2.
var loops = []struct {
	name, text string
	perRound   float64 // instructions
}{
	{"mod", `
		mov r3, r1
		mul r3, r1
		mod r3, 97
		add r0, r3
		add r1, -1
		jne r1, 0, -6
		exit`, 6},
	{"alu", `
		add r0, 3
		xor r0, r1
		lsh r0, 1
		add r0, r1
		add r1, -1
		jne r1, 0, -6
		exit`, 6},
	{"load", `
		ldxh r3, [r2+16]
		add r0, r3
		add r2, 0
		add r1, -1
		jne r1, 0, -5
		exit`, 5},
	{"stack", `
		stxdw [r10-8], r1
		ldxdw r3, [r10-8]
		add r0, r3
		add r1, -1
		jne r1, 0, -5
		exit`, 5},
	{"two-regions", `
		mov r4, r10
		ldxdw r3, [r4-8]
		add r0, r3
		ldxdw r3, [r2]
		add r0, r3
		add r1, -1
		jne r1, 0, -6
		exit`, 6},
	{"atomic", `
		atomic_add [r2], r1
		add r1, -1
		jne r1, 0, -3
		exit`, 3},
	{"call", `
		mov r6, r1
		call_local +3
		add r6, -1
		jne r6, 0, -3
		exit
		mov r0, 1
		exit`, 5},
	{"service", `
		mov r6, r1
		call 5
		add r6, -1
		jne r6, 0, -3
		exit`, 3},
}

// pick is a program of a dozen instructions that chooses one of four
// candidates.
const pick = `
	ldxw r0, [r1]
	ldxw r2, [r1+4]
	jle r0, r2, +1
	mov r0, r2
	ldxw r2, [r1+8]
	jle r0, r2, +1
	mov r0, r2
	ldxw r2, [r1+12]
	jle r0, r2, +1
	mov r0, r2
	and r0, 3
	exit`

// Benchmark measures engines in turn, program by program: loops in ns per
// instruction, a short program as one call from Go, and insertion.
func Benchmark(b *testing.B, engines ...engine.Engine) {
	for _, each := range loops {
		for _, trusted := range []bool{false, true} {
			for _, e := range engines {
				b.Run(versionName(each.name, trusted, e), func(b *testing.B) {
					const rounds = 1000
					rig := benchRig(b, e, each.text, trusted)
					rig.Machine.Args = [5]uint64{rounds, rig.Machine.Context().Base}
					rig.loop(b)
					b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/(rounds*each.perRound), "ns/insn")
				})
			}
		}
	}
	for _, trusted := range []bool{false, true} {
		for _, e := range engines {
			b.Run(versionName("pick", trusted, e), func(b *testing.B) { benchRig(b, e, pick, trusted).loop(b) })
		}
	}
	for _, e := range engines {
		b.Run("insert/"+e.Name(), func(b *testing.B) { insertion(b, e) })
	}
}

func versionName(program string, trusted bool, e engine.Engine) string {
	version := "checked"
	if trusted {
		version = "trusted"
	}
	return fmt.Sprintf("%s/%s/%s", program, version, e.Name())
}

// program assembles lines of text.
func program(tb testing.TB, text string) *object.Spec {
	tb.Helper()
	spec := &object.Spec{Name: "test"}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		i, err := isa.Parse(line)
		if err != nil {
			tb.Fatal(err)
		}
		spec.Instructions = isa.Append(spec.Instructions, i)
	}
	return spec
}

// benchRig threads a program with a context of 4096 bytes.
func benchRig(b *testing.B, e engine.Engine, text string, trusted bool) *Rig {
	b.Helper()
	p, err := verify.Verify(program(b, text), verify.Config{Services: Services(), Trusted: trusted})
	if err != nil {
		b.Fatal(err)
	}
	return NewRig(b, e, p, 8, 4096)
}

// loop runs a rig in the loop of the benchmark.
func (rig *Rig) loop(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		rig.Machine.Fuel = 1 << 40
		if _, err := rig.Code.Run(rig.Machine); err != nil {
			b.Fatal(err)
		}
	}
}

// insertion measures verification and threading, without making maps.
func insertion(b *testing.B, e engine.Engine) {
	const repeat = 1000
	text := strings.Repeat("ldxw r0, [r1]\njle r0, r2, +1\nadd r0, r2\nstxdw [r10-8], r0\n", repeat/4) + "exit"
	spec := program(b, text)
	for b.Loop() {
		p, err := verify.Verify(spec, verify.Config{})
		if err != nil {
			b.Fatal(err)
		}
		code, err := e.Thread(p, nil)
		if err != nil {
			b.Fatal(err)
		}
		if err := code.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/(repeat/1000), "us/1000insn")
}
