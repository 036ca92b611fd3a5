//go:build ignore

/* message-first gives the core to a task as soon as a message arrives for it, and takes it away
 * when its messages have been handled. Without messages the tasks take turns. */
#include "margay_sched.h"

const volatile __u64 quantum = 10 * MILLISECOND; /* nanoseconds of a turn without messages */
const volatile __u64 look = 1 * MILLISECOND;     /* nanoseconds until it is asked again whether messages still wait */

SEC("sched") int message_first(struct margay_sched *s)
{
	__u32 first = MARGAY_DEFAULT;
	__u64 since = ~0ull;

	s->hold = 0;
	for_each_task(i, s) {
		const struct margay_task *t = &s->tasks[i];

		if (!t->messages || !wants_core(t))
			continue;
		if (t->state == MARGAY_RUNNING) { /* it is at it */
			first = i;
			break;
		}
		if (t->since < since) {
			since = t->since;
			first = i;
		}
	}
	if (first == MARGAY_DEFAULT)
		return take_turns(s, quantum);
	s->quantum = look;
	return first;
}

char _license[] SEC("license") = "Dual BSD/GPL";
