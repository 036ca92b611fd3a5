// Package sched schedules the processes that share a node's application cores.
//
// A Policy decides which task runs; an Enforcer makes Linux follow. The ABI of the sched slot
// (package slot) defines the input and the answers of a policy.
package sched

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/memory"
	"margay/nimble/object"
)

// ID names a task on its node.
type ID struct {
	Job  id.Job
	Rank id.Rank
}

// Task is a process that runs on one core and may have to share it. All its threads are bound to
// that core.
type Task struct {
	ID
	Core    id.Core  // as the machine numbers them
	CPU     id.CPU   // Linux's number of that core
	PID     int      // in the node kernel's PID namespace
	Process *os.File // a pidfd of it
	Group   string   // directory of its control group; empty where there is none, and signals have to hold it

	// Waiting returns the number of pending messages now. nil: only Arrived reports them.
	Waiting func() uint32

	// Halted reports whether the whole job is stopped by signals; nil: it never is. Stop then
	// resumes nothing that signals hold. What continues the job also resumes tasks that the
	// enforcer holds by signals; they run until it decides next.
	Halted func() bool

	// Untouched says that no enforcer has left the task stopped or with a priority. Add then does
	// not resume it: a signal of its user may have stopped it.
	Untouched bool

	// Refuse receives the task's forbidden attempts. It does not wait. It may be nil.
	Refuse func(err error)
}

// Messages returns the number of pending messages of the task. Its argument is the last number from
// Arrived.
func (t *Task) Messages(told uint32) uint32 {
	if t.Waiting != nil {
		return t.Waiting()
	}
	return told
}

// Policy is an extension in the sched slot.
type Policy struct {
	Handle id.Handle
	Name   string
	Spec   *object.Spec   // the program, for an enforcer that gives it to Linux
	Insert nimble.Options // options of its insertion: its settings, and the memory of its maps

	// Decide runs it on a slot.SchedContext, on behalf of a core. An error is a fault of the
	// extension, which has been counted.
	Decide func(context memory.Region, core id.Core) (slot.Verdict, error)
	// Fault reports an invalid answer or a starved task. Too many faults remove the policy. Neither
	// it nor Remove waits until the policies have been set again.
	Fault func(err error)
	// Remove removes it, with a reason.
	Remove func(why string)
	// Ran reports runs outside Decide.
	Ran func(runs uint64, took time.Duration)
}

// Enforcer makes Linux carry out the decisions of the policies of application cores. It is safe for
// concurrent use.
type Enforcer interface {
	// Name returns its name in messages.
	Name() string

	// Lacks returns the events that it cannot notice, each with the cause.
	Lacks() map[slot.Why]string

	// Add makes a task share its core from now on.
	Add(Task) error

	// Remove releases a task, which may have ended, to Linux's default scheduler.
	Remove(ID)

	// SetPolicies sets the policies of a core. The first one with an opinion decides. Policies that
	// cannot be enforced are removed.
	SetPolicies(core id.Core, policies []*Policy) error

	// Arrived reports the number of pending messages of a task, which may switch the core at once.
	Arrived(id ID, waiting uint32)

	// Woken reports that the node kernel may have woken a task for another reason than a message.
	// It does not wait, and may be called by a goroutine that Task.Waiting waits for.
	Woken(ID)

	// Cores describes the shared cores.
	Cores() []CoreInfo

	// Watch calls w with the running task of each shared core, and then with every switch, in
	// order; a nil w ends that.
	Watch(w Watcher)

	// Close releases all tasks, and resumes held ones.
	Close() error
}

// Watcher receives each switch of a core to another task, or to the zero ID when it becomes idle,
// with the time on the policies' clock and the policy that decided. It must not wait.
type Watcher func(core id.Core, at id.Time, to ID, why string)

// Lacks describes the events that an enforcer cannot notice.
func Lacks(e interface{ Lacks() map[slot.Why]string }) []string {
	what := map[slot.Why]string{
		slot.Tick: "the end of a quantum", slot.Block: "a process that begins to wait", slot.Wake: "a process that wakes up",
		slot.Arrival: "a message", slot.Ending: "the end of a process", slot.Change: "a new scheduler",
	}
	var words []string
	for _, why := range slices.Sorted(maps.Keys(e.Lacks())) {
		words = append(words, fmt.Sprintf("asking schedulers about %s: %s", what[why], e.Lacks()[why]))
	}
	return words
}

// CoreInfo describes a core.
type CoreInfo struct {
	Core     id.Core
	Tasks    []slot.SchedTask
	Running  int    // index of the task that has the core; -1: none
	Switches uint64 // to another task
	Asked    uint64 // calls of policies
	Rescues  uint64 // turns that tasks got only from the starvation limit
	Why      string // the last decider: the name of a policy, "turns" by default, "starvation limit" for a rescue
}
