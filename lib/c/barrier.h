/* barrier.h: which barriers are tried on the boards, and the exchange of outcomes between the
 * leaders of nodes, in C (kernel/abi/wire, Turns; lib/collective, Exchange). The other leaders may
 * send anything at any time. */
#ifndef MARGAY_BARRIER_H
#define MARGAY_BARRIER_H

#include <stdint.h>
#include <string.h>

#include "wire.h"

/* turns decides which barriers are tried. */
struct turns {
	int left; /* barriers that are not tried */
	int next; /* that will not be tried after the next one that is not quiet */
};

/* turns_try reports whether the next barrier is tried on the boards. */
static inline int turns_try(struct turns *t)
{
	if (t->left > 0) {
		t->left--;
		return 0;
	}
	return 1;
}

/* turns_judge notes how a barrier has ended that was tried. */
static inline void turns_judge(struct turns *t, int quiet)
{
	if (quiet) {
		t->next = 0;
		return;
	}
	t->left = t->next;
	t->next = 2 * t->next + 1 < WIRE_MOST_SKIPPED ? 2 * t->next + 1 : WIRE_MOST_SKIPPED;
}

/* exchange is a leader's part in the barriers of a job with several nodes. */
struct exchange {
	int *leaders; /* ranks by place, NULL: this rank leads no node */
	int count, place, rounds;

	uint64_t number; /* of the last barrier that was begun */
	int outcome;     /* that this leader knows so far */
	int sent;        /* rounds of it in which the note was sent */
	int taken;       /* rounds of it whose notes are part of outcome */

	/* The notes for the last barrier and the next one, by the number's lowest bit and the round;
	 * 0: it has not come. */
	unsigned char came[2][WIRE_MAX_ROUNDS];
};

/* exchange_at returns the leader so many places behind this one. */
static inline int exchange_at(const struct exchange *e, int64_t step)
{
	return e->leaders[((e->place + step) % e->count + e->count) % e->count];
}

/* exchange_take takes the notes that have come, in the order of rounds, up to the last round in
 * which this leader has sent its own. */
static inline void exchange_take(struct exchange *e)
{
	for (; e->taken < e->sent; e->taken++) {
		int v = e->came[e->number & 1][e->taken];
		if (!v)
			return;
		if (e->outcome < v)
			e->outcome = v;
	}
}

/* exchange_begin begins the next barrier, which the ranks of this node have entered so. */
static inline void exchange_begin(struct exchange *e, uint64_t number, int outcome)
{
	memset(e->came[(number + 1) & 1], 0, sizeof e->came[0]);
	e->number = number;
	e->outcome = outcome;
	e->sent = e->taken = 0;
}

/* exchange_arrive takes a note, which may be anything, and returns -1 if it makes no sense. */
static inline int exchange_arrive(struct exchange *e, int source, const uint64_t args[2], size_t payload)
{
	uint64_t number = args[0];
	int round = args[1] & 0xff, outcome = args[1] >> 8 & 0xff;
	if (!e->leaders || args[1] >> 16 || payload || !number || number > e->number + 1 || round >= e->rounds)
		return -1;
	if (outcome < WIRE_OUTCOME_QUIET || outcome > WIRE_OUTCOME_ABANDONED || exchange_at(e, -((int64_t)1 << round)) != source)
		return -1;
	if (number < e->number)
		return 0; /* a second time */
	unsigned char *came = &e->came[number & 1][round];
	if (!*came)
		*came = outcome;
	exchange_take(e);
	return 0;
}

/* exchange_next returns the rank to which the next note must be sent, and its arguments, or -1 if
 * there is none at present. */
static inline int exchange_next(const struct exchange *e, uint64_t args[2])
{
	if (e->sent == e->rounds || (e->sent > e->taken && e->outcome != WIRE_OUTCOME_ABANDONED))
		return -1;
	args[0] = e->number;
	args[1] = (uint64_t)e->sent | (uint64_t)e->outcome << 8;
	return exchange_at(e, (int64_t)1 << e->sent);
}

/* exchange_sent notes that the note of exchange_next was sent. */
static inline void exchange_sent(struct exchange *e)
{
	e->sent++;
	exchange_take(e);
}

/* exchange_decided returns the outcome about the last barrier that was begun, 0 while there is
 * none. An abandoned barrier is decided when all notes are sent. */
static inline int exchange_decided(const struct exchange *e)
{
	if (e->taken == e->rounds || (e->sent == e->rounds && e->outcome == WIRE_OUTCOME_ABANDONED))
		return e->outcome;
	return 0;
}

/* exchange_abandon abandons a barrier, which need not have begun: exchange_next returns all notes
 * that this leader has not sent of it, without waiting for others'. */
static inline void exchange_abandon(struct exchange *e, uint64_t number)
{
	if (e->number != number)
		exchange_begin(e, number, WIRE_OUTCOME_ABANDONED);
	e->outcome = WIRE_OUTCOME_ABANDONED;
}

#endif
