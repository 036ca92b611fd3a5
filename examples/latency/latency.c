/* latency measures how long a message takes from its arrival at a node to its handler in a process there.
 *
 *	margay run -n 2 ./latency [MESSAGES [MICROSECONDS]]
 *
 * Rank 0 sends a message, waits for its echo and then for some time, and again. Rank 1, on the same node, handles it while it polls,
 * while it sleeps, and while it computes and does not look, in turns. The extension stamp notes when it arrived. */
#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <margay.h>

/* The extension's object, and the number of its entries (ext/message/stamp/stamp.c). */
__asm__(".section .rodata\n"
	".global stamp_object\n"
	"stamp_object: .incbin \"" STAMP "\"\n"
	".global stamp_end\n"
	"stamp_end:\n"
	".previous\n");
extern const char stamp_object[], stamp_end[];

enum { STAMPS = 1024 };

enum { TURNS = 20 };

enum { ECHO = 1, MEASURE = 2, INTERRUPT = 128 };

static uint64_t *stamps;           /* when messages arrived */
static uint64_t *arrival, *sending; /* nanoseconds since a message arrived, and since it was sent */
static volatile int count;
static int echoes;

static void check(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static void measure(const struct margay_am *m, void *unused)
{
	uint64_t t = now(), i = m->args[0];
	(void)unused;
	arrival[i] = t - stamps[i % STAMPS];
	sending[i] = t - m->args[1];
	count++;
	if (margay_post(m->source, ECHO, i, 0, NULL, 0) != 1)
		abort();
}

static void echo(const struct margay_am *m, void *unused)
{
	(void)m;
	(void)unused;
	echoes++;
}

/* ---- What rank 1 does meanwhile ---- */

static void polling(int n)
{
	while (count < n)
		margay_poll();
}

static void sleeping(int n)
{
	while (count < n)
		margay_wait(-1);
}

static void computing(int n)
{
	volatile double x = 1;
	check(margay_upcalls(1));
	while (count < n)
		x = x * 1.0000001 + 1e-9;
	check(margay_upcalls(0));
}

static const struct {
	const char *name;
	int handler;
	void (*run)(int n);
} mechanisms[] = {
	{"polling", MEASURE, polling},
	{"blocking receive", MEASURE, sleeping},
	{"signal into a computing process", INTERRUPT, computing},
};

enum { MECHANISMS = sizeof mechanisms / sizeof mechanisms[0] };

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static void print(const char *name, uint64_t *arrival, uint64_t *sending, int n)
{
	qsort(arrival, n, sizeof *arrival, by_size);
	qsort(sending, n, sizeof *sending, by_size);
	printf("%-32s %9.1f %9.1f %9.1f %9.1f\n", name, arrival[n / 2] / 1e3, arrival[n * 99 / 100] / 1e3, sending[n / 2] / 1e3,
	       sending[n * 99 / 100] / 1e3);
}

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 5000, pause = argc > 2 ? atoi(argv[2]) : 200;
	check(margay_init());
	if (margay_size() != 2 || margay_node_of(0) != margay_node_of(1) || n < 1)
		errx(1, "this takes two ranks on one node, and at least one message");
	arrival = calloc((size_t)MECHANISMS * n, sizeof *arrival);
	sending = calloc((size_t)MECHANISMS * n, sizeof *sending);
	if (!arrival || !sending)
		err(1, "calloc");
	if (margay_rank() == 1) {
		struct margay_state state;
		int x = margay_insert("stamp", NULL, stamp_object, stamp_end - stamp_object, NULL, 0);
		check(x);
		check(margay_state(x, "stamps", &state));
		stamps = state.bytes;
		printf("%-32s %19s %19s\n%-32s %9s %9s %9s %9s\n", "us from", "arrival to handler", "sending to handler", "", "p50", "p99", "p50", "p99");
	}
	check(margay_handle(MEASURE, measure, NULL));
	check(margay_handle(INTERRUPT, measure, NULL));
	check(margay_handle(ECHO, echo, NULL));
	for (int turn = 0; turn < TURNS * MECHANISMS; turn++) {
		int m = turn % MECHANISMS, first = m * n + n * (turn / MECHANISMS) / TURNS, end = m * n + n * (turn / MECHANISMS + 1) / TURNS;
		count = echoes = 0;
		check(margay_barrier(-1));
		if (margay_rank() == 1)
			mechanisms[m].run(end - first);
		for (int i = first; i < end && margay_rank() == 0; i++) {
			usleep(pause);
			check(margay_send(1, mechanisms[m].handler, i, now(), NULL, 0));
			while (echoes <= i - first)
				margay_wait(-1);
		}
	}
	for (int m = 0; m < MECHANISMS && margay_rank() == 1; m++)
		print(mechanisms[m].name, arrival + m * n, sending + m * n, n);
	check(margay_finalize(-1));
	return 0;
}
