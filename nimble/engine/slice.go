package engine

import (
	"margay/nimble/isa"
	"margay/nimble/verify"
)

const (
	// MaxSlice is how much fuel an engine uses at most before it comes back to
	// Go, and so how long it may keep a thread from the Go scheduler.
	MaxSlice = 10_000

	// sliceWeight is the most that the instructions of a slice may weigh, and
	// slow the weight of one that takes as long as many: a division, or an access
	// of memory, which may be in no cache or in that of another core.
	sliceWeight = 20_000
	slow        = 16
)

// weights are those of instructions by Op.
var weights = allWeights()

func allWeights() (all [isa.Ops]uint64) {
	for op := range all {
		if all[op] = 1; isa.Op(op).Size() > 0 {
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

// Slice returns how much fuel a program may use before its engine comes back to
// Go: less than MaxSlice if a block of it, run again and again, would weigh too
// much.
func Slice(p *verify.Program) uint64 {
	cost, heaviest := uint64(1), uint64(0) // of the densest block
	weight := uint64(0)                    // of the block so far
	for slot := p.Len() - 1; slot >= 0; slot-- {
		i := p.At(slot)
		if i.Op != isa.Invalid {
			weight += weights[i.Op]
		}
		if i.Cost > 0 {
			if weight*cost > heaviest*uint64(i.Cost) {
				cost, heaviest = uint64(i.Cost), weight
			}
			weight = 0
		}
	}
	return min(MaxSlice, sliceWeight*cost/heaviest)
}
