// Command worker is a process that shares a core in the tests of schedulers
// (kernel/sched/schedtest), which run in a guest. It is a program of its own because it is started
// a hundred times, and an emulated processor takes a quarter of a second for a start of a test
// binary.
//
// It writes "r" when it is ready, and begins when it has read a byte for each of its threads that
// compute. The environment variable KIND says what it does then, until it is killed.
package main

import (
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	runtime.LockOSThread()
	kind, _ := syscall.Getenv("KIND")
	switch kind {
	case "spin": // computes
		ready()
		begin()
		spin(forever)
	case "threads": // computes on two threads
		compute(2)
	case "four": // computes on four threads
		compute(4)
	case "wait": // waits for a byte, computes for a millisecond, and writes the byte
		ready()
		wait()
	case "leave": // takes a scheduling policy before which all of sched_ext have to wait
		ready()
		begin()
		leave()
	case "breed": // makes a thread from time to time
		ready()
		begin()
		for range 1000 {
			go func() {
				runtime.LockOSThread()
				select {}
			}()
			time.Sleep(20 * time.Millisecond)
		}
		select {}
	case "blink": // computes and waits in turns
		ready()
		begin()
		for {
			for end := time.Now().Add(5 * time.Millisecond); time.Now().Before(end); {
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	unix.Exit(1)
}

func ready() {
	if _, err := unix.Write(1, []byte("r")); err != nil {
		unix.Exit(1)
	}
}

// begin waits in Linux and not in Go's runtime, so that no thread is made when it ends.
func begin() {
	var b [1]byte
	if n, err := unix.Read(0, b[:]); n != 1 || err != nil {
		unix.Exit(1)
	}
}

// compute computes on so many threads, which exist before it is ready.
func compute(threads int) {
	there := make(chan bool)
	for range threads - 1 {
		go func() {
			runtime.LockOSThread()
			there <- true
			begin()
			spin(forever)
		}()
		<-there
	}
	ready()
	begin()
	spin(forever)
}

const forever = 1 << 62

// spun keeps the compiler from leaving out what spin does.
var spun atomic.Uint64

// spin computes until the thread has had so many nanoseconds of processor time.
func spin(until int64) {
	x := uint64(until)
	for {
		for range 10_000 {
			x = x*6364136223846793005 + 1
		}
		if until == forever {
			continue
		}
		if now, ok := spent(); !ok || now > until {
			spun.Store(x)
			return
		}
	}
}

// spent returns the processor time of the thread, in nanoseconds.
func spent() (int64, bool) {
	var ts unix.Timespec
	err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &ts)
	return ts.Nano(), err == nil
}

func wait() {
	var b [1]byte
	for {
		if n, err := unix.Read(0, b[:]); n != 1 || err != nil {
			return
		}
		now, ok := spent()
		if !ok {
			return
		}
		spin(now + int64(time.Millisecond))
		if _, err := unix.Write(1, b[:]); err != nil {
			return
		}
	}
}

// leave leaves sched_ext as soon as it is in it.
func leave() {
	for {
		if a, err := unix.SchedGetAttr(0, 0); err != nil || a.Policy == unix.SCHED_EXT {
			break
		}
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0); err == nil {
		spin(forever)
	}
}
