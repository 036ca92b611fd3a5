/* steps.h: the algorithms of collective operations, in C (lib/collective, Call, which explains
 * them). Places count from the root of the call, unless it is a place in the group. */
#ifndef MARGAY_STEPS_H
#define MARGAY_STEPS_H

#include <stdint.h>
#include <string.h>

#include "margay.h"
#include "wire.h"

/* The next thing to do with another rank. */
struct step {
	int place; /* in the group */
	int receives;
	int open;   /* it is not done */
	char *data; /* left to send, or room for data to receive */
	size_t length;
};

/* call is a call of this rank. */
struct call {
	/* What it is. */
	int kind, type, op, root;
	const char *in;
	char *out;
	size_t length; /* of the data of a rank; of a block of all-to-all */
	size_t count, size; /* elements that are combined, bytes of one */
	margay_combiner combine;
	void *data;

	/* The following is of steps_begin. */
	int ranks;    /* of the group */
	int own;      /* place of this rank */
	int children; /* places own+1, own+2, own+4 and so on, below the lowest bit of own */
	int (*small)(struct call *c); /* the algorithm of a small all-reduce; NULL: it is none */
	struct step step;
	size_t half; /* of scratch, for a reduction: a piece */
	char *scratch;

	/* How far the algorithm has got. */
	size_t at;   /* bytes */
	int turn;    /* steps on the piece at these bytes */
	int round;
	size_t held; /* bytes in scratch */

	/* The following is of group.c. */
	struct call *next; /* of its group */
	margay_request request; /* 0: it has none */
	uint64_t args[2]; /* of its chunks */
	int over, failed;
	int spare; /* scratch may serve another call */
};

static inline size_t steps_least(size_t a, size_t b) { return a < b ? a : b; }

static inline int steps_exchange(struct call *c);
static inline int steps_funnel(struct call *c);

/* steps_begin prepares the steps of a call of a rank at a place of a group, and returns the size of
 * the scratch memory that they need. near says that the group is on one node. */
static inline size_t steps_begin(struct call *c, int ranks, int place, int near)
{
	c->ranks = ranks;
	c->own = (place - c->root + ranks) % ranks;
	c->children = c->step.open = c->turn = c->round = 0;
	c->small = NULL;
	c->at = c->held = 0;
	c->scratch = NULL;
	for (int bit = 1; !(c->own & bit) && bit < ranks - c->own; bit *= 2)
		c->children++;
	switch (c->kind) {
	case WIRE_CALL_REDUCE:
	case WIRE_CALL_ALL_REDUCE:
	case WIRE_CALL_SCAN:
		if (c->kind == WIRE_CALL_ALL_REDUCE && ranks <= WIRE_MOST_SMALL && c->length <= MARGAY_MAX_PAYLOAD)
			c->small = near || ranks <= 2 ? steps_exchange : steps_funnel;
		c->half = c->size < MARGAY_MAX_PAYLOAD ? MARGAY_MAX_PAYLOAD / c->size * c->size : c->size;
		return c->small ? ranks * c->length : 2 * c->half;
	case WIRE_CALL_GATHER:
	case WIRE_CALL_ALL_GATHER:
	case WIRE_CALL_SPLIT:
		return c->own ? MARGAY_MAX_PAYLOAD : 0;
	case WIRE_CALL_BARRIER:
		return 2;
	}
	return 0;
}

/* steps_place returns the place in the group of a place. */
static inline int steps_place(const struct call *c, int place) { return (place + c->root) % c->ranks; }

static inline int steps_parent(const struct call *c) { return c->own & (c->own - 1); }

static inline int steps_send(struct call *c, int place, const char *data, size_t length)
{
	c->step = (struct step){steps_place(c, place), 0, 1, (char *)data, length};
	return 1;
}

static inline int steps_receive(struct call *c, int place, char *room, size_t length)
{
	c->step = (struct step){steps_place(c, place), 1, 1, room, length};
	return 1;
}

/* steps_done begins the next piece after one of so many bytes. */
static inline void steps_done(struct call *c, size_t length)
{
	c->at += length;
	c->turn = 0;
}

