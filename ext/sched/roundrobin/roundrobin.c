//go:build ignore

/* roundrobin gives the tasks turns of the same length: the longest-waiting task is next. */
#include "margay_sched.h"

const volatile __u64 quantum = 10 * MILLISECOND; /* nanoseconds of a turn */

SEC("sched") int roundrobin(struct margay_sched *s)
{
	s->hold = 0;
	return take_turns(s, quantum);
}

char _license[] SEC("license") = "Dual BSD/GPL";
