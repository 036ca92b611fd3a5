// Package throwaway starts threads that a function may change as it likes: their CPUs, priority,
// rights or descriptors. Nothing else ever runs on such a thread.
package throwaway

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// Go calls f on a thread that ends with f, and does not wait for it. This is never the first thread
// of the process. That one cannot end, so it would stay as f leaves it, and Linux takes the process
// for what its first thread is: under the number of the process it shows, and changes, that thread.
func Go(f func()) {
	go func() {
		runtime.LockOSThread() // and never unlocked, so that the thread ends
		if unix.Gettid() != os.Getpid() {
			f()
			return
		}
		defer runtime.UnlockOSThread()
		ended := make(chan struct{})
		go func() { // on another thread: this one is taken until it has ended
			defer close(ended)
			runtime.LockOSThread()
			f()
		}()
		<-ended
	}()
}
