package direct

// start runs handlers from the first cell of a run on until they leave, with
// left fuel of a slice: r1 to r5 are the arguments, r10 is as it is in k and the
// other registers are 0. It returns r0, why they left and the fuel that is left.
func start(k *cpu, at *cell, left int64, args *[5]uint64) (r0 uint64, why reason, rest int64) {
	k.left = left
	begin(k, at, args)
	return k.reg[0], k.reason, k.left
}

// enter is start for any cell, with the registers as they are in k.
func enter(k *cpu, at *cell, left int64, _ *[5]uint64) (r0 uint64, why reason, rest int64) {
	k.left = left
	resume(k, at)
	return k.reg[0], k.reason, k.left
}

//go:noescape
func begin(k *cpu, at *cell, args *[5]uint64)

//go:noescape
func resume(k *cpu, at *cell)
