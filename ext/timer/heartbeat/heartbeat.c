//go:build ignore

/* heartbeat counts intervals and their delays, which show other load of a node's system core. */
#include "margay_ext.h"

const volatile __u64 interval = 10000000; /* nanoseconds */
const volatile __u64 beats = 0;           /* after so many it stops; 0: never */

struct heartbeat {
	__u64 beats;
	__u64 missed; /* intervals without a beat */
	__u64 late;   /* nanoseconds that the latest beat was late */
	__u64 first;  /* when the first beat was */
	__u64 last;   /* and the last */
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct heartbeat);
	MAP_ENTRIES(1);
} heartbeats SEC(".maps");

SEC("timer") int heartbeat(struct margay_timer *t)
{
	__u32 zero = 0;
	struct heartbeat *h = map_lookup(&heartbeats, &zero);

	t->interval = interval;
	if (!h)
		return MARGAY_STOP;
	if (t->runs) {
		__u64 late = t->now - h->last - (1 + t->missed) * interval;

		if ((__s64)late > (__s64)h->late)
			h->late = late;
	} else {
		h->first = t->now;
	}
	h->beats++;
	h->missed += t->missed;
	h->last = t->now;
	return beats && h->beats >= beats ? MARGAY_STOP : MARGAY_CONTINUE;
}

char _license[] SEC("license") = "Dual BSD/GPL";
