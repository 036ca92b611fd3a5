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
