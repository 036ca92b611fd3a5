package portable_test

import (
	"testing"

	"margay/nimble/engine/enginetest"
	"margay/nimble/engine/portable"
)

func TestEngine(t *testing.T) { enginetest.Test(t, portable.New()) }

// FuzzRun runs programs made of random bytes.
func FuzzRun(f *testing.F) {
	f.Add([]byte{2, 30, 1, 2, 3, 4, 5, 6, 7, 8, 9})
	f.Fuzz(func(t *testing.T, data []byte) { enginetest.Exercise(t, portable.New(), data) })
}

func BenchmarkEngine(b *testing.B) { enginetest.Benchmark(b, portable.New()) }
