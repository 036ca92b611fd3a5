/* Functions shared by schedulers. */
#ifndef MARGAY_SCHED_H
#define MARGAY_SCHED_H

#include "margay_ext.h"

#define MILLISECOND 1000000ull

#define for_each_task(i, s) for (__u32 i = 0; i < MARGAY_TASKS && i < (s)->count; i++)

/* wants_core reports whether a task would run if it were chosen. */
static inline_always int wants_core(const struct margay_task *t)
{
	return t->state == MARGAY_READY || t->state == MARGAY_RUNNING;
}

/* running_task returns the task that has the core, or MARGAY_DEFAULT. */
static inline_always __u32 running_task(const struct margay_sched *s)
{
	__u32 found = MARGAY_DEFAULT;

	for_each_task(i, s)
		if (s->tasks[i].state == MARGAY_RUNNING)
			found = i;
	return found;
}

/* longest_waiting returns the task that has been ready for the longest time, or MARGAY_DEFAULT. */
static inline_always __u32 longest_waiting(const struct margay_sched *s)
{
	__u32 found = MARGAY_DEFAULT;
	__u64 since = ~0ull;

	for_each_task(i, s)
		if (s->tasks[i].state == MARGAY_READY && s->tasks[i].since < since) {
			since = s->tasks[i].since;
			found = i;
		}
	return found;
}

/* take_turns gives each task the core for a quantum, the longest-waiting task first. A task in the
 * middle of a turn keeps the core until the turn ends. */
static inline_always __u32 take_turns(struct margay_sched *s, __u64 quantum)
{
	__u32 running = running_task(s);
	__u32 next = longest_waiting(s);

	s->quantum = quantum;
	if (running >= MARGAY_TASKS)
		return next;
	if (next == MARGAY_DEFAULT)
		return running;
	if (s->why != MARGAY_TICK) {
		__u64 used = s->now - s->tasks[running].since;

		if (used < quantum) {
			s->quantum = quantum - used;
			return running;
		}
	}
	return next;
}

#endif
