// Package check has helpers for the tests of several packages: waits for a state, seeds of random
// input, a buffer that may be read while it is written, and checks for leaks.
package check

import (
	"bytes"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
)

// Patience bounds a wait for events that take milliseconds on an idle machine.
const Patience = 20 * time.Second

// Await waits until ok returns true, and fails the test after Patience.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitFor(t, Patience, what, ok)
}

// AwaitFor is Await with another bound.
func AwaitFor(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); {
		waited := time.Since(begin)
		if waited > within {
			t.Fatalf("no %s within %v", what, within)
		}
		time.Sleep(min(time.Millisecond+waited/10, maxPause))
	}
}

// maxPause bounds the pauses between the calls of ok. They grow with the wait, because calls that
// read files of /proc would otherwise keep the processor of an emulated guest busy.
const maxPause = 10 * time.Millisecond

// Rounds returns how often a test repeats something: few times, or many under MARGAY_SOAK.
func Rounds(few, many int) int {
	if os.Getenv("MARGAY_SOAK") != "" {
		return many
	}
	return few
}

// Seed returns the seed of a random test: MARGAY_SEED, or a new one that is logged.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("MARGAY_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MARGAY_SEED=%d", seed)
	return seed
}

// Delays returns after which time each copy of a datagram arrives in a modelled network: one copy
// soon, or if the network is lossy none, one or several, in any order.
func Delays(r *rand.Rand, lossy bool) (delays []time.Duration) {
	for copies := 1; copies > 0; copies-- {
		delay := 20 * time.Microsecond
		if lossy {
			if r.IntN(5) == 0 {
				continue
			}
			if r.IntN(10) == 0 {
				copies++
			}
			delay = time.Duration(r.IntN(3000)) * time.Microsecond
		}
		delays = append(delays, delay)
	}
	return delays
}

// Buffer is a buffer that may be read while it is written. The zero value is empty.
type Buffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

// String returns the text written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
