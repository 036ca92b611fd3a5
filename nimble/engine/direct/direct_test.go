//go:build amd64 || arm64

package direct_test

import (
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/direct"
	"margay/nimble/engine/enginetest"
	"margay/nimble/engine/portable"
	"margay/nimble/isa"
	"margay/nimble/object"
	"margay/nimble/verify"
)

func newEngine(tb testing.TB) engine.Engine {
	tb.Helper()
	e, err := direct.New()
	if err != nil {
		tb.Fatal(err)
	}
	return e
}

func TestEngine(t *testing.T) { enginetest.Test(t, newEngine(t)) }

// BenchmarkEngine has portable beside it.
func BenchmarkEngine(b *testing.B) { enginetest.Benchmark(b, portable.New(), newEngine(b)) }

func TestAgreesWithPortable(t *testing.T) {
	enginetest.TestAgreement(t, portable.New(), newEngine(t), 3000)
}

func TestRegisters(t *testing.T) { enginetest.TestRegisters(t, portable.New(), newEngine(t)) }

// FuzzAgree compares with portable on programs made of random bytes.
func FuzzAgree(f *testing.F) {
	f.Add([]byte{2, 30, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) { enginetest.Agree(t, portable.New(), newEngine(t), data) })
}

// BenchmarkThread is insertion without verification, portable beside it.
func BenchmarkThread(b *testing.B) {
	const instructions = 1001
	spec := &object.Spec{}
	for range instructions / 4 {
		for _, text := range []string{"ldxw r0, [r1]", "jle r0, r2, +1", "add r0, r2", "stxdw [r10-8], r0"} {
			i, err := isa.Parse(text)
			if err != nil {
				b.Fatal(err)
			}
			spec.Instructions = append(spec.Instructions, i)
		}
	}
	spec.Instructions = append(spec.Instructions, isa.Instruction{Code: isa.Exit.Row().Code})
	p, err := verify.Verify(spec, verify.Config{})
	if err != nil {
		b.Fatal(err)
	}
	for _, e := range []engine.Engine{portable.New(), newEngine(b)} {
		b.Run(e.Name(), func(b *testing.B) {
			for b.Loop() {
				if _, err := e.Thread(p, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(b.Elapsed().Seconds()*1e6/float64(b.N)/(instructions/1e3), "us/1000insn")
		})
	}
}
