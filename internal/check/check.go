// Package check is what tests of several packages need: waiting for a state, the seed of random input, a buffer that is read while
// it is written, and whether a test leaves anything behind.
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

// Patience bounds a wait for what takes milliseconds on an idle machine.
const Patience = 20 * time.Second

// Await waits until ok holds, and fails the test when it does not within Patience.
func Await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	AwaitFor(t, Patience, what, ok)
}

// AwaitFor is Await with another bound.
func AwaitFor(t testing.TB, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %v", what, within)
		}
	}
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

// Buffer is a buffer that is read while it is written. The zero value is empty.
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

// String returns what has been written.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
