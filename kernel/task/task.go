// Package task runs the processes of one job on one node.
//
// Each job on a node has an init of its own (package jobinit): PID 1 of the job's PID namespace, in
// mount, IPC, network and UTS namespaces of its own, with a RAM disk as its root. The node kernel
// commands it over a link and never enters the namespaces itself. Whatever must outlive the node
// kernel is with that init: the processes, their unacknowledged output, their exit statuses, their
// shared memory. When the init ends, the kernel ends everything in its PID namespace, so nothing of
// a job can be left behind.
//
// Locks: Pool.mu guards the spare. Container.asking is held during a request to a job init, and
// Container.mu guards the flags of the container's end. Only the outbox's lock is taken under
// Container.asking, and none under the others.
package task

import (
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"margay/internal/printable"
	"margay/kernel/abi/archive"
	"margay/kernel/abi/id"
	"margay/kernel/pmi"
	"margay/kernel/stack"
	"margay/kernel/task/spare"
)

// Spec says what one node has to run for a job. It is plain data.
type Spec struct {
	Exec `json:"-"` // travels apart

	Job      id.Job // the job's number
	Hostname string // what the job sees as the node's name

	Owner    string // of the job: a later job of the same owner may get its init
	UID, GID int    // the job's own; never 0
	User     string // the name for UID in the job's /etc/passwd

	Umask int

	Ranks []Rank // the processes of this node

	Memory   int64          // bytes that the job may use on this node, RAM disk included; 0: no bound
	RAMDisk  int64          // bytes of the job's root file system
	Pids     int            // processes and threads; 0: no bound
	Small    bool           // decline huge pages for programs that do not ask for them
	Host     bool           // the ranks see the programs and the configuration of the node's host, which a hosted node has at node.HostRoot
	Shared   []SharedFolder // folders of the job's client that the ranks see
	Hold     bool           // the ranks are stopped before their first instruction, until SIGCONT to AllRanks
	Collects bool           // Collect follows when the ranks have ended
	Rlimits  bool           // no control group enforces the bounds: let resource limits do what they can

	PMI        *pmi.Config // its ranks find each other by PMI 1, at descriptor PMIFD; nil: they do not
	Hosts      string      // lines of the job's /etc/hosts
	Interfaces []string    // of the job's network namespace, loopback included

	Rest spare.Rest `json:"-"` // before the node starts the init of a later job ahead; no matter for this one

	// Words are the node kernel's own notes about the job, given back to its successor by Adopt.
	Words json.RawMessage
}

// Rank is one process of a job.
type Rank struct {
	Rank  id.Rank
	Cores []id.CPU // the CPUs it may run on; none: wherever the job may
	Env   []string // added to the job's environment
	Stdin bool     // has a standard input that is fed by Stdin; otherwise /dev/null

	// Terminal makes its standard streams a terminal of this size, the controlling one of its
	// session. All that it writes is Stdout then. nil: they are pipes.
	Terminal *Size `json:",omitempty"`
}

// SharedFolder is a folder of a job's client that the ranks see.
type SharedFolder struct {
	Path     string // absolute
	ReadOnly bool
}

// Size is the size of a terminal in characters.
type Size struct{ Rows, Columns uint16 }

// PMIFD is the descriptor of a rank's connection to the process management interface.
const PMIFD = 4

// AllRanks addresses every rank of the job on this node.
const AllRanks = -1

// Stream says what a record holds.
type Stream int

// The kinds of record.
const (
	Stdout Stream = 1 + iota
	Stderr
	Exit
	End // without data; Last means that the output is complete
)

// Record is one numbered piece of what a job says on one node: output as a rank wrote it, a rank's
// end, or the end of all output.
type Record struct {
	Seq    uint64 // 1, 2, 3 ... on each node
	Rank   id.Rank
	Stream Stream
	Data   []byte `json:"-"` // output; not cut at line ends
	Status Status `json:",omitzero"`
	Open   bool   `json:",omitempty"` // of an end: processes that the rank has left behind may still write for it
	Last   bool   `json:",omitempty"` // every rank of the node has ended, and nothing can be written any more
	Acked  uint64 `json:",omitempty"` // every record up to this one had been acknowledged when this one was sent
	Unkept Unkept `json:",omitzero"`  // with Last: files that vanish with the job
}

// Status is how a rank ended.
type Status struct {
	Code   int           // exit code, when Signal is 0
	Signal unix.Signal   `json:",omitempty"` // the signal that ended it
	Reason string        `json:",omitempty"` // more, for people: "out of memory (limit 64 MiB)"
	Time   time.Duration `json:",omitempty"` // how long it ran, in nanoseconds
	Usage  Usage         `json:",omitzero"`
	Fault  *stack.Fault  `json:",omitempty"` // where it was when the signal ended it; nil: not known
}

// Usage is what a rank has used, the processes that it has started and waited for included.
type Usage struct {
	User, System time.Duration // processor time in the program and in Linux
	MajorFaults  int64         // page faults that had to wait for a disk
	MinorFaults  int64         // the others
	Yields       int64         // how often it gave up its core
	Preemptions  int64         // how often its core was taken from it
}

// OK reports whether the rank ended well.
func (s Status) OK() bool { return s.Code == 0 && s.Signal == 0 }

// ExitCode is the status as a shell gives it: the exit code, or 128 and the signal's number.
func (s Status) ExitCode() int {
	if s.Signal != 0 {
		return 128 + int(s.Signal)
	}
	return s.Code
}

