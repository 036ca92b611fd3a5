package check

import (
	"os"
	"runtime"
	"testing"
	"time"
)

// patience is the time that goroutines and descriptors of a test have to end after it.
var patience = leakPatience

const leakPatience = 10 * time.Second

// Leaks fails the test if it ends with more goroutines or open descriptors than there are now.
func Leaks(t testing.TB) {
	t.Helper()
	goroutines, files := runtime.NumGoroutine(), Descriptors(t)
	t.Cleanup(func() {
		deadline := time.Now().Add(patience)
		for ; runtime.NumGoroutine() > goroutines || Descriptors(t) > files; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				buf := make([]byte, 1<<20)
				t.Fatalf("%d goroutines and %d descriptors before, %d and %d after:\n%s", goroutines, files,
					runtime.NumGoroutine(), Descriptors(t), buf[:runtime.Stack(buf, true)])
			}
		}
	})
}

// poller makes the Go runtime open its poller, which stays open.
func poller(t testing.TB) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	w.Close()
}

// Descriptors returns the number of open descriptors of this process.
func Descriptors(t testing.TB) int {
	t.Helper()
	poller(t)
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
