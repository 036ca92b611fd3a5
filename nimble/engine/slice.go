package engine

import "margay/nimble/verify"

const (
	// MaxSlice is the most fuel that an engine uses before it returns to Go. It
	// bounds how long an engine may keep a thread from the Go scheduler.
	MaxSlice = 10_000

	// sliceWeight bounds the total weight of the instructions of a slice. Most
	// instructions weigh 1. slow is the weight of a division and of a memory
	// access, which may miss every cache.
	sliceWeight = 20_000
	slow        = 16

	// MinSlice is the least that Slice returns.
	MinSlice = sliceWeight / slow
)

// Slice returns the fuel that a program may use before its engine returns to Go:
// less than MaxSlice if a slice filled with its slowest block would weigh too
// much.
func Slice(p *verify.Program) uint64 {
	block := p.Slowest()
	cost, weight := uint64(block.Cost), uint64(block.Cost)+(slow-1)*uint64(block.Slow)
	if weight*MaxSlice <= sliceWeight*cost {
		return MaxSlice
	}
	return sliceWeight * cost / weight
}
