// Package sim simulates launches of jobs on machines of up to a million nodes, in one process.
//
// An Engine has the simulated time and a queue of events. A model on it, of a job that does nothing
// (Run) or of the files of a job (Load), has the times of a network as LogGP describes it
// (Network), and the times that processors work (Work). Every decision is made by the code of the
// product wherever this is free of input and output: the choice of nodes (serve.Allocate), the
// layout in requests (kernel/abi/layout), the shape of trees (internal/tree), which ends of ranks
// travel together (cluster/records), when a node starts a job init ahead of its job
// (kernel/task/spare), and after which silence a node is dead (serve.Timing). The order of messages
// is a model: of the waves of requests of cluster/serve, and of the copies of cluster/agent, which
// are goroutines there.
//
// Instead of serve that asks each node itself, Run can also use a tree of nodes, which the product
// does not have: this shows where serve alone does not suffice.
//
// All arithmetic that decides about times is of integers, so a result is the same on every machine.
// Nothing here is safe for concurrent use, but different runs may be concurrent.
package sim
