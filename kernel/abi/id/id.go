// Package id has a type for each kind of number by which parts of a machine know things, and one for times, so that none is taken for
// one of another kind. Messages of the control protocol and structures that are shared with C have plain integers: conversions stand
// where these are read and written.
package id

import "time"

// Node is a node's number in its machine, from 0.
type Node uint32

// Job is a job's number in its machine, from 1. 0 stands for the machine itself, or for no job.
type Job uint32

// Rank is the number of a process in its job, from 0.
type Rank uint32

// Core is the number of a core as the machine counts them: on each node 0 is the system's, and 1, 2 ... are the application's.
type Core uint32

// CPU is Linux's number of a CPU.
type CPU int

// Handle is the number of an extension on its node, from 1. 0 stands for none.
type Handle uint32

// Time is a time of a node's clock: nanoseconds of CLOCK_MONOTONIC, which is what an extension gets of ktime_get_ns and Linux puts
// into the records of its events.
type Time uint64

// Add returns the time d after t.
func (t Time) Add(d time.Duration) Time { return t + Time(d) }

// Sub returns the time from other to t.
func (t Time) Sub(other Time) time.Duration { return time.Duration(t - other) }
