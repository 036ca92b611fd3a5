// Package sched gives a node's application cores to the processes that share them.
//
// Who is to run is decided by a Policy; an Enforcer makes Linux do that. What a policy is asked and what it may answer is the
// ABI of the sched slot (package slot).
package sched

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"time"

	"margay/kernel/abi/slot"
	"margay/nimble"
	"margay/nimble/memory"
	"margay/nimble/object"
)

// ID names a task on its node.
type ID struct {
	Job  uint32
	Rank uint32
}

// Task is a process that runs on one core and may have to share it. All its threads are bound to that core.
type Task struct {
	ID
	Core    int      // as the machine numbers them
	CPU     int      // Linux's number of that core
	PID     int      // in the node kernel's PID namespace
	Process *os.File // a pidfd of it
	Group   string   // directory of its control group; empty where there is none, and signals have to hold it

	// Waiting tells how many messages wait for it now. nil: only Arrived tells.
	Waiting func() uint32

	// Refuse is told what it has tried and must not do. It waits for nobody. nil: nobody wants to know.
	Refuse func(err error)
}

// Messages returns how many messages wait for the task; told is how many Arrived has told of last.
func (t *Task) Messages(told uint32) uint32 {
	if t.Waiting != nil {
		return t.Waiting()
	}
	return told
}

// Policy is an extension in the sched slot.
type Policy struct {
	Handle uint32
	Name   string
	Spec   *object.Spec   // the program, for an enforcer that gives it to Linux
	Insert nimble.Options // with what it was inserted: its settings, and the memory of its maps

	// Decide runs it on a slot.SchedContext, on behalf of a core. An error is a fault of the extension, which has been counted.
	Decide func(context memory.Region, core int) (slot.Verdict, error)
	// Fault tells that it answered nonsense or had a task wait too long. Enough of that has it removed. Neither it nor Remove
	// waits for the policies to be set anew.
	Fault func(err error)
	// Remove has it removed now.
	Remove func(why string)
	// Ran tells of runs other than those of Decide.
	Ran func(runs uint64, took time.Duration)
}

// Enforcer makes Linux run on the application cores what their policies decide. It is safe for concurrent use.
type Enforcer interface {
	// Name is what people call it.
	Name() string

	// Lacks says which reasons to ask a policy it cannot notice, and why.
	Lacks() map[slot.Why]string

	// Add has a task share its core from now on.
	Add(Task) error

	// Remove lets go of a task, which may have ended. It then runs as Linux likes.
	Remove(ID)

	// SetPolicies has these policies decide on a core, the first that has an opinion. One that cannot be enforced is removed.
	SetPolicies(core int, policies []*Policy) error

	// Arrived tells that so many messages wait for a task, for which the core may change hands at once.
	Arrived(id ID, waiting uint32)

	// Woken tells that the node kernel may have woken a task up, for another reason than a message. It does not wait, and may be
	// called by whoever Task.Waiting waits for.
	Woken(ID)

	// Cores describes the shared cores.
	Cores() []CoreInfo

	// Watch has w told who has each core that several tasks share, and then of every core that changes hands, in the order in which
	// that happens; nobody if it is nil.
	Watch(w Watcher)

	// Close gives everything back to Linux. Held tasks go on.
	Close() error
}

// Watcher is told when a core has gone to another task, or to nobody, which is the zero ID, by the clock that policies see, and who
// has decided so. It must not wait.
type Watcher func(core int, at uint64, to ID, why string)

// Lacks says in words what an enforcer cannot do.
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
	Core     int
	Tasks    []slot.SchedTask
	Running  int    // index of the task that has the core; -1: none
	Switches uint64 // times that it has changed hands
	Asked    uint64 // times that a policy was asked
	Rescues  uint64 // times that a task got its turn only from the floor
	Why      string // who has decided last: a policy by its name, "turns" when none has an opinion, "floor" for a rescue
}
