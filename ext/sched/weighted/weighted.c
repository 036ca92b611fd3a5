//go:build ignore

/* weighted gives each task processor time in proportion to its weight: the task with the least time
 * per weight is next. A task that wakes starts level with that one, so that it cannot save up time.
 *
 * Virtual time of a task is (ran - data) / weight. */
#include "margay_sched.h"

const volatile __u64 quantum = 10 * MILLISECOND; /* nanoseconds of a turn */

/* Weights, by order of arrival at the core; at least 1. */
const volatile __u32 weight0 = 3;
const volatile __u32 weight1 = 1;
const volatile __u32 weight2 = 1;
const volatile __u32 weight3 = 1;
const volatile __u32 weight4 = 1;
const volatile __u32 weight5 = 1;
const volatile __u32 weight6 = 1;
const volatile __u32 weight7 = 1;

static inline_always __u64 weight(__u32 task)
{
	const __u32 weights[MARGAY_TASKS] = { weight0, weight1, weight2, weight3, weight4, weight5, weight6, weight7 };
	__u32 w = weights[task % MARGAY_TASKS];

	return w ? w : 1;
}

static inline_always __u64 virtual_time(const struct margay_sched *s, __u32 task)
{
	return (s->tasks[task].ran - s->tasks[task].data) / weight(task);
}

/* least returns the task with the least virtual time among the tasks that want the core, except
 * one. */
static inline_always __u32 least(const struct margay_sched *s, __u32 except)
{
	__u32 found = MARGAY_DEFAULT;
	__u64 time = ~0ull;

	for_each_task(i, s)
		if (i != except && wants_core(&s->tasks[i]) && virtual_time(s, i) < time) {
			time = virtual_time(s, i);
			found = i;
		}
	return found;
}

SEC("sched") int weighted(struct margay_sched *s)
{
	__u32 target = s->target;

	if (s->why == MARGAY_CHANGE) /* what was before does not count */
		for_each_task(i, s)
			s->tasks[i].data = s->tasks[i].ran;
	if (s->why == MARGAY_WAKE && target < MARGAY_TASKS) {
		__u32 other = least(s, target);

		if (other < MARGAY_TASKS && virtual_time(s, target) < virtual_time(s, other))
			s->tasks[target].data = s->tasks[target].ran - virtual_time(s, other) * weight(target);
	}
	s->quantum = quantum;
	s->hold = 0;
	return least(s, MARGAY_DEFAULT);
}

char _license[] SEC("license") = "Dual BSD/GPL";
