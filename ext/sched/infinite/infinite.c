//go:build ignore

/* infinite lets the task that has the core keep it until it waits for something or ends. The others that have something to do
 * are held meanwhile: they are not there for Linux, and nothing interrupts the one that runs. */
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
