//go:build ignore

/* infinite lets the running task keep the core until it waits or ends. Other ready tasks are held:
 * Linux does not see them, and nothing interrupts the running task. */
#include "margay_sched.h"

SEC("sched") int infinite(struct margay_sched *s)
{
	__u32 chosen = running_task(s);

	if (chosen == MARGAY_DEFAULT)
		chosen = longest_waiting(s);
	if (chosen == MARGAY_DEFAULT)
		for_each_task(i, s)
			if (s->tasks[i].state == MARGAY_HELD) {
				chosen = i;
				break;
			}
	s->quantum = MARGAY_INFINITE;
	s->hold = 0;
	for_each_task(i, s)
		if (i != chosen && s->tasks[i].state != MARGAY_BLOCKED)
			s->hold |= 1ull << i;
	return chosen;
}

char _license[] SEC("license") = "Dual BSD/GPL";
