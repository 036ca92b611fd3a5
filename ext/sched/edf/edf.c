//go:build ignore

/* edf gives each task a slice of processor time in every period of its own, as Kitten's scheduler
 * of that name does: of the tasks with unused slice, the one whose period ends first runs.
 * Unreserved time goes in turns to tasks without a reservation, or to the others if there are none.
 * The slices must fit: the sum of slice / period is at most 1. */
#include "margay_sched.h"

const volatile __u64 quantum = 10 * MILLISECOND; /* nanoseconds of a turn in unreserved time */

/* Reservations in nanoseconds, by order of arrival at the core; a slice of 0 means none. */
const volatile __u64 slice0 = 0, period0 = 100 * MILLISECOND;
const volatile __u64 slice1 = 0, period1 = 100 * MILLISECOND;
const volatile __u64 slice2 = 0, period2 = 100 * MILLISECOND;
const volatile __u64 slice3 = 0, period3 = 100 * MILLISECOND;
const volatile __u64 slice4 = 0, period4 = 100 * MILLISECOND;
const volatile __u64 slice5 = 0, period5 = 100 * MILLISECOND;
const volatile __u64 slice6 = 0, period6 = 100 * MILLISECOND;
const volatile __u64 slice7 = 0, period7 = 100 * MILLISECOND;

/* The state of each task, indexed by its rank. */
struct edf_task {
	__u32 job;
	__u32 rank;
	__u64 deadline; /* when its period ends */
	__u64 ran;      /* processor time that it had had when its period began */
};

#define KNOWN 64

struct {
	MAP_ARRAY;
	MAP_VALUE(struct edf_task);
	MAP_ENTRIES(KNOWN);
} known SEC(".maps");

/* left returns the unused part of a task's slice, after starting its next period if that is due. */
static inline_always __u64 left(const struct margay_sched *s, const struct margay_task *t, struct edf_task *k, __u64 slice,
				__u64 period)
{
	if (k->job != t->job || k->rank != t->rank) {
		k->job = t->job;
		k->rank = t->rank;
		k->deadline = 0;
	}
	if (s->now >= k->deadline) {
		/* Periods follow each other, unless the task missed one. */
		k->deadline = s->now - k->deadline < period ? k->deadline + period : s->now + period;
		k->ran = t->ran;
	}
	return t->ran - k->ran < slice ? slice - (t->ran - k->ran) : 0;
}

SEC("sched") int edf(struct margay_sched *s)
{
	const __u64 slices[MARGAY_TASKS] = { slice0, slice1, slice2, slice3, slice4, slice5, slice6, slice7 };
	const __u64 periods[MARGAY_TASKS] = { period0, period1, period2, period3, period4, period5, period6, period7 };
	__u32 chosen = MARGAY_DEFAULT, spare = MARGAY_DEFAULT, late = MARGAY_DEFAULT;
	__u64 deadline = ~0ull, budget = 0, next = ~0ull, spare_since = ~0ull, late_since = ~0ull;

	s->hold = 0;
	for_each_task(i, s) {
		const struct margay_task *t = &s->tasks[i];
		__u64 slice = slices[i], since = t->state == MARGAY_RUNNING ? s->now : t->since;

		if (!slice) {
			if (wants_core(t) && since < spare_since) {
				spare = i;
				spare_since = since;
			}
			continue;
		}

		__u32 place = t->rank % KNOWN;
		struct edf_task *k = map_lookup(&known, &place);

		if (!k)
			continue;

		__u64 rest = left(s, t, k, slice, periods[i]);

		if (k->deadline < next)
			next = k->deadline;
		if (!wants_core(t))
			continue;
		if (rest && k->deadline < deadline) {
			chosen = i;
			deadline = k->deadline;
			budget = rest;
		} else if (!rest && since < late_since) {
			late = i;
			late_since = since;
		}
	}
	if (chosen == MARGAY_DEFAULT) {
		chosen = spare != MARGAY_DEFAULT ? spare : late;
		budget = quantum;
	}
	/* When a period ends, another task may have the earliest deadline. */
	s->quantum = next - s->now < budget ? next - s->now : budget;
	return chosen;
}

char _license[] SEC("license") = "Dual BSD/GPL";
