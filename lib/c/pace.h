/* pace.h: how a rank waits before it sleeps, in C (package kernel/abi/pace). Times are in
 * nanoseconds. */
#ifndef MARGAY_PACE_H
#define MARGAY_PACE_H

#include <stdint.h>

#include "wire.h"

#define PACE_FIRST 50000   /* it spins for so long, or yields where ranks share CPUs */
#define PACE_ALL 1000000   /* then it yields until so long after the beginning where they do not */
#define PACE_EACH 64       /* polls between two looks at the clock while it spins */
#define PACE_IN_VAIN 8     /* a program that polls so often in vain, one after the other, probably waits */

enum { PACE_SLEEP, PACE_SPIN, PACE_YIELD };

/* pace is the wait of a call; zero is its beginning. */
struct pace {
	int polls;
	int64_t since; /* of the first look at the clock; 0: there was none */
};

/* pace_looks counts a poll in vain and reports whether pace_next needs the time. */
static inline int pace_looks(struct pace *p, uint32_t path)
{
	return (path & WIRE_YIELD) && (++p->polls % PACE_EACH == 0 || !(path & WIRE_SPIN));
}

/* pace_next returns what to do after a poll in vain that pace_looks has counted. now is 0 if that
 * did not need the time; the deadline -1 is none. */
static inline int pace_next(struct pace *p, uint32_t path, int64_t now, int64_t deadline)
{
	if (!(path & WIRE_YIELD))
		return PACE_SLEEP;
	if (!now)
		return PACE_SPIN;
	if (!p->since)
		p->since = now;
	if (deadline >= 0 && now >= deadline)
		return PACE_SLEEP;
	if (now - p->since < PACE_FIRST)
		return path & WIRE_SPIN ? PACE_SPIN : PACE_YIELD;
	if (!(path & WIRE_SPIN) || now - p->since >= PACE_ALL)
		return PACE_SLEEP;
	p->polls = PACE_EACH - 1; /* look each time */
	return PACE_YIELD;
}

/* pace_polled notes a poll of the program, and reports whether it must yield. */
static inline int pace_polled(int *in_vain, uint32_t path, int some)
{
	*in_vain = some ? 0 : *in_vain < PACE_IN_VAIN ? *in_vain + 1 : PACE_IN_VAIN;
	return *in_vain == PACE_IN_VAIN && (path & (WIRE_YIELD | WIRE_SPIN)) == WIRE_YIELD;
}

#endif
