/* measure.c repeats an operation for a bounded time and reports how long each repetition took.
 *
 *	PROGRAM [TRANSPORT'S ARGUMENTS] OPERATION BYTES MILLISECONDS */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "measure.h"

enum {
	FIRST = 4,        /* repetitions that compare all bytes */
	MOST = 1000000,   /* repetitions */
	QUANTILES = 1000, /* times of a report */
	TIMEOUT = 35,     /* seconds for everything, less than turnLimit of the command */
	PARTS = 8,        /* repetitions are counted, and ranks agree to go on, so often */
	CLOCKS = 1001,    /* readings that find the cost of one */
	LATE = 2000,      /* microseconds */
	SETTLE = 20000    /* microseconds in which margay receives the line and reads clocks */
};

static uint64_t laps[MOST]; /* the time of each repetition */
static int lapped;
static uint64_t last; /* when the last repetition ended */
static int thorough; /* compare all bytes of messages */

static uint64_t clock_now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

void lap(void)
{
	uint64_t t = clock_now(CLOCK_MONOTONIC);
	laps[lapped++] = t - last;
	last = t;
}

int train(size_t bytes)
{
	size_t n = ((size_t)16 << 20) / (bytes ? bytes : 1);
	return n < 4 ? 4 : n > LONG_TRAIN ? LONG_TRAIN : n;
}

int all_to_all(size_t bytes)
{
	(void)bytes;
	return all_ranks() * (all_ranks() - 1) * EACH;
}

/* ---- The contents of messages ---- */

static unsigned char pattern(size_t i) { return i * 31 + 7; }

unsigned char *buffer(unsigned char **place, size_t bytes)
{
	if (*place)
		return *place;
	*place = malloc(bytes ? bytes : 1);
	if (!*place)
		err(1, "malloc");
	for (size_t i = 0; i < bytes; i++)
		(*place)[i] = pattern(i);
	return *place;
}

static size_t word(size_t bytes) { return bytes < sizeof(uint64_t) ? bytes : sizeof(uint64_t); }

void stamp(void *message, size_t bytes, uint64_t n)
{
	memcpy(message, &n, word(bytes));
	memcpy((char *)message + bytes - word(bytes), &n, word(bytes));
}

void expect(const void *message, size_t bytes, uint64_t n)
{
	const unsigned char *b = message;
	if (memcmp(b, &n, word(bytes)) != 0 || memcmp(b + bytes - word(bytes), &n, word(bytes)) != 0)
		errx(1, "rank %d: a message of %zu bytes is not number %llu", my_rank(), bytes, (unsigned long long)n);
	for (size_t i = word(bytes); thorough && i + word(bytes) < bytes; i++)
		if (b[i] != pattern(i))
			errx(1, "rank %d: byte %zu of message %llu is %u", my_rank(), i, (unsigned long long)n, b[i]);
}

void must(int right, const char *what)
{
	if (!right)
		errx(1, "rank %d: wrong result: %s", my_rank(), what);
}

/* ---- Barriers ---- */

/* test_barrier makes one rank come late to a barrier and compares when ranks entered and left. */
static void test_barrier(int late)
{
	uint64_t entered[MOST_RANKS], left[MOST_RANKS];
	if (my_rank() == late)
		usleep(LATE);
	uint64_t in = clock_now(CLOCK_MONOTONIC);
	meet();
	uint64_t out = clock_now(CLOCK_MONOTONIC);
	collect(in, entered);
	agree(0);
	collect(out, left);
	agree(0);
	for (int i = 0; my_rank() == 0 && i < all_ranks(); i++)
		for (int j = 0; j < all_ranks(); j++)
			must(entered[i] <= left[j], "a barrier that a rank left before another entered");
}

void barrier(size_t bytes, int n)
{
	(void)bytes;
	for (int i = 0; thorough && i < all_ranks(); i++)
		test_barrier(i);
	for (int i = 0; i < n; i++) {
		meet();
		if (my_rank() == 0)
			lap();
	}
}

/* ---- Repetitions ---- */

/* repeat makes n repetitions and returns their time. */
static uint64_t repeat(const struct operation *o, size_t bytes, int n)
{
	int before = lapped;
	uint64_t start = last = clock_now(CLOCK_MONOTONIC);
	o->run(bytes, n);
	must(my_rank() != 0 || lapped == before + n, "the number of repetitions");
	return clock_now(CLOCK_MONOTONIC) - start;
}

