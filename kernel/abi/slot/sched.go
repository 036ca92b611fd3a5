package slot

import "fmt"

// MaxTasks is how many processes can share a core.
const MaxTasks = 8

// SchedContext is the context of the sched slot: struct margay_sched. The verdict is the task to
// run; the extension writes its quantum to Quantum and the tasks to keep off the core to Hold. The
// tasks are in order of arrival at the core; a task keeps its place until it ends, when the ones
// behind it move up.
type SchedContext struct {
	Core    uint32 // as the machine numbers them
	Why     Why
	Count   uint32 // tasks; the others are zero
	Target  uint32 // the task that Why is about; NoTask when it is about none, or about one that is gone
	Now     uint64 // nanoseconds of a clock that never goes back
	Quantum uint64 // out: nanoseconds until the next tick, which may be late, and is made up for; Infinite when it comes in
	Hold    uint64 // in and out: bit i is set when task i is kept off the core on purpose
	Tasks   [MaxTasks]SchedTask
}

// SchedTask is one of the processes that share a core: struct margay_task.
type SchedTask struct {
	Job      uint32
	Rank     uint32
	State    TaskState
	Messages uint32 // that wait for it
	Ran      uint64 // nanoseconds of processor time since it came to the core
	Since    uint64 // Now when it came into its state
	Data     uint64 // the extension's own: zero when the task comes, then what the extension left there
}

// SchedSize is the size of SchedContext, in bytes.
const SchedSize = 40 + MaxTasks*40

// Why says why a core's extension is asked.
type Why uint32

// The reasons.
const (
	Tick    Why = 0 // the quantum is over
	Block   Why = 1 // Target, which was running, waits for something now
	Wake    Why = 2 // Target has something to do again, or is new
	Arrival Why = 3 // a message has come for Target
	Ending  Why = 4 // a task has ended
	Change  Why = 5 // the extension is new
)

// TaskState is what a task does.
type TaskState uint32

// The states of a task.
const (
	Ready   TaskState = 0 // it has something to do and does not have the core
	Running TaskState = 1 // it has the core
	Blocked TaskState = 2 // it waits; choosing it has no effect
	Held    TaskState = 3 // it is kept off the core
)

// String names the state.
func (s TaskState) String() string {
	if s > Held {
		return fmt.Sprintf("state %d", uint32(s))
	}
	return [...]string{"ready", "running", "waits", "held"}[s]
}

// NoTask is the Target of a reason that is about no task.
const NoTask = 1<<32 - 1

// Infinite is the quantum of a task that runs until something happens.
const Infinite = 1<<64 - 1

// Default is the verdict of a scheduler that leaves the decision to the next one, finally to the
// node kernel.
const Default Verdict = 255