func (s Status) String() string {
	text := fmt.Sprintf("exited with status %d", s.Code)
	if s.Signal != 0 {
		text = "was killed by " + printable.Signal(s.Signal)
	}
	if s.Reason != "" {
		text += ": " + s.Reason
	}
	return text
}

// StartError is the reason why a rank's process, or the whole job, could not be started on this
// node.
type StartError struct {
	Rank  int    // AllRanks when it is not about one rank
	Op    string // what was being done
	Errno unix.Errno
	Text  string
}

func (e *StartError) Error() string {
	if e.Rank == AllRanks {
		return fmt.Sprintf("%s: %s", e.Op, e.Text)
	}
	return fmt.Sprintf("rank %d: %s: %s", e.Rank, e.Op, e.Text)
}

// Unwrap makes errors.Is work with the error number of the system call that failed.
func (e *StartError) Unwrap() error {
	if e.Errno == 0 {
		return nil
	}
	return e.Errno
}

// Kinds of the messages between a node kernel and a job init. Requests are answered by their own
// kind or by Failed.
const (
	Strings  = "strings"  // payload: a piece of the job's Exec, before Create; not answered
	Create   = "create"   // CreateBody -> (empty)
	Contents = "contents" // ContentsBody and files that the node has already, before Unpack; not answered
	Unpack   = "unpack"   // payload: a piece of the archive of the job's files (package archive); not answered
	Unpacked = "unpacked" // the archive is complete -> (empty)
	Start    = "start"    // run the ranks -> (empty)
	Signal   = "signal"   // SignalBody; not answered
	Resize   = "resize"   // Size of the terminal; not answered
	Input    = "input"    // InputBody and payload; returned when written
	Ack      = "ack"      // AckBody; not answered
	Rewind   = "rewind"   // send all unacknowledged records and input positions again; not answered
	Finish   = "finish"   // end what the ranks, which have all ended, have left behind; not answered, but output ends
	Collect  = "collect"  // CollectBody and a pipe -> (empty), and the archive of the files into the pipe; ends all processes of the job
	Stacks   = "stacks"   // StacksBody and a pipe -> (empty), and a stack.Report in JSON into the pipe
	Debug    = "debug"    // DebugBody and a stream -> (empty), and package gdb over the stream
	Resync   = "resync"   // from a new node kernel -> the kept items, then Resync with State, then each Process
	Process  = "process"  // from the init: ProcessBody and a pidfd of a running rank; sent at its start and after a Resync
	Content  = "content"  // from the init: ContentsBody and a file that was unpacked
	Output   = "record"   // from the init: Record and payload
	Staged   = "staged"   // from an init: it waits for a job
	Exchange = "exchange" // ExchangeBody and payload: a message of package pmi, in both directions; not answered, may be lost
	Left     = "left"     // from the init: Unkept, before its end
	Failed   = "failed"   // from the init: StartError
	Quit     = "end"      // kill everything and be gone; answered by the end of the link
	Reset    = "reset"    // kill everything and wait for another job, or be gone -> Staged, or the end of the link
)

// Words that follow the command of a job init.
const (
	WithGroup = "group" // it has a descriptor of the control group of the job's ranks
	Ahead     = "ahead" // it has no job yet: it prepares the part that all jobs have in common, sends Staged, and waits
)

// State is a job init's message to a new node kernel.
type State struct {
	Spec    Spec      // without its Exec
	Loaded  bool      // the job's files have been unpacked, all of them
	Started bool      // the ranks have been started, all of them
	Halted  bool      // the job is stopped: SIGSTOP was sent to AllRanks, and no SIGCONT since
	Running []id.Rank // the ranks that have not ended
}

// ProcessBody comes with a pidfd. It has the rank and the start time of the process: nanoseconds of
// CLOCK_MONOTONIC.
type ProcessBody struct {
	Rank  id.Rank
	Since id.Time
}

// SignalBody asks for a signal to a rank's process, or to all.
type SignalBody struct {
	Rank   int // a rank, or AllRanks
	Signal unix.Signal
}

// InputBody is a piece of a rank's standard input, or reports the position written.
type InputBody struct {
	Rank   id.Rank
	Offset uint64 // of the payload's first byte; in the report: bytes written or discarded so far
	EOF    bool   // nothing follows the payload
}

// ExchangeBody names the node to which a message of package pmi goes, or from which it comes.
type ExchangeBody struct{ Place int }

// Unkept are files that ranks have written and that vanish with the job.
type Unkept struct {
	Files uint64   // how many
	Names []string // of some of them, fit for a terminal; those below the working directory come first and are relative to it
	More  bool     // there were too many files to look at all
}

// ContentsBody names the contents of the files that come with it, in the same order.
type ContentsBody struct {
	Digests []archive.Digest
	Folder  string // where the node has the files mounted, under the names of their digests; empty: nowhere
}

// CollectBody names files and folders that ranks may have written: absolute paths.
type CollectBody struct{ Paths [][]byte }

// StacksBody names the ranks whose stacks are wanted. None: all ranks of the node.
type StacksBody struct {
	Ranks   []id.Rank
	Layouts []stack.GoLayout // of programs whose goroutines are wanted
}

// DebugBody names the rank that a debugger wants.
type DebugBody struct{ Rank id.Rank }

// AckBody acknowledges every record up to Seq.
type AckBody struct{ Seq uint64 }

// ShareLink is the name under which the ends of the link to the job's relay (package relay) are
// kept in the job init: the relay's, and the node kernel's. Each message on it has a stream to the
// job's client.
const ShareLink = "share"

// AppFile is the name under which the application's end of rank's socket is kept in the job init.
func AppFile(rank id.Rank) string { return fmt.Sprintf("rank/%d/app", rank) }
