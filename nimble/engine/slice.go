package engine

import (
	"margay/nimble/isa"
	"margay/nimble/verify"
)

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

// weights holds the weight of each instruction by Op, 0 for isa.Invalid.
var weights = allWeights()

func allWeights() (all [isa.Ops]uint64) {
	for op := isa.Invalid + 1; int(op) < isa.Ops; op++ {
		if all[op] = 1; op.Size() > 0 {
			all[op] = slow
		}
	}
	for _, op := range []isa.Op{
		isa.DivK, isa.DivX, isa.SDivK, isa.SDivX, isa.ModK, isa.ModX, isa.SModK, isa.SModX,
		isa.Div32K, isa.Div32X, isa.SDiv32K, isa.SDiv32X, isa.Mod32K, isa.Mod32X, isa.SMod32K, isa.SMod32X,
	} {
		all[op] = slow
	}
	return all
}

// Slice returns the fuel that a program may use before its engine returns to Go:
// less than MaxSlice if a slice filled with its heaviest block would weigh too
// much.
func Slice(p *verify.Program) uint64 {
	cost, weight := uint64(MaxSlice), uint64(sliceWeight) // of the heaviest block
	sum := uint64(0)                                      // weight of the block so far
	for slot := p.Len() - 1; slot >= 0; slot-- {
		i := p.At(slot)
		sum += weights[i.Op]
		if i.Cost == 0 {
			continue
		}
		if sum*cost > weight*uint64(i.Cost) {
			cost, weight = uint64(i.Cost), sum
		}
		sum = 0
	}
	return sliceWeight * cost / weight
}
