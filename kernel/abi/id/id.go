// Package id has a type for each kind of number that identifies a part of a machine, and one for
// times, so that the compiler refuses one kind in place of another. Messages of the control
// protocol and structures shared with C have plain integers; they are converted where they are read
// and written.
package id

import (
	"fmt"
	"time"
)

// Node is a node's number in its machine, from 0.
type Node uint32

// Job is a job's number in its machine, from 1. 0 stands for the machine itself, or for no job.
type Job uint32

// Rank is the number of a process in its job, from 0.
type Rank uint32

// EndedError is the error of a message to a rank that has ended.
type EndedError struct {
	Rank Rank
	Node Node
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("rank %d on node%d, which has ended", e.Rank, e.Node)
}

// Core is the number of a core on its node. 0 is the system core, and 1, 2 ... are the application
// cores.
type Core uint32

// CPU is the number of a CPU in Linux.
type CPU int

// Handle is the number of an extension on its node, from 1. 0 stands for none.
type Handle uint32

// Time is a time on a node's clock: nanoseconds of CLOCK_MONOTONIC. Extensions get the same clock
// from ktime_get_ns, and Linux stamps its event records with it.
type Time uint64

// Add returns the time d after t.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns the time from other to t.
func (t Time) Sub(other Time) time.Duration { return time.Duration(t - other) }