/* warm_up repeats an operation until caches, connections and branches are warm, and returns how
 * many repetitions take a part of the time. */
static int warm_up(const struct operation *o, size_t bytes, uint64_t time)
{
	thorough = 1;
	repeat(o, bytes, FIRST);
	thorough = 0;
	for (int n = 1;; n *= 2) {
		lapped = 0;
		uint64_t took = repeat(o, bytes, n);
		lapped = 0;
		if (!agree(took < time / PARTS && n <= MOST / PARTS / 2))
			return n;
	}
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

/* clock_cost returns the time between two readings of the clock. */
static uint64_t clock_cost(void)
{
	uint64_t cost[CLOCKS], last = clock_now(CLOCK_MONOTONIC);
	for (int i = 0; i < CLOCKS; i++) {
		uint64_t t = clock_now(CLOCK_MONOTONIC);
		cost[i] = t - last;
		last = t;
	}
	qsort(cost, CLOCKS, sizeof cost[0], by_size);
	return cost[CLOCKS / 2];
}

/* report prints the times of n repetitions: all of them, or as many quantiles. */
static void report(const struct operation *o, size_t bytes, int n, uint64_t cpu)
{
	uint64_t clock = clock_cost();
	int points = n < QUANTILES ? n : QUANTILES;
	for (int i = 0; i < n; i++)
		laps[i] = laps[i] > clock ? laps[i] - clock : 1;
	qsort(laps, n, sizeof laps[0], by_size);
	printf("{\"repetitions\": %d, \"messages\": %d, \"cpu_ns\": %llu, \"times_ns\": [", n, o->messages ? o->messages(bytes) : 1,
	       (unsigned long long)cpu);
	for (int i = 0; i < points; i++) /* the middle of each part */
		printf("%s%llu", i ? "," : "", (unsigned long long)laps[(2 * i + 1ll) * n / (2 * points)]);
	printf("]}\n");
}

static void measure(const struct operation *o, size_t bytes, uint64_t time)
{
	uint64_t all[MOST_RANKS], sum = 0, took = 0;
	int part = warm_up(o, bytes, time), n = 0;
	if (my_rank() == 0) {
		printf("begin\n");
		fflush(stdout);
		usleep(SETTLE);
	}
	agree(0);
	uint64_t cpu = clock_now(CLOCK_PROCESS_CPUTIME_ID);
	do {
		took += repeat(o, bytes, part);
		n += part;
	} while (agree(took < time && n <= MOST - part));
	cpu = clock_now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	if (my_rank() == 0) {
		printf("end\n");
		fflush(stdout);
	}
	collect(cpu, all);
	if (my_rank() != 0)
		return;
	for (int i = 0; i < all_ranks(); i++)
		sum += all[i];
	report(o, bytes, n, sum);
}

/* absence returns why there is nothing to measure, or NULL. */
static const char *absence(const struct operation *o, size_t bytes)
{
	if (!o->name)
		return "there is no such operation";
	if (o->ranks && o->ranks != all_ranks())
		return "not for so many ranks";
	if (o->most && bytes > o->most)
		return o->limit;
	return NULL;
}

/* too_long ends a rank that waits for a message that never comes. */
static void too_long(int unused)
{
	static const char text[] = "there is no result in time\n";
	(void)unused;
	_exit(write(2, text, sizeof text - 1) > 0 ? 3 : 4);
}

int main(int argc, char **argv)
{
	signal(SIGALRM, too_long);
	alarm(TIMEOUT);
	int used = join(argc - 1, argv + 1);
	argc -= 1 + used;
	argv += 1 + used;
	if (argc != 3)
		errx(2, "it takes OPERATION BYTES MILLISECONDS");
	if (all_ranks() > MOST_RANKS)
		errx(2, "it is for %d ranks at most", MOST_RANKS);
	size_t bytes = strtoull(argv[1], NULL, 10);
	uint64_t time = strtoull(argv[2], NULL, 10) * 1000000;
	const struct operation *o = operations;
	while (o->name && strcmp(o->name, argv[0]) != 0)
		o++;
	const char *why = absence(o, bytes);
	if (!why)
		measure(o, bytes, time);
	else if (my_rank() == 0)
		printf("{\"absent\": \"%s\"}\n", why);
	fflush(stdout);
	leave();
	return 0;
}
