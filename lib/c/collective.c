/* Collective operations. The Go package lib/collective has the same algorithms and explains them;
 * wire.Call in kernel/abi/wire describes the chunks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "wire.h"

/* How long a rank waits for another before it probes whether that has ended, in milliseconds. It
 * doubles the time with each probe. */
#define FIRST_PROBE 250

struct chunk {
	uint64_t args[2];
	size_t length;
	char bytes[MARGAY_MAX_PAYLOAD];
};

/* Another rank. */
struct peer {
	uint32_t flying; /* chunks sent to it and not returned */
	uint32_t taken;  /* chunks that came from it, were taken and not returned */
	uint32_t first;  /* of the chunks that were not taken */
	uint32_t count;  /* of them */
	size_t used;     /* bytes of the first one that were taken */
	struct chunk chunks[WIRE_COLLECTIVE_WINDOW];
};

static struct {
	struct peer **peers; /* by rank; NULL: nothing was sent to it or came from it */
	uint32_t calls;      /* that were begun */
	char broken[512];    /* why a call has failed */
} state;

/* A call of this rank. */
struct call {
	uint64_t args[2];
	int64_t deadline;
	int own; /* place of this rank, counted from the root */
	int root;
};

static int kind_of(const uint64_t args[2]) { return args[1] >> 48 & 15; }
static int type_of(const uint64_t args[2]) { return args[1] >> 52 & 15; }
static int op_of(const uint64_t args[2]) { return args[1] >> 56 & 15; }
static uint64_t length_of(const uint64_t args[2]) { return args[1] & WIRE_MAX_CALL_LENGTH; }
static uint64_t args1(int kind, int type, int op, uint64_t length)
{
	return length | (uint64_t)kind << 48 | (uint64_t)type << 52 | (uint64_t)op << 56;
}

static const char *const kinds[] = {"", "broadcast", "reduce", "all-reduce", "gather", "all-gather"};
static const char *const types[] = {"bytes", "int32", "int64", "uint32", "uint64", "float32", "float64"};
static const char *const ops[] = {"", "sum", "min", "max", "and", "or", "xor", "a function"};

/* describe describes a call for an error. */
static void describe(const uint64_t args[2], char *text, size_t size)
{
	int n = snprintf(text, size, "call %u, %s of %llu bytes", (uint32_t)args[0], kinds[kind_of(args)], (unsigned long long)length_of(args));
	if (op_of(args))
		n += snprintf(text + n, size - n, " by %s of %s", ops[op_of(args)], types[type_of(args)]);
	if (kind_of(args) != WIRE_CALL_ALL_REDUCE && kind_of(args) != WIRE_CALL_ALL_GATHER)
		snprintf(text + n, size - n, " with root %u", (uint32_t)(args[0] >> 32));
}

/* peer_of returns the state of another rank, NULL without memory. */
static struct peer *peer_of(int rank)
{
	if (!state.peers)
		state.peers = calloc(margay_size(), sizeof *state.peers);
	if (state.peers && !state.peers[rank])
		state.peers[rank] = calloc(1, sizeof *state.peers[rank]);
	return state.peers ? state.peers[rank] : NULL;
}

/* is_sound reports whether the arguments of a message with so much payload make sense. */
static int is_sound(const uint64_t args[2], size_t payload)
{
	int kind = kind_of(args), data = kind >= WIRE_CALL_BROADCAST && kind <= WIRE_CALL_ALL_GATHER;
	if (kind < WIRE_CALL_BROADCAST || kind > WIRE_CALL_PROBE || type_of(args) > MARGAY_FLOAT64 || op_of(args) > WIRE_OP_USER || args[1] >> 60)
		return 0;
	if (args[0] >> 32 >= (uint64_t)margay_size())
		return 0;
	return data == (payload > 0) && payload <= MARGAY_MAX_PAYLOAD && (!data || length_of(args) > 0);
}

int margay_in_arrive(const struct margay_am *m)
{
	if (m->source < 0 || m->source >= margay_size() || !is_sound(m->args, m->length))
		return -1;
	struct peer *p = peer_of(m->source);
	if (!p)
		return -1;
	switch (kind_of(m->args)) {
	case WIRE_CALL_PROBE:
		return 0;
	case WIRE_CALL_CREDIT:
		if (length_of(m->args) > p->flying)
			return -1;
		p->flying -= length_of(m->args);
		return 0;
	}
	if (p->count + p->taken >= WIRE_COLLECTIVE_WINDOW)
		return -1;
	struct chunk *c = &p->chunks[(p->first + p->count++) % WIRE_COLLECTIVE_WINDOW];
	memcpy(c->args, m->args, sizeof c->args);
	memcpy(c->bytes, m->payload, m->length);
	c->length = m->length;
	return 0;
}

