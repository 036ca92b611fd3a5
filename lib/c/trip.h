/* trip.h: estimates of the round trip of datagrams, in C (kernel/abi/trip). Times are in
 * nanoseconds. */
#ifndef MARGAY_TRIP_H
#define MARGAY_TRIP_H

#include <stdint.h>

struct trip {
	int64_t smoothed; /* 0: none was measured */
	int64_t varies;
};

/* trip_sample takes a measured round trip (RFC 6298, 2.2 and 2.3). */
static inline void trip_sample(struct trip *t, int64_t took)
{
	if (took < 1)
		took = 1;
	if (!t->smoothed) {
		t->smoothed = took;
		t->varies = took / 2;
		return;
	}
	int64_t off = t->smoothed > took ? t->smoothed - took : took - t->smoothed;
	t->varies = (3 * t->varies + off) / 4;
	t->smoothed = (7 * t->smoothed + took) / 8;
}

/* trip_bounds are the times of a protocol. */
struct trip_bounds {
	int64_t first, least, most, delay;
};

/* trip_timeout returns the retransmission time-out after so many others without an answer
 * (RFC 6298, 2.3 and 5.5). */
static inline int64_t trip_timeout(const struct trip *t, struct trip_bounds b, int others)
{
	int64_t timeout = b.first;
	if (t->smoothed) {
		timeout = t->smoothed + 4 * t->varies + b.delay;
		if (timeout < b.least)
			timeout = b.least;
	}
	for (; others > 0 && timeout < b.most; others--)
		timeout *= 2;
	return timeout < b.most ? timeout : b.most;
}

#endif
