//go:build !guest

package priority

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/sched"
)

// Only a computing thread wants the core. A guest has no shell for this.
func TestSleeps(t *testing.T) {
	for name, c := range map[string]struct {
		command string
		signal  unix.Signal
		state   string // as proc(5) has it
		sleeps  bool
	}{
		"computes": {"while :; do :; done", 0, "R", false},
		"waits":    {"read x", 0, "S", true},
		"stopped":  {"while :; do :; done", unix.SIGSTOP, "T", true},
		"ended":    {"while :; do :; done", unix.SIGKILL, "Z", true},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("sh", "-c", c.command)
			in, err := cmd.StdinPipe()
			if err == nil {
				err = cmd.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				in.Close()
				_ = cmd.Process.Kill()
				_ = cmd.Wait() // it was killed
			}()
			if err := unix.Kill(cmd.Process.Pid, c.signal); err != nil {
				t.Fatal(err)
			}
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
				text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
				if err != nil {
					t.Fatal(err)
				}
				got := sleeps(sched.Thread{Process: cmd.Process.Pid, ID: cmd.Process.Pid})
				if got == c.sleeps && bytes.Contains(text, []byte("(sh) "+c.state)) {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("it sleeps: %v; its state is to be %s: %s", got, c.state, text)
				}
			}
		})
	}
	if sleeps(sched.Thread{Process: 1 << 30, ID: 1 << 30}) {
		t.Error("a thread that is not there sleeps")
	}
}

// A thread that woke on an idle CPU, which is not reported, is known to run when it gets the CPU
// from another one: its task does not wait when that other one does.
func TestWokenUnseen(t *testing.T) {
	const computes, pauses, foreign = 11, 12, 13
	for name, c := range map[string]struct {
		next, priority int
		apart          bool
		waits, stale   bool
	}{
		"the thread comes next":        {computes, lowest, false, false, false},
		"nobody comes next":            {0, 120, false, true, false},
		"an ordinary one of others":    {foreign, 120, false, true, false},
		"one of a priority of tasks":   {foreign, highest, false, true, true},
		"an ordinary one, all alone":   {computes, 120, true, false, false},
		"a foreign one where all tell": {foreign, 120, true, true, true},
	} {
		t.Run(name, func(t *testing.T) {
			shared := &task{threads: map[int]*thread{1: {process: 1, blocked: true, since: 5, number: computes}, 2: {process: 1, number: pauses}}}
			core := &core{tasks: []*task{shared}, strangers: make(map[int]bool), apart: c.apart}
			core.note(record{what: waits, time: 10, pid: 1, tid: 2, number: pauses, next: c.next, priority: c.priority})
			if got := shared.waiting(); got != c.waits || shared.stale != c.stale {
				t.Errorf("it waits: %v; it has to be looked for: %v", got, shared.stale)
			}
		})
	}
}

// A thread that has ended does not come back while proc(5) still lists it. Another one may have its
// number later.
func TestEnded(t *testing.T) {
	const first, second, process = 1 << 28, 1<<28 + 1, 1 << 28 // of no real thread, so it seems to run
	both := []sched.Thread{{Process: process, ID: first}, {Process: process, ID: second}}
	x := new(task)
	running := func(want ...int) {
		t.Helper()
		if got := slices.Sorted(maps.Keys(x.threads)); !slices.Equal(got, want) || x.waiting() != (len(want) == 0) {
			t.Errorf("threads %v, waiting: %v; want %v", got, x.waiting(), want)
		}
	}
	x.list(both)
	running(first, second)
	x.note(record{what: ended, pid: process, tid: second})
	x.list(both)
	running(first)
	x.note(record{what: ended, pid: process, tid: first})
	x.list(both)
	running()
	x.list(both[1:])
	running()
	x.list(both)
	running(first)
	x.note(record{what: begun, pid: process, ppid: process, tid: second})
	x.list(both)
	running(first, second)
	for tid := range manyEnded {
		x.note(record{what: begun, pid: process, ppid: process, tid: tid})
		if x.note(record{what: ended, pid: process, tid: tid}) {
			t.Fatalf("to be listed again after %d ends", tid)
		}
	}
	if !x.note(record{what: ended, pid: process, tid: first}) {
		t.Error("the ends of threads are kept for ever")
	}
}