/* ---- Chunks ---- */

/* await handles messages until done(arg), or fails after the deadline. In between it sends messages
 * that end the job if the other rank has ended. */
static int await(const struct call *c, int rank, int (*done)(int n, uint64_t arg), const void *arg)
{
	for (int patience = FIRST_PROBE;; patience = patience < 1 << 28 ? 2 * patience : patience) {
		int left = margay_in_left(c->deadline);
		int n = margay_in_wait(done, (uintptr_t)arg, left >= 0 && left < patience ? left : patience);
		if (n >= 0)
			return 0;
		if (n == -2)
			return -1;
		if (margay_in_left(c->deadline) == 0)
			return margay_in_fail("waiting for rank %d: the time is over", rank);
		if (margay_in_post(rank, WIRE_HANDLER_COLLECTIVE, 0, args1(WIRE_CALL_PROBE, 0, 0, 0), NULL, 0) < 0)
			return -1;
	}
}

static int may_send(int n, uint64_t arg)
{
	const struct peer *p = (const struct peer *)(uintptr_t)arg;
	(void)n;
	return p->flying < WIRE_COLLECTIVE_WINDOW;
}

/* send sends data of any length. */
static int send(const struct call *c, int to, const char *data, size_t length)
{
	struct peer *p = peer_of(to);
	if (!p)
		return margay_in_fail("no memory");
	while (length > 0) {
		size_t n = length < MARGAY_MAX_PAYLOAD ? length : MARGAY_MAX_PAYLOAD;
		if (!may_send(0, (uintptr_t)p) && await(c, to, may_send, p) != 0)
			return -1;
		p->flying++;
		if (margay_in_send(to, WIRE_HANDLER_COLLECTIVE, c->args[0], c->args[1], data, n, c->deadline) != 0)
			return -1;
		data += n;
		length -= n;
	}
	return 0;
}

/* take moves data of the first chunk of a rank to buf and returns the number of bytes, or fails if
 * it is of another call. */
static int take(const struct call *c, int from, struct peer *p, char *buf, size_t length)
{
	struct chunk *first = &p->chunks[p->first];
	if (memcmp(first->args, c->args, sizeof first->args) != 0) {
		char theirs[160], ours[160];
		describe(first->args, theirs, sizeof theirs);
		describe(c->args, ours, sizeof ours);
		return margay_in_fail("the ranks of the job call different collective operations: rank %d is in %s; this rank is in %s", from, theirs, ours);
	}
	size_t n = first->length - p->used < length ? first->length - p->used : length;
	memcpy(buf, first->bytes + p->used, n);
	p->used += n;
	if (p->used == first->length) {
		p->used = 0;
		p->first = (p->first + 1) % WIRE_COLLECTIVE_WINDOW;
		p->count--;
		p->taken++;
	}
	return n;
}

static int has_chunk(int n, uint64_t arg)
{
	const struct peer *p = (const struct peer *)(uintptr_t)arg;
	(void)n;
	return p->count > 0;
}

/* receive fills buf with data from a rank. */
static int receive(const struct call *c, int from, char *buf, size_t length)
{
	struct peer *p = peer_of(from);
	if (!p)
		return margay_in_fail("no memory");
	while (length > 0) {
		if (p->count == 0 && await(c, from, has_chunk, p) != 0)
			return -1;
		int n = take(c, from, p, buf, length);
		if (n < 0)
			return -1;
		buf += n;
		length -= n;
		if (p->taken < WIRE_COLLECTIVE_WINDOW / 2)
			continue;
		uint32_t credit = p->taken;
		p->taken = 0;
		if (margay_in_send(from, WIRE_HANDLER_COLLECTIVE, 0, args1(WIRE_CALL_CREDIT, 0, 0, credit), NULL, 0, c->deadline) != 0)
			return -1;
	}
	return 0;
}

/* ---- The tree ---- */

static int rank_at(const struct call *c, int place) { return (place + c->root) % margay_size(); }

static int parent(const struct call *c) { return rank_at(c, c->own & (c->own - 1)); }

