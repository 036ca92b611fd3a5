//go:build ignore

/* nonsense chooses a task that is not there, holds the one that it chooses, and names no task at all, by turns. */
#include "margay_ext.h"

static __u32 turn;

SEC("sched") int nonsense(struct margay_sched *s)
{
	turn++;
	s->quantum = turn;
	s->hold = ~0ull;
	if (turn % 3 == 0)
		return s->count;
	return turn % 3 == 1 ? 0 : 77;
}

char _license[] SEC("license") = "Dual BSD/GPL";
