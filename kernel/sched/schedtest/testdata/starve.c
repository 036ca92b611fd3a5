//go:build ignore

/* starve gives the core to the first task for ever, and does not hold the others. */
#include "margay_ext.h"

SEC("sched") int starve(struct margay_sched *s)
{
	s->quantum = MARGAY_INFINITE;
	s->hold = 0;
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