/* steps_broadcast copies out of the root to out of the others. */
static inline int steps_broadcast(struct call *c, size_t length)
{
	while (c->at < length) {
		char *piece = c->out + c->at;
		size_t n = steps_least(length - c->at, MARGAY_MAX_PAYLOAD);
		int turn = c->turn++;
		if (turn == 0 && c->own)
			return steps_receive(c, steps_parent(c), piece, n);
		if (turn > c->children)
			steps_done(c, n);
		else if (turn > 0) /* the largest subtree first */
			return steps_send(c, c->own + (1 << (c->children - turn)), piece, n);
	}
	return 0;
}

/* steps_reduce combines in of all ranks in out of the root, in the order of places. */
static inline int steps_reduce(struct call *c)
{
	while (c->at < c->length) {
		size_t n = steps_least(c->length - c->at, c->half);
		char *sum = c->scratch, *other = c->scratch + c->half;
		int turn = c->turn++;
		if (turn == 0)
			memcpy(sum, c->in + c->at, n);
		else if (turn <= c->children)
			c->combine(sum, other, n / c->size, c->data);
		if (turn < c->children)
			return steps_receive(c, c->own + (1 << turn), other, n);
		if (turn == c->children && c->own)
			return steps_send(c, steps_parent(c), sum, n);
		if (turn == c->children)
			memcpy(c->out + c->at, sum, n);
		steps_done(c, n);
	}
	return 0;
}

/* steps_combine combines in of all ranks, all others' in scratch, in out, as steps_reduce does. */
static inline void steps_combine(struct call *c)
{
	size_t n = c->length;
	memcpy(c->scratch + c->own * n, c->in, n);
	for (int bit = 1; bit < c->ranks; bit *= 2)
		for (int at = 0; at + bit < c->ranks; at += 2 * bit)
			c->combine(c->scratch + at * n, c->scratch + (at + bit) * n, c->count, c->data);
	memcpy(c->out, c->scratch, n);
}

/* steps_exchange is reduce and broadcast with a message from each rank to each other one. */
static inline int steps_exchange(struct call *c)
{
	size_t n = c->length;
	int others = c->ranks - 1, turn = c->turn++;
	if (!n)
		return 0;
	if (turn < others)
		return steps_send(c, (c->own + 1 + turn) % c->ranks, c->in, n);
	if (turn < 2 * others) {
		int other = (c->own + 1 + turn - others) % c->ranks;
		return steps_receive(c, other, c->scratch + other * n, n);
	}
	steps_combine(c);
	return 0;
}

/* steps_funnel is reduce and broadcast with a message from each rank to the root and one back. */
static inline int steps_funnel(struct call *c)
{
	size_t n = c->length;
	int others = c->ranks - 1, turn = c->turn++;
	if (!n || turn >= (c->own ? 2 : 2 * others))
		return 0;
	if (c->own)
		return turn == 0 ? steps_send(c, 0, c->in, n) : steps_receive(c, 0, c->out, n);
	if (turn < others)
		return steps_receive(c, 1 + turn, c->scratch + (1 + turn) * n, n);
	if (turn == others)
		steps_combine(c);
	return steps_send(c, 1 + turn - others, c->out, n);
}

/* steps_subtree returns the number of places in the subtree of a place, which begins with it. */
static inline size_t steps_subtree(const struct call *c, int place)
{
	int rest = c->ranks - place, most = place ? place & -place : c->ranks;
	return most < rest ? most : rest;
}

/* steps_highest returns the highest bit of a positive number. */
static inline int steps_highest(unsigned n) { return 1 << (31 - __builtin_clz(n)); }

/* steps_collect is steps_gather at the root. */
static inline int steps_collect(struct call *c)
{
	size_t n = c->length;
	int place = c->turn++;
	char *room = c->out + (size_t)steps_place(c, place) * n;
	if (place == 0 && n && room != c->in)
		memcpy(room, c->in, n);
	if (place == 0)
		place = c->turn++;
	if (!n || place >= c->ranks)
		return 0;
	return steps_receive(c, steps_highest(place), c->out + (size_t)steps_place(c, place) * n, n);
}

/* steps_gather collects in of all ranks in out of the root, in the order of the group. A rank in
 * between passes data on in full chunks. */
