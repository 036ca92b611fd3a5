/* The calls of mode collect (lib/ranktest), which lib/margay/collect_test.go makes too and
 * explains. */
#include <err.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "margay.h"

#define WAIT 20000

static uint64_t seed, number, digest, random_state;
static int root, op;
static size_t count;

/* A group of the ranks of a colour. */
struct crew {
	margay_group group;
	int size, own; /* own: -1: this rank has no colour */
	int *ranks;    /* by place */
};

static struct crew world, crews[3], *on;
static int crew_count;

/* A call that was started, or is being made, and its buffers. */
struct held {
	margay_request request;
	int exact, digests; /* its result is compared, is part of the digest */
	uint64_t number;
	void *own, *got, *want;
	size_t size; /* of the result */
};

static struct held held[8];
static int held_count;

static uint64_t scramble(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static uint64_t value(int rank, size_t k) { return scramble(scramble(scramble(seed + number) + rank) + k); }

static int draw(int n)
{
	random_state = scramble(random_state);
	return random_state % n;
}

static void check(int result)
{
	if (result < 0)
		errx(1, "call %llu: %s", (unsigned long long)number, margay_error());
}

static uint64_t fnv(uint64_t hash, const void *data, size_t size)
{
	for (size_t i = 0; i < size; i++)
		hash = (hash ^ ((const unsigned char *)data)[i]) * 0x100000001b3;
	return hash;
}

/* done checks the result of a call. */
static void done(struct held *h)
{
	if (h->exact && memcmp(h->got, h->want, h->size) != 0)
		errx(1, "call %llu: the result is another one", (unsigned long long)h->number);
	if (h->digests)
		digest ^= fnv(fnv(0xcbf29ce484222325, &h->number, sizeof h->number), h->got, h->size);
	free(h->own);
	if (h->got != h->own)
		free(h->got);
	free(h->want);
}

static void wait_all(void)
{
	margay_request requests[8];
	for (int i = 0; i < held_count; i++)
		requests[i] = held[i].request;
	if (margay_request_wait_all(requests, held_count, WAIT) != 1)
		errx(1, "wait for all: %s", margay_error());
	for (int i = 0; i < held_count; i++)
		done(&held[i]);
	held_count = 0;
}

static void drop(int i)
{
	done(&held[i]);
	memmove(&held[i], &held[i + 1], (--held_count - i) * sizeof *held);
}

/* wait_some waits for a call, and tests another until that is complete, too. */
static void wait_some(void)
{
	margay_request requests[8];
	int i, complete;
	for (i = 0; i < held_count; i++)
		requests[i] = held[i].request;
	if (margay_request_wait_any(requests, held_count, &i, WAIT) != 1)
		errx(1, "wait for any: %s", margay_error());
	drop(i);
	while ((complete = margay_request_test(&held[0].request)) == 0)
		;
	check(complete);
	drop(0);
}

static void *room(size_t size)
{
	void *memory = calloc(1, size + 1);
	if (!memory)
		err(1, "memory");
	return memory;
}

static void bytes(int rank, unsigned char *b, size_t n)
{
	for (size_t k = 0; k < n; k++)
		b[k] = value(rank, k);
}

/* MAKE makes a call, or starts it. */
#define MAKE(name, ...)                                                                               \
	check(starts           ? margay_group_##name##_nb(on->group, __VA_ARGS__, &h->request)        \
	      : on == &world   ? margay_##name(__VA_ARGS__, WAIT)                                     \
			       : margay_group_##name(on->group, __VA_ARGS__, WAIT))

static void broadcast(struct held *h, int starts)
{
	h->size = count;
	h->own = h->got = room(count);
	h->want = room(count);
	bytes(margay_rank(), h->own, count);
	bytes(on->ranks[root], h->want, count);
	MAKE(broadcast, root, h->got, count);
}

static void gather(struct held *h, int starts, int to_all)
{
	h->exact = to_all || on->own == root;
	h->size = count * on->size;
	h->own = room(count);
	h->got = room(h->size);
	h->want = room(h->size);
	bytes(margay_rank(), h->own, count);
	for (int place = 0; place < on->size; place++)
		bytes(on->ranks[place], (unsigned char *)h->want + place * count, count);
	if (to_all)
		MAKE(allgather, h->own, count, h->got);
	else
		MAKE(gather, root, h->own, count, h->exact ? h->got : NULL);
}

static void all_to_all(struct held *h, int starts)
{
	h->size = count * on->size;
	h->own = room(h->size);
	h->got = room(h->size);
	h->want = room(h->size);
	for (int place = 0; place < on->size; place++) {
		bytes(on->ranks[place], h->own, h->size);
		memcpy((char *)h->want + place * count, (char *)h->own + on->own * count, count);
	}
	bytes(margay_rank(), h->own, h->size);
	MAKE(alltoall, h->own, count, h->got);
}

static void barrier(struct held *h, int starts)
{
	h->exact = 0;
	check(starts ? margay_group_barrier_nb(on->group, &h->request) : margay_group_barrier(on->group, WAIT));
}

#define NUMBERS(type, v, bits, exact)                                                                                         \
	static void numbers_##type(int rank, void *to)                                                                        \
	{                                                                                                                     \
		for (size_t k = 0; k < count; k++) {                                                                          \
			uint64_t v = value(rank, k);                                                                          \
			((type *)to)[k] = exact;                                                                              \
		}                                                                                                             \
	}                                                                                                                     \
	static void combine_##type(void *into, const void *from)                                                              \
	{                                                                                                                     \
		for (size_t k = 0; k < count; k++) {                                                                          \
			type a = ((type *)into)[k], b = ((const type *)from)[k];                                              \
			((type *)into)[k] = op == MARGAY_SUM   ? (type)((bits)a + (bits)b)                                    \
					    : op == MARGAY_MIN ? (a < b ? a : b)                                              \
					    : op == MARGAY_MAX ? (a > b ? a : b)                                              \
					    : op == MARGAY_AND ? (type)((uint64_t)(int64_t)a & (uint64_t)(int64_t)b)          \
					    : op == MARGAY_OR  ? (type)((uint64_t)(int64_t)a | (uint64_t)(int64_t)b)          \
							       : (type)((uint64_t)(int64_t)a ^ (uint64_t)(int64_t)b);         \
		}                                                                                                             \
	}

NUMBERS(int32_t, v, uint32_t, (int32_t)v)
NUMBERS(int64_t, v, uint64_t, (int64_t)v)
NUMBERS(uint32_t, v, uint32_t, (uint32_t)v)
NUMBERS(uint64_t, v, uint64_t, v)
NUMBERS(float, v, float, (float)((int)(v % 2001) - 1000))
NUMBERS(double, v, double, (double)((int)(v % 2001) - 1000))

static const struct {
	size_t size;
	void (*numbers)(int rank, void *to);
	void (*combine)(void *into, const void *from);
} types[] = {{4, numbers_int32_t, combine_int32_t},   {8, numbers_int64_t, combine_int64_t}, {4, numbers_uint32_t, combine_uint32_t},
	     {8, numbers_uint64_t, combine_uint64_t}, {4, numbers_float, combine_float},     {8, numbers_double, combine_double}};

static void reduce(struct held *h, int starts, int kind, int type)
{
	int last = kind == 3 ? on->own + 1 : on->size;
	h->exact = kind != 1 || on->own == root;
	h->size = types[type].size * count;
	h->own = room(h->size);
	h->got = room(h->size);
	h->want = room(h->size);
	types[type].numbers(on->ranks[0], h->want);
	for (int place = 1; place < last; place++) {
		types[type].numbers(on->ranks[place], h->got);
		types[type].combine(h->want, h->got);
	}
	types[type].numbers(margay_rank(), h->own);
	if (kind == 1)
		MAKE(reduce, root, h->own, h->exact ? h->got : NULL, count, type + 1, op);
	else if (kind == 2)
		MAKE(allreduce, h->own, h->got, count, type + 1, op);
	else
		MAKE(scan, h->own, h->got, count, type + 1, op);
}

struct affine {
	uint64_t factor, term, more;
};

static void composed(void *into, const void *from, size_t n, void *data)
{
	struct affine *a = into;
	const struct affine *b = from;
	if (data != &number)
		errx(1, "the function's data is lost");
	for (size_t i = 0; i < n; i++)
		a[i] = (struct affine){a[i].factor * b[i].factor, a[i].term * b[i].factor + b[i].term, a[i].more ^ b[i].more};
}

static void affines(int rank, struct affine *to)
{
	for (size_t k = 0; k < count; k++)
		to[k] = (struct affine){value(rank, 3 * k), value(rank, 3 * k + 1), value(rank, 3 * k + 2)};
}

static void compose(struct held *h, int starts, int scans)
{
	int first = scans ? 0 : root, last = scans ? on->own + 1 : on->size;
	struct affine *other = room(count * sizeof *other);
	h->exact = scans || on->own == root;
	h->size = count * sizeof *other;
	h->own = h->got = room(h->size);
	h->want = room(h->size);
	affines(on->ranks[first], h->want);
	for (int i = 1; i < last; i++) {
		affines(on->ranks[(first + i) % on->size], other);
		composed(h->want, other, count, &number);
	}
	free(other);
	affines(margay_rank(), h->own);
	if (scans)
		MAKE(scan_by, h->own, h->own, count, sizeof *other, composed, &number);
	else
		MAKE(reduce_by, root, h->own, h->own, count, sizeof *other, composed, &number);
}

static void inexact(struct held *h, int starts)
{
	h->exact = 0;
	h->digests = on == &world;
	h->size = count * sizeof(double);
	h->own = room(h->size);
	h->got = room(h->size);
	for (size_t k = 0; k < count; k++) {
		uint64_t v = value(margay_rank(), k);
		((double *)h->own)[k] = ldexp((double)(v >> 11), (int)(v % 60) - 80);
	}
	MAKE(allreduce, h->own, h->got, count, MARGAY_FLOAT64, MARGAY_SUM);
}

static int colour(int rank) { return (int)(value(rank, 1 << 20) % 4) - 1; }

static int key(int rank) { return (int)(value(rank, 1 << 21) % 3) - 1; }

/* members stores the ranks of this rank's colour in their order. */
static void members(struct crew *c, int by_list)
{
	int size = margay_size();
	c->ranks = room(size * sizeof *c->ranks);
	c->own = -1;
	for (int k = -1; k <= 1; k++)
		for (int i = 0; i < size; i++) {
			int rank = by_list ? size - 1 - i : i;
			if (colour(rank) < 0 || colour(rank) != colour(margay_rank()) || (by_list ? k != 0 : key(rank) != k))
				continue;
			if (rank == margay_rank())
				c->own = c->size;
			c->ranks[c->size++] = rank;
		}
}

/* retire frees the first group. */
static void retire(void)
{
	margay_group freed = crews[0].group;
	wait_all();
	if (freed != MARGAY_NO_GROUP)
		check(margay_group_free(&crews[0].group));
	if (crews[0].group != MARGAY_NO_GROUP || margay_group_barrier(freed, WAIT) != -1)
		errx(1, "call %llu: a group is not freed", (unsigned long long)number);
	free(crews[0].ranks);
	crews[0] = crews[1];
	crews[1] = crews[2];
	crew_count--;
}

static void regroup(void)
{
	int by_list = draw(2) == 0, own = colour(margay_rank());
	if (crew_count == 3)
		retire();
	struct crew *c = &crews[crew_count++];
	*c = (struct crew){0};
	members(c, by_list);
	if (by_list)
		check(margay_group_create(MARGAY_WORLD, c->ranks, c->size, &c->group, WAIT));
	else
		check(margay_group_split(MARGAY_WORLD, own, key(margay_rank()), &c->group, WAIT));
	if ((c->group == MARGAY_NO_GROUP) != (own < 0))
		errx(1, "call %llu: a group of colour %d is %u", (unsigned long long)number, own, c->group);
	if (own >= 0 && (margay_group_size(c->group) != c->size || margay_group_rank(c->group) != c->own))
		errx(1, "call %llu: place %d of %d", (unsigned long long)number, margay_group_rank(c->group), margay_group_size(c->group));
	for (int place = 0; place < c->size; place++)
		if (margay_group_job_rank(c->group, place) != c->ranks[place])
			errx(1, "call %llu: another rank is at place %d", (unsigned long long)number, place);
}

/* make makes or starts a call of a kind. */
static void make(struct held *h, int kind, int starts, int type)
{
	*h = (struct held){.exact = 1, .number = number};
	if (kind == 0)
		broadcast(h, starts);
	else if (kind <= 3)
		reduce(h, starts, kind, type);
	else if (kind <= 5)
		gather(h, starts, kind == 5);
	else if (kind == 6)
		all_to_all(h, starts);
	else if (kind <= 8)
		compose(h, starts, kind == 8);
	else if (kind == 9)
		inexact(h, starts);
	else
		barrier(h, starts);
}

static void next(void)
{
	if (draw(10) == 0)
		regroup();
	int of = draw(4);
	on = of < crew_count ? &crews[of] : &world;
	if (on->own < 0)
		return;
	int kind = draw(11);
	root = draw(on->size);
	int type = draw(6);
	op = 1 + draw(type >= 4 ? 3 : 6);
	count = draw(40);
	if (draw(8) == 0)
		count = draw(6000);
	int starts = draw(2) == 0, lets = draw(4);
	struct held *h = &held[held_count];
	make(h, kind, starts, type);
	if (!starts)
		done(h);
	else if (held_count++, lets == 0)
		wait_all();
	else if (held_count > 6)
		wait_some();
}

/* die ends the last rank before call n, in the midst of the others, or for a call of the number -n,
 * kills it. */
static void die(int64_t n)
{
	if (margay_rank() != margay_size() - 1)
		return;
	if ((int64_t)number == n)
		_exit(0);
	if ((int64_t)number == -n)
		raise(SIGKILL);
}

void collect(const char *seed_text, const char *count_text, const char *die_text)
{
	uint64_t n = strtoull(count_text, NULL, 10);
	seed = strtoull(seed_text, NULL, 10);
	world = (struct crew){MARGAY_WORLD, margay_size(), margay_rank(), room(margay_size() * sizeof *world.ranks)};
	for (int rank = 0; rank < margay_size(); rank++)
		world.ranks[rank] = rank;
	for (number = 0; number < n; number++) {
		random_state = scramble(seed ^ scramble(number));
		if (die_text)
			die(atoll(die_text));
		next();
	}
	wait_all();
	printf("%016llx\n", (unsigned long long)digest);
	check(margay_finalize(WAIT));
}
