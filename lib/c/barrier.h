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

/* exchange_turn is something that a leader does in a barrier: it sends a note of a round to another
 * leader, or waits for one. */
struct exchange_turn {
	int rank;
	unsigned char round, waits;
};

/* exchange_view is what a note says of the leaders that its sender knows about. The outcome is 0 if
 * it has not come. */
struct exchange_view {
	unsigned char outcome, strewn;
};

/* exchange is a leader's part in the barriers of a job with several nodes. */
struct exchange {
	int *leaders; /* ranks by place, NULL: this rank leads no node */
	int count, place;
	struct exchange_turn shapes[2][2 * WIRE_MAX_ROUNDS + 1]; /* in the exchange, and in the tree */
	int lengths[2];

	uint64_t number; /* of the last barrier that was begun */
	int shape;       /* its turns */
	int done;        /* how many of them */
	struct exchange_view view; /* what this leader knows of it so far */

	/* The notes for the last barrier and the next one, by the number's lowest bit and the round. */
	struct exchange_view came[2][WIRE_NOTE_ROUNDS];
};

static inline void exchange_add(struct exchange *e, int shape, int place, int round, int waits)
{
	e->shapes[shape][e->lengths[shape]++] = (struct exchange_turn){e->leaders[place], round, waits};
}

/* exchange_parent returns the parent in the tree of a place other than 0, and stores the round of
 * its notes, which no other child of that parent has. */
static inline int exchange_parent(int place, int *round)
{
	int in = place % WIRE_TREE_GROUP;
	*round = in ? in : WIRE_TREE_GROUP + __builtin_ctz(place / WIRE_TREE_GROUP);
	return in ? place - in : place & (place - 1);
}

/* exchange_open prepares the turns when leaders, count and place are known. */
static inline void exchange_open(struct exchange *e)
{
	int n = e->count, place = e->place, round = 0, children[WIRE_MAX_ROUNDS], count = 0;
	for (int64_t step = 1; step < n; step *= 2, round++) {
		exchange_add(e, 0, (place + step) % n, round, 0);
		exchange_add(e, 0, (place + n - step) % n, round, 1);
	}
	for (int child = place + 1; child < n; child++)
		if (exchange_parent(child, &round) == place) {
			exchange_add(e, 1, child, WIRE_ROUND_UP + round, 1);
			children[count++] = child;
		}
	if (place) {
		int parent = exchange_parent(place, &round);
		exchange_add(e, 1, parent, WIRE_ROUND_UP + round, 0);
		exchange_add(e, 1, parent, WIRE_ROUND_DOWN + round, 1);
	}
	while (count-- > 0) { /* the largest subtree first */
		exchange_parent(children[count], &round);
		exchange_add(e, 1, children[count], WIRE_ROUND_DOWN + round, 0);
	}
}

/* exchange_turn_now returns the turn that is not done, NULL: there is none. */
static inline const struct exchange_turn *exchange_turn_now(const struct exchange *e)
{
	return e->done < e->lengths[e->shape] ? &e->shapes[e->shape][e->done] : NULL;
}

/* exchange_take takes the notes that have come, up to the turn in which this leader must send its
 * own, and returns that turn, NULL: there is none at present. It waits for none in an abandoned
 * barrier. */
static inline const struct exchange_turn *exchange_take(struct exchange *e)
{
	const struct exchange_turn *t;
	for (; (t = exchange_turn_now(e)) && t->waits; e->done++) {
		const struct exchange_view *v = &e->came[e->number & 1][t->round];
		if (v->outcome) {
			e->view.outcome = e->view.outcome > v->outcome ? e->view.outcome : v->outcome;
			e->view.strewn &= v->strewn;
		} else if (e->view.outcome != WIRE_OUTCOME_ABANDONED) {
			return NULL;
		}
	}
	return t;
}

/* exchange_begin begins the next barrier, which the ranks of this node have entered so. strewn says
 * that this rank shares its CPU with ranks of other nodes. If all leaders were strewn in the last
 * barrier, this one climbs the tree. */
static inline void exchange_begin(struct exchange *e, uint64_t number, int outcome, int strewn)
{
	memset(e->came[(number + 1) & 1], 0, sizeof e->came[0]);
	e->shape = e->view.strewn;
	e->number = number;
	e->done = 0;
	e->view = (struct exchange_view){outcome, strewn};
}

/* exchange_awaits reports whether a leader sends this one notes of a round. */
static inline int exchange_awaits(const struct exchange *e, int source, int round)
{
	for (int shape = 0; shape < 2; shape++)
		for (int i = 0; i < e->lengths[shape]; i++) {
			const struct exchange_turn *t = &e->shapes[shape][i];
			if (t->waits && t->round == round)
				return t->rank == source;
		}
	return 0;
}

/* exchange_arrive takes a note, which may be anything, and returns -1 if it makes no sense. */
static inline int exchange_arrive(struct exchange *e, int source, const uint64_t args[2], size_t payload)
{
	uint64_t number = args[0];
	int round = args[1] & 0xff, outcome = args[1] >> 8 & 0xff;
	if (!e->leaders || args[1] >= 2 * WIRE_NOTE_STREWN || payload || !number || number > e->number + 1)
		return -1;
	if (outcome < WIRE_OUTCOME_QUIET || outcome > WIRE_OUTCOME_ABANDONED || !exchange_awaits(e, source, round))
		return -1;
	if (number < e->number)
		return 0; /* a second time */
	struct exchange_view *came = &e->came[number & 1][round];
	if (!came->outcome)
		*came = (struct exchange_view){outcome, (args[1] & WIRE_NOTE_STREWN) != 0};
	return 0;
}

/* exchange_next returns the rank to which the next note must be sent, and its arguments, or -1 if
 * there is none at present. */
static inline int exchange_next(struct exchange *e, uint64_t args[2])
{
	const struct exchange_turn *t = exchange_take(e);
	if (!t)
		return -1;
	args[0] = e->number;
	args[1] = t->round | (uint64_t)e->view.outcome << 8 | (e->view.strewn ? WIRE_NOTE_STREWN : 0);
	return t->rank;
}

/* exchange_sent notes that the note of exchange_next was sent. */
static inline void exchange_sent(struct exchange *e) { e->done++; }

/* exchange_decided returns the outcome about the last barrier that was begun, 0 while there is
 * none. */
static inline int exchange_decided(struct exchange *e)
{
	exchange_take(e);
	return exchange_turn_now(e) ? 0 : e->view.outcome;
}

/* exchange_abandon abandons a barrier, which need not have begun: exchange_next returns all notes
 * that this leader has not sent of it, without waiting for others'. */
static inline void exchange_abandon(struct exchange *e, uint64_t number)
{
	if (e->number != number)
		exchange_begin(e, number, WIRE_OUTCOME_ABANDONED, 0);
	e->view.outcome = WIRE_OUTCOME_ABANDONED;
}

#endif
