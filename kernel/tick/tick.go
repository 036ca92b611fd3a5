// Package tick turns off timer ticks that Linux has left on by mistake.
//
// Linux stops the tick of a CPU in nohz_full while only one thread is runnable there. It
// reconsiders that only when the number of runnable threads changes. A tick that was needed for
// another reason, such as the fair server (Linux 6.12) on a CPU that real-time threads have used,
// then continues for as long as the thread computes: 250 interrupts a second instead of none. In
// that time the trace event timer/tick_stop shows the dependency SCHED. A change of the thread's
// scheduling attributes dequeues and requeues it, so that Linux reconsiders.
//
// Seen with two ranks of one core under the policy infinite, on an emulated node whose host was
// overloaded: about one such job in twenty kept its tick for as long as it ran.
package tick

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/hardware"
	"margay/kernel/sched"
)

// interval is the time between two readings of the interrupt counts.
const interval = time.Second

// often is the number of interrupts per interval that counts as a tick. Linux ticks 100 to 1,000
// times a second; an emulated CPU on a busy host sees fewer.
const often = 25

// maxPause bounds the back-off after an attempt without effect, in intervals: the tick may be
// needed.
const maxPause = 64

// cpu is the state of one CPU.
type cpu struct {
	pause int // intervals to skip after the last attempt
	wait  int // intervals left to skip
}

// look takes the number of interrupts in the last interval, and reports whether to requeue the
// threads of the CPU.
func (c *cpu) look(interrupts uint64) bool {
	switch {
	case interrupts < often:
		*c = cpu{}
		return false
	case c.wait > 0:
		c.wait--
		return false
	}
	c.pause = min(max(1, 2*c.pause), maxPause)
	c.wait = c.pause
	return true
}

// Watch checks the CPUs in nohz_full once a second until ctx ends, and makes Linux reconsider a
// tick that continues while a rank computes. tasks returns the processes of ranks by their CPU. On
// a Linux without such CPUs Watch returns at once.
func Watch(ctx context.Context, tasks func() map[id.CPU][]int) error {
	quiet, err := nohzFull()
	if err != nil || len(quiet) == 0 {
		return err
	}
	cpus := make(map[id.CPU]*cpu)
	for _, number := range quiet {
		cpus[number] = new(cpu)
	}
	clock := time.NewTicker(interval)
	defer clock.Stop()
	var before *hardware.Interrupts // nil: no rank ran in the last interval
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
		}
		running := tasks()
		if len(running) == 0 {
			before = nil
			continue
		}
		now, err := hardware.ReadInterrupts()
		if err != nil {
			return err
		}
		if before != nil {
			compare(cpus, *before, now, running)
		}
		before = &now
	}
}

// compare computes the interrupts of each CPU between two readings, and requeues the threads of the
// ranks on CPUs that tick.
func compare(cpus map[id.CPU]*cpu, before, now hardware.Interrupts, running map[id.CPU][]int) {
	for number, c := range cpus {
		count, _ := now.Since(before, number)
		if !c.look(count) || extended() {
			continue
		}
		for _, pid := range running[number] {
			for _, t := range sched.Threads(pid) {
				_ = requeue(t.ID) // it may have ended
			}
		}
	}
}

// nohzFull returns the CPUs whose tick Linux may stop.
func nohzFull() ([]id.CPU, error) {
	text, err := os.ReadFile("/sys/devices/system/cpu/nohz_full")
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("tick: %w", err)
	}
	list := strings.TrimSpace(string(text))
	if list == "(null)" { // Linux prints an empty list so
		return nil, nil
	}
	cpus, err := hardware.ParseList(list)
	if err != nil {
		return nil, fmt.Errorf("tick: CPUs in nohz_full: %w", err)
	}
	return cpus, nil
}

// extended reports whether a sched_ext scheduler is attached. It would see the change of
// attributes, and it controls ticks itself.
func extended() bool {
	text, err := os.ReadFile("/sys/kernel/sched_ext/state")
	return err == nil && strings.TrimSpace(string(text)) != "disabled"
}

// requeue dequeues and requeues a thread of an ordinary policy by changing its time slice by a
// nanosecond and back. It leaves other threads alone: a single real-time thread needs no tick.
func requeue(tid int) error {
	attr, err := unix.SchedGetAttr(tid, 0)
	if err != nil {
		return fmt.Errorf("tick: attributes of thread %d: %w", tid, err)
	}
	if attr.Policy != unix.SCHED_NORMAL && attr.Policy != unix.SCHED_BATCH {
		return nil
	}
	slice := attr.Runtime
	for _, attr.Runtime = range []uint64{slice ^ 1, slice} {
		if err := unix.SchedSetAttr(tid, attr, 0); err != nil {
			return fmt.Errorf("tick: requeue thread %d: %w", tid, err)
		}
	}
	return nil
}