/* is_child reports whether the place own + bit is a child of this rank. The children have
 * the bits 1, 2, 4 and so on up to the first that is none. */
static int is_child(const struct call *c, int bit) { return !(c->own & bit) && bit < margay_size() - c->own; }

/* subtree returns the number of places below the child of a bit, itself included. */
static int subtree(const struct call *c, int bit)
{
	int rest = margay_size() - c->own - bit;
	return bit < rest ? bit : rest;
}

static int broadcast(const struct call *c, char *data, size_t length)
{
	int last = 1; /* the first bit of no child */
	while (is_child(c, last))
		last *= 2;
	while (length > 0) {
		size_t n = length < MARGAY_MAX_PAYLOAD ? length : MARGAY_MAX_PAYLOAD;
		if (c->own && receive(c, parent(c), data, n) != 0)
			return -1;
		for (int bit = last / 2; bit; bit /= 2) /* the largest subtree first */
			if (send(c, rank_at(c, c->own + bit), data, n) != 0)
				return -1;
		data += n;
		length -= n;
	}
	return 0;
}

/* What a reduction combines. */
struct reduction {
	const char *in;
	char *out;
	size_t count, size; /* elements, bytes of one */
	margay_combiner combine;
	void *data;
};

/* reduce_piece reduces some elements, which begin at a byte of in. buf has room for them twice. */
static int reduce_piece(const struct call *c, const struct reduction *r, size_t at, size_t count, char *buf)
{
	size_t length = count * r->size;
	char *other = buf + length;
	memcpy(buf, r->in + at, length);
	for (int bit = 1; is_child(c, bit); bit *= 2) {
		if (receive(c, rank_at(c, c->own + bit), other, length) != 0)
			return -1;
		r->combine(buf, other, count, r->data);
	}
	if (c->own)
		return send(c, parent(c), buf, length);
	memcpy(r->out + at, buf, length);
	return 0;
}

static int reduce(const struct call *c, const struct reduction *r)
{
	size_t at_a_time = r->size < MARGAY_MAX_PAYLOAD ? MARGAY_MAX_PAYLOAD / r->size : 1;
	char *buf = malloc(2 * at_a_time * r->size);
	int err = buf ? 0 : margay_in_fail("no memory for two elements of %zu bytes", r->size);
	for (size_t i = 0; i < r->count && !err; i += at_a_time)
		err = reduce_piece(c, r, i * r->size, r->count - i < at_a_time ? r->count - i : at_a_time, buf);
	free(buf);
	return err;
}

/* exchanges reports whether an all-reduce of a length is made by exchange. */
static int exchanges(size_t length)
{
	return margay_nodes() == 1 && margay_size() <= WIRE_MOST_EXCHANGING && length <= MARGAY_MAX_PAYLOAD;
}

/* exchange is reduce and broadcast by messages from each rank to each other one. */
static int exchange(const struct call *c, const struct reduction *r)
{
	int own = margay_rank(), ranks = margay_size();
	size_t length = r->count * r->size;
	_Alignas(16) char all[WIRE_MOST_EXCHANGING * MARGAY_MAX_PAYLOAD];
	if (!length)
		return 0;
	memcpy(all + own * length, r->in, length);
	for (int i = 1; i < ranks; i++)
		if (send(c, (own + i) % ranks, r->in, length) != 0)
			return -1;
	for (int i = 1; i < ranks; i++) {
		int from = (own + i) % ranks;
		if (receive(c, from, all + from * length, length) != 0)
			return -1;
	}
	for (int bit = 1; bit < ranks; bit *= 2)
		for (int at = 0; at + bit < ranks; at += 2 * bit)
			r->combine(all + at * length, all + (at + bit) * length, r->count, r->data);
	memcpy(r->out, all, length);
	return 0;
}

/* collect is gather at the root. */
static int collect(const struct call *c, const char *in, size_t length, char *out)
{
	char *own = out + (size_t)margay_rank() * length;
	if (own != in)
		memcpy(own, in, length);
	for (int bit = 1; is_child(c, bit); bit *= 2)
		for (int i = 0; i < subtree(c, bit); i++)
			if (receive(c, rank_at(c, bit), out + (size_t)rank_at(c, bit + i) * length, length) != 0)
				return -1;
	return 0;
}

/* A packer sends data in full chunks. */
struct packer {
	size_t length;
	char chunk[MARGAY_MAX_PAYLOAD];
};

