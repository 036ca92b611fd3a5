// Package id has a type for each kind of number by which parts of a machine know things, so that no number is taken for one of
// another kind. Messages of the control protocol and structures that are shared with C have plain integers: conversions stand
// where these are read and written.
package id

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
