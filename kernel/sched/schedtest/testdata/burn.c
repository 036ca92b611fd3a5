//go:build ignore

/* burn uses up whatever fuel it gets. Linux sees at once that it does not end, and does not follow a million rounds to find out. */
#include "margay_ext.h"

SEC("sched") int burn(struct margay_sched *s)
{
	for (;;)
		asm volatile("");
}

char _license[] SEC("license") = "Dual BSD/GPL";
