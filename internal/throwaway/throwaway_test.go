package throwaway

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMain calls Go from the first thread. With one processor, what the caller starts before it
// waits runs there next.
func TestMain(m *testing.M) {
	before := runtime.GOMAXPROCS(1)
	ran := make(chan int)
	for range 20 {
		Go(func() { ran <- unix.Gettid() })
		threads = append(threads, <-ran)
	}
	runtime.GOMAXPROCS(before)
	os.Exit(m.Run())
}

// threads are those that the calls of TestMain ran on.
var threads []int

func TestGo(t *testing.T) {
	if slices.Contains(threads, os.Getpid()) {
		t.Errorf("the first thread, %d, is one of %v", os.Getpid(), threads)
	}
	for _, thread := range threads {
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", thread)); err != nil {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("thread %d has not ended", thread)
			}
		}
	}
}