static int flush(const struct call *c, struct packer *p)
{
	size_t n = p->length;
	p->length = 0;
	return send(c, parent(c), p->chunk, n);
}

static int pack(const struct call *c, struct packer *p, const char *data, size_t length)
{
	while (length > 0) {
		size_t room = sizeof p->chunk - p->length, n = length < room ? length : room;
		memcpy(p->chunk + p->length, data, n);
		p->length += n;
		data += n;
		length -= n;
		if (p->length == sizeof p->chunk && flush(c, p) != 0)
			return -1;
	}
	return 0;
}

static int gather(const struct call *c, const char *in, size_t length, char *out)
{
	if (!c->own)
		return collect(c, in, length, out);
	struct packer p = {0};
	char piece[MARGAY_MAX_PAYLOAD];
	if (pack(c, &p, in, length) != 0)
		return -1;
	for (int bit = 1; is_child(c, bit); bit *= 2) {
		for (size_t left = length * subtree(c, bit); left > 0;) {
			size_t n = left < sizeof piece ? left : sizeof piece;
			if (receive(c, rank_at(c, c->own + bit), piece, n) != 0 || pack(c, &p, piece, n) != 0)
				return -1;
			left -= n;
		}
	}
	return flush(c, &p);
}

/* ---- Calls ---- */

/* begin begins a call, or fails. */
static int begin(struct call *c, int root, int kind, int type, int op, size_t length, int timeout_ms)
{
	if (margay_in_no_job() != 0)
		return -1;
	if (margay_in_handler())
		return margay_in_fail("%s: a handler must not call it", kinds[kind]);
	if (root < 0 || root >= margay_size())
		return margay_in_fail("%s: there is no rank %d, but ranks 0 to %d", kinds[kind], root, margay_size() - 1);
	if (length > WIRE_MAX_CALL_LENGTH)
		return margay_in_fail("%s: %zu bytes are too many", kinds[kind], length);
	if (state.broken[0])
		return margay_in_fail("%s: a collective operation has failed before: %s", kinds[kind], state.broken);
	c->args[0] = (uint64_t)root << 32 | ++state.calls;
	c->args[1] = args1(kind, type, op, length);
	c->deadline = timeout_ms < 0 ? -1 : margay_in_now() + timeout_ms * 1000000LL;
	c->root = root;
	c->own = (margay_rank() - root + margay_size()) % margay_size();
	return 0;
}

/* end ends a call. */
static int end(const struct call *c, int err)
{
	if (!err)
		return 0;
	snprintf(state.broken, sizeof state.broken, "%s", margay_error());
	return margay_in_fail("%s: %s", kinds[kind_of(c->args)], state.broken);
}

int margay_broadcast(int root, void *data, size_t length, int timeout_ms)
{
	struct call c;
	if (begin(&c, root, WIRE_CALL_BROADCAST, 0, 0, length, timeout_ms) != 0)
		return -1;
	return end(&c, broadcast(&c, data, length));
}

int margay_gather(int root, const void *in, size_t length, void *out, int timeout_ms)
{
	struct call c;
	if (begin(&c, root, WIRE_CALL_GATHER, 0, 0, length, timeout_ms) != 0)
		return -1;
	return end(&c, gather(&c, in, length, out));
}

int margay_allgather(const void *in, size_t length, void *out, int timeout_ms)
{
	struct call c;
	if (begin(&c, 0, WIRE_CALL_ALL_GATHER, 0, 0, length, timeout_ms) != 0)
		return -1;
	int err = gather(&c, in, length, out);
	return end(&c, err ? err : broadcast(&c, out, length * margay_size()));
}

/* run_reduction makes the call of a reduction. */
static int run_reduction(int kind, int root, int type, int op, const struct reduction *r, int timeout_ms)
{
	struct call c;
	size_t length;
	if (r->size == 0 || __builtin_mul_overflow(r->count, r->size, &length))
		return margay_in_fail("%s: %zu elements of %zu bytes", kinds[kind], r->count, r->size);
	if (begin(&c, root, kind, type, op, length, timeout_ms) != 0)
		return -1;
	if (kind == WIRE_CALL_ALL_REDUCE && exchanges(length))
		return end(&c, exchange(&c, r));
	int err = reduce(&c, r);
	if (!err && kind == WIRE_CALL_ALL_REDUCE)
		err = broadcast(&c, r->out, length);
	return end(&c, err);
}

/* ---- Operations ---- */

#define SUM(a, b) ((a) + (b))
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((a) < (b) ? (b) : (a))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define XOR(a, b) ((a) ^ (b))