static inline int steps_gather(struct call *c)
{
	size_t n = c->length;
	if (!c->own)
		return steps_collect(c);
	for (size_t end = n * steps_subtree(c, c->own);;) {
		size_t held = c->held, room = MARGAY_MAX_PAYLOAD - held;
		if (!room || (c->at == end && held)) {
			c->held = 0;
			return steps_send(c, steps_parent(c), c->scratch, held);
		}
		if (c->at == end)
			return 0;
		if (c->at < n) { /* its own */
			room = steps_least(room, n - c->at);
			memcpy(c->scratch + held, c->in + c->at, room);
			c->at += room;
			c->held += room;
			continue;
		}
		int child = c->own + steps_highest(c->at / n);
		room = steps_least(room, n * (child - c->own + steps_subtree(c, child)) - c->at);
		c->at += room;
		c->held += room;
		return steps_receive(c, child, c->scratch + held, room);
	}
}

/* steps_all_to_all sends a block of in to each rank, and receives one of out from each, chunk by
 * chunk, so that credits return in between. */
static inline int steps_all_to_all(struct call *c)
{
	size_t block = c->length;
	if (c->round == 0) {
		if (block)
			memcpy(c->out + c->own * block, c->in + c->own * block, block);
		c->round = 1;
	}
	while (c->round < c->ranks) {
		if (c->at == block) {
			c->round++;
			c->at = 0;
			continue;
		}
		size_t at = c->at, n = steps_least(block - at, MARGAY_MAX_PAYLOAD);
		int to = (c->own + c->round) % c->ranks, from = (c->own - c->round + c->ranks) % c->ranks;
		if (c->turn++ == 0)
			return steps_send(c, to, c->in + to * block + at, n);
		steps_done(c, n);
		return steps_receive(c, from, c->out + from * block + at, n);
	}
	return 0;
}

/* steps_scan combines in of the ranks up to this one in out, in the order of places. */
static inline int steps_scan(struct call *c)
{
	while (c->at < c->length) {
		size_t n = steps_least(c->length - c->at, c->half);
		char *sum = c->scratch, *other = c->scratch + c->half;
		int turn = c->turn++, receives = turn & 1;
		int64_t far = INT64_C(1) << turn / 2;
		if (turn == 0) {
			memcpy(sum, c->in + c->at, n);
		} else if (!receives && c->own >= far / 2) {
			c->combine(other, sum, n / c->size, c->data);
			memcpy(sum, other, n);
		}
		if (far >= c->ranks) {
			memcpy(c->out + c->at, sum, n);
			steps_done(c, n);
		} else if (!receives && c->own + far < c->ranks) {
			return steps_send(c, c->own + (int)far, sum, n);
		} else if (receives && c->own >= far) {
			return steps_receive(c, c->own - (int)far, other, n);
		}
	}
	return 0;
}

/* steps_barrier sends a byte to the rank 2^k places behind in round k, and receives one from the
 * rank so far before. */
static inline int steps_barrier(struct call *c)
{
	int turn = c->turn++, receives = turn & 1;
	int64_t far = INT64_C(1) << turn / 2;
	if (far >= c->ranks)
		return 0;
	if (receives)
		return steps_receive(c, (int)((c->own - far + c->ranks) % c->ranks), c->scratch + 1, 1);
	return steps_send(c, (int)((c->own + far) % c->ranks), c->scratch, 1);
}

/* steps_spread makes the steps of an operation that ends with a broadcast. */
static inline int steps_spread(struct call *c, int (*first)(struct call *c), size_t length)
{
	if (c->round == 0) {
		if (first(c))
			return 1;
		c->round = 1;
		c->at = 0;
		c->turn = 0;
	}
	return steps_broadcast(c, length);
}

/* steps_next makes step the next one after the last one, and returns 0 if there is none. */
static inline int steps_next(struct call *c)
{
	switch (c->kind) {
	case WIRE_CALL_BROADCAST:
		return steps_broadcast(c, c->length);
	case WIRE_CALL_REDUCE:
		return steps_reduce(c);
	case WIRE_CALL_ALL_REDUCE:
		return c->small ? c->small(c) : steps_spread(c, steps_reduce, c->length);
	case WIRE_CALL_GATHER:
		return steps_gather(c);
	case WIRE_CALL_ALL_GATHER:
	case WIRE_CALL_SPLIT:
		return steps_spread(c, steps_gather, c->length * c->ranks);
	case WIRE_CALL_ALL_TO_ALL:
		return steps_all_to_all(c);
	case WIRE_CALL_SCAN:
		return steps_scan(c);
	}
	return steps_barrier(c);
}

#endif
