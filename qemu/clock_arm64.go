package qemu

// tickRate returns 0: the processor reports the rate of its counter in CNTFRQ_EL0, and so does an
// emulated one.
func tickRate() uint64 { return 0 }
