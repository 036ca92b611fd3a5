package slot

// BootContext is what an extension in the boot slot gets: struct margay_boot.
type BootContext struct {
	Node    uint32
	Cores   uint32   // for applications
	Memory  uint64   // bytes for jobs
	Machine [64]byte // its name; the rest is zero
}

// BootSize is the size of BootContext, in bytes.
const BootSize = 80

// TimerContext is what an extension in the timer slot gets: struct margay_timer. It is run when it
// has been inserted, and then at the intervals that it writes into Interval.
type TimerContext struct {
	Node     uint32
	Job      uint32 // whose the extension is; 0: the machine's
	Now      uint64 // nanoseconds of a clock that never goes back
	Runs     uint64 // times that it was run before
	Missed   uint64 // times that it should have been run since the last time
	Interval uint64 // in and out: nanoseconds, at least MinInterval; it comes in as it was left, at first one second
}

// TimerSize is the size of TimerContext, in bytes.
const TimerSize = 40

// MinInterval is the shortest interval of an extension in the timer slot, in nanoseconds.
const MinInterval = 1_000_000

// ExitContext is what an extension in the slots fault and exit gets: struct margay_exit.
type ExitContext struct {
	Job    uint32
	Rank   uint32
	Node   uint32
	Core   uint32
	Code   uint32 // exit status, when Signal is 0
	Signal uint32 // that ended it
	Left   uint32 // ranks of the job that still run on this node
	_      uint32
	Time   uint64 // run time in nanoseconds
}

// ExitSize is the size of ExitContext, in bytes.
const ExitSize = 40