/* COMBINER defines the combiner of an operation for a type. */
#define COMBINER(op, type, name)                                                            \
	static void name##_##op(void *into, const void *from, size_t count, void *data) \
	{                                                                                   \
		type *a = into;                                                             \
		const type *b = from;                                                       \
		(void)data;                                                                 \
		for (size_t i = 0; i < count; i++)                                          \
			a[i] = op(a[i], b[i]);                                              \
	}

/* Integers wrap, and their bits do not depend on the sign. */
COMBINER(SUM, uint32_t, bits32)
COMBINER(AND, uint32_t, bits32)
COMBINER(OR, uint32_t, bits32)
COMBINER(XOR, uint32_t, bits32)
COMBINER(SUM, uint64_t, bits64)
COMBINER(AND, uint64_t, bits64)
COMBINER(OR, uint64_t, bits64)
COMBINER(XOR, uint64_t, bits64)
COMBINER(MIN, int32_t, int32)
COMBINER(MAX, int32_t, int32)
COMBINER(MIN, int64_t, int64)
COMBINER(MAX, int64_t, int64)
COMBINER(MIN, uint32_t, uint32)
COMBINER(MAX, uint32_t, uint32)
COMBINER(MIN, uint64_t, uint64)
COMBINER(MAX, uint64_t, uint64)
COMBINER(SUM, float, float32)
COMBINER(MIN, float, float32)
COMBINER(MAX, float, float32)
COMBINER(SUM, double, float64)
COMBINER(MIN, double, float64)
COMBINER(MAX, double, float64)

/* A type: the size of an element, and the combiners by operation. */
static const struct {
	size_t size;
	margay_combiner combine[MARGAY_XOR + 1];
} numbers[] = {
    [MARGAY_INT32] = {4, {NULL, bits32_SUM, int32_MIN, int32_MAX, bits32_AND, bits32_OR, bits32_XOR}},
    [MARGAY_INT64] = {8, {NULL, bits64_SUM, int64_MIN, int64_MAX, bits64_AND, bits64_OR, bits64_XOR}},
    [MARGAY_UINT32] = {4, {NULL, bits32_SUM, uint32_MIN, uint32_MAX, bits32_AND, bits32_OR, bits32_XOR}},
    [MARGAY_UINT64] = {8, {NULL, bits64_SUM, uint64_MIN, uint64_MAX, bits64_AND, bits64_OR, bits64_XOR}},
    [MARGAY_FLOAT32] = {4, {NULL, float32_SUM, float32_MIN, float32_MAX, NULL, NULL, NULL}},
    [MARGAY_FLOAT64] = {8, {NULL, float64_SUM, float64_MIN, float64_MAX, NULL, NULL, NULL}},
};

/* reduce_numbers is margay_reduce and margay_allreduce. */
static int reduce_numbers(int kind, int root, const void *in, void *out, size_t count, int type, int op, int timeout_ms)
{
	if (type < MARGAY_INT32 || type > MARGAY_FLOAT64)
		return margay_in_fail("%s: there is no type %d", kinds[kind], type);
	if (op < MARGAY_SUM || op > MARGAY_XOR)
		return margay_in_fail("%s: there is no operation %d", kinds[kind], op);
	struct reduction r = {in, out, count, numbers[type].size, numbers[type].combine[op], NULL};
	if (!r.combine)
		return margay_in_fail("%s: there is no %s of %s", kinds[kind], ops[op], types[type]);
	return run_reduction(kind, root, type, op, &r, timeout_ms);
}

int margay_reduce(int root, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms)
{
	return reduce_numbers(WIRE_CALL_REDUCE, root, in, out, count, type, op, timeout_ms);
}

int margay_allreduce(const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms)
{
	return reduce_numbers(WIRE_CALL_ALL_REDUCE, 0, in, out, count, type, op, timeout_ms);
}

int margay_reduce_by(int root, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data, int timeout_ms)
{
	struct reduction r = {in, out, count, size, combine, data};
	return run_reduction(WIRE_CALL_REDUCE, root, 0, WIRE_OP_USER, &r, timeout_ms);
}

int margay_allreduce_by(const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data, int timeout_ms)
{
	struct reduction r = {in, out, count, size, combine, data};
	return run_reduction(WIRE_CALL_ALL_REDUCE, 0, 0, WIRE_OP_USER, &r, timeout_ms);
}
