// Package ledger keeps the history of a user's machines: a record of each job that has ended, in
// files that outlive the machine.
//
// Each machine of a user has a folder named after it, with the file jobs.jsonl and its older parts
// jobs.1.jsonl, jobs.2.jsonl and so on. A record is a line of JSON with a checksum:
//
//	{"crc32c":"9ae0daaf","record":{"machine":"default","run":"4a53...","job":7,...}}
//
// Append writes whole lines. When the newest file is full, the files are renamed and the oldest
// one is replaced. A line that a killed writer has left incomplete is closed by the next one, and
// Newest skips it because of its checksum. So a record is in the history as soon as Append has
// returned. It is on the disk when Linux has written it there, as are the records of serve.
//
// The number of records that were lost after the newest one is the size of the file lock, which has
// no bytes: a full disk has no room for them. The next record has it in Lost.
//
// Several machines may have one name, in several folders of machines, so Append and Newest lock
// the file lock in the folder. A record can be appended twice when serve is killed between the
// record and its note of it; Newest returns the last one of each job.
package ledger

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"margay/cluster/site"
	"margay/internal/machinename"
)

// Record describes a job that has ended.
type Record struct {
	Machine   string    `json:"machine"`
	Run       string    `json:"run"` // the life of the machine: job numbers begin at 1 in each
	Job       uint32    `json:"job"`
	Array     uint32    `json:"array,omitempty"` // the first job of its array; 0: it is not a task
	Task      *uint32   `json:"task,omitempty"`  // its number in the array; nil: it is not a task
	User      string    `json:"user"`
	UID       uint32    `json:"uid"`
	Command   string    `json:"command"`
	Detached  bool      `json:"detached"`
	Submitted time.Time `json:"submitted"` // when serve was asked for it
	Started   time.Time `json:"started"`   // when it got its cores
	Ended     time.Time `json:"ended"`
	Ranks     uint32    `json:"ranks"`
	Cores     uint32    `json:"cores"`  // of each rank; 1 also if ranks share cores
	Nodes     string    `json:"nodes"`  // a set of nodes: 0-3,10
	Places    string    `json:"places"` // the nodes of its ranks (Places)
	State     State     `json:"state"`
	Status    int32     `json:"status"` // exit status, as margay run has it
	Reason    string    `json:"reason"` // why it failed as a whole; empty: it did not
	Failed    uint32    `json:"failed"` // how many ranks did not end with status 0
	Ends      []End     `json:"ends"`   // how these ended; at most MaxEnds groups: first the group with the rank that failed first, then the others by their lowest ranks
	Phases    []Phase   `json:"phases"` // of its launch, its run and its end; none if serve was restarted
	Usage     Usage     `json:"usage"`
	Lost      uint64    `json:"lost"` // how many records before this one could not be written
}

// State says in a word how a job ended.
type State string

// The states. A job with several reasons has the first that applies.
const (
	TimedOut  State = "timeout"   // at its time limit
	Killed    State = "killed"    // by margay kill --force
	Down      State = "down"      // with its machine
	NodeLost  State = "node-lost" // with a node
	Failure   State = "failed"    // with another status than 0
	Completed State = "completed"
)

// States are all states.
var States = []State{Completed, Failure, Killed, TimedOut, NodeLost, Down}

// MaxEnds bounds the groups of ranks in a record.
const MaxEnds = 32

// End is how some ranks ended alike.
type End struct {
	Ranks  string `json:"ranks"`  // 0-3,7
	Status int32  `json:"status"` // exit status; 0 with a signal
	Signal int32  `json:"signal"`
	Reason string `json:"reason"` // empty: none is known
	Ended  bool   `json:"ended"`  // false: the end was not reported, and the rank ended with the job
}

// Phase is the duration of a phase, as margay run --timing has it.
type Phase struct {
	Phase  string  `json:"phase"`
	TimeNs int64   `json:"time_ns"`
	NodeNs int64   `json:"node_ns"` // how long the slowest node has worked on it
	Node   *uint32 `json:"node"`    // that node; nil for none
}

// Usage is the sum over all ranks whose end was reported.
type Usage struct {
	Ranks       uint32 `json:"ranks"` // how many these are
	UserNs      int64  `json:"user_ns"`
	SystemNs    int64  `json:"system_ns"`
	MajorFaults int64  `json:"major_faults"`
	MinorFaults int64  `json:"minor_faults"`
	Yields      int64  `json:"yields"`
	Preemptions int64  `json:"preemptions"`
}

// Base returns the absolute path of the folder of all histories of this user (site.State). It need
// not exist.
func Base() (string, error) {
	state, err := site.State()
	if err != nil {
		return "", fmt.Errorf("folder of histories: %w", err)
	}
	return filepath.Join(state, "history"), nil
}

// Machines returns the names of the machines that have a history below base, sorted.
func Machines(base string) (names []string, err error) {
	entries, err := os.ReadDir(base)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, e := range entries {
		if e.IsDir() && machinename.Valid(e.Name()) {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}
