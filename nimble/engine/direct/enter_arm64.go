package direct

// start runs handlers from the first cell of a run on, with left fuel of a slice:
// r1 to r5 are the arguments, r10 is taken from k and the other registers are 0.
// It returns r0, why handlers returned, and the rest of the fuel.
func start(k *cpu, at *cell, left int64, args *[5]uint64) (r0 uint64, why reason, rest int64) {
	k.left = left
	begin(k, at, args)
	return k.reg[0], k.reason, k.left
}

// enter is start for any cell, with all registers taken from k.
func enter(k *cpu, at *cell, left int64, _ *[5]uint64) (r0 uint64, why reason, rest int64) {
	k.left = left
	resume(k, at)
	return k.reg[0], k.reason, k.left
}

//go:noescape
func begin(k *cpu, at *cell, args *[5]uint64)

//go:noescape
func resume(k *cpu, at *cell)
