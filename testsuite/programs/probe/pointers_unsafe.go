package main

import (
	"fmt"
	"unsafe"

	"margay/lib/margay"
)

// pointers lets each rank point to memory of its own in a region of its node, and read the targets
// of all others there.
func pointers([]string) error {
	job, err := margay.Init()
	if err != nil {
		return err
	}
	const own = 4096
	region, err := job.FixedRegion("pointers", own*(1+job.LocalSize()))
	if err != nil {
		return err
	}
	table := unsafe.Slice((**uint64)(unsafe.Pointer(&region.Bytes[0])), job.LocalSize())
	mine := (*uint64)(unsafe.Pointer(&region.Bytes[own*(1+job.LocalRank())]))
	*mine = uint64(1 + job.Rank())
	table[job.LocalRank()] = mine
	if err := job.Barrier(ctx); err != nil {
		return err
	}
	sum := uint64(0)
	for _, p := range table {
		sum += *p
	}
	fmt.Printf("node%d: %d ranks point to a sum of %d\n", job.Node(), job.LocalSize(), sum)
	return job.Finalize(ctx)
}
