/* The calls of mode collect (lib/ranktest), which lib/margay/collect_test.go makes too and
 * explains. */
#include <err.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "margay.h"

#define WAIT 20000

static uint64_t seed, number, digest = 0xcbf29ce484222325;
static int root, op;
static size_t count;

static uint64_t scramble(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static uint64_t value(int rank, size_t k) { return scramble(scramble(scramble(seed + number) + rank) + k); }

static void check(int result)
{
	if (result < 0)
		errx(1, "call %llu: %s", (unsigned long long)number, margay_error());
}

static void same(const void *got, const void *want, size_t size)
{
	if (memcmp(got, want, size) != 0)
		errx(1, "call %llu: the result is another one", (unsigned long long)number);
}

/* all adds a result that all ranks have to the digest. */
static void all(const void *result, size_t size)
{
	for (size_t i = 0; i < size; i++)
		digest = (digest ^ ((const unsigned char *)result)[i]) * 0x100000001b3;
}

static void bytes(int rank, unsigned char *b)
{
	for (size_t k = 0; k < count; k++)
		b[k] = value(rank, k);
}

static void broadcast(unsigned char *own, unsigned char *want)
{
	bytes(margay_rank(), own);
	bytes(root, want);
	check(margay_broadcast(root, own, count, WAIT));
	all(own, count);
	same(own, want, count);
}

static void gather(unsigned char *own, unsigned char *got, unsigned char *want, int to_all)
{
	bytes(margay_rank(), own);
	for (int rank = 0; rank < margay_size(); rank++)
		bytes(rank, want + rank * count);
	if (to_all) {
		check(margay_allgather(own, count, got, WAIT));
		all(got, count * margay_size());
	} else {
		check(margay_gather(root, own, count, margay_rank() == root ? got : NULL, WAIT));
	}
	if (to_all || margay_rank() == root)
		same(got, want, count * margay_size());
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

static void reduce(int type, void *own, void *other, void *want, int to_all)
{
	size_t size = types[type].size * count;
	types[type].numbers(0, want);
	for (int rank = 1; rank < margay_size(); rank++) {
		types[type].numbers(rank, other);
		types[type].combine(want, other);
	}
	types[type].numbers(margay_rank(), own);
	if (to_all) {
		check(margay_allreduce(own, other, count, type + 1, op, WAIT));
		all(other, size);
	} else {
		check(margay_reduce(root, own, margay_rank() == root ? other : NULL, count, type + 1, op, WAIT));
	}
	if (to_all || margay_rank() == root)
		same(other, want, size);
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

static void compose(struct affine *own, struct affine *other, struct affine *want)
{
	affines(root, want);
	for (int i = 1; i < margay_size(); i++) {
		affines((root + i) % margay_size(), other);
		composed(want, other, count, &number);
	}
	affines(margay_rank(), own);
	check(margay_reduce_by(root, own, own, count, sizeof *own, composed, &number, WAIT));
	if (margay_rank() == root)
		same(own, want, count * sizeof *own);
}

static void inexact(double *own, double *sum)
{
	for (size_t k = 0; k < count; k++) {
		uint64_t v = value(margay_rank(), k);
		own[k] = ldexp((double)(v >> 11), (int)(v % 60) - 80);
	}
	check(margay_allreduce(own, sum, count, MARGAY_FLOAT64, MARGAY_SUM, WAIT));
	all(sum, count * sizeof *sum);
}

static uint64_t random_state;

static int draw(int n)
{
	random_state = scramble(random_state);
	return random_state % n;
}

void collect(const char *seed_text, const char *count_text)
{
	size_t room = 6000 * 24 * (size_t)margay_size();
	void *a = malloc(room), *b = malloc(room), *c = malloc(room);
	uint64_t n = strtoull(count_text, NULL, 10);
	seed = strtoull(seed_text, NULL, 10);
	for (number = 0; number < n; number++) {
		random_state = scramble(seed ^ scramble(number));
		int kind = draw(7);
		root = draw(margay_size());
		int type = draw(6);
		op = 1 + draw(type >= 4 ? 3 : 6);
		count = draw(40);
		if (draw(8) == 0)
			count = draw(6000);
		if (kind == 0)
			broadcast(a, b);
		else if (kind <= 2)
			reduce(type, a, b, c, kind == 2);
		else if (kind <= 4)
			gather(a, b, c, kind == 4);
		else if (kind == 5)
			compose(a, b, c);
		else
			inexact(a, b);
	}
	printf("%016llx\n", (unsigned long long)digest);
	check(margay_finalize(WAIT));
}
