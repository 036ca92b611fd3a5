/* The transport of Margay's library.
 *
 *	margay run -n 2 fabric poll|block OPERATION BYTES MILLISECONDS
 *
 * With poll a rank that waits polls, with block it sleeps in the library. */
#include <err.h>
#include <string.h>

#include <margay.h>

#include "measure.h"

enum { AGREED = 1, COLLECTED, PING, PONG, TRAIN, THANKS, ALL, DONE }; /* handlers */

enum { WORDS = 1024 }; /* of a reduction at most */

enum { AHEAD = 16 }; /* values that rank 0 may have sent before another reads one; there are never so many */

static int blocking;
static unsigned char *out; /* a message to send */

/* Numbers of messages that have been handled. */
static volatile uint64_t agreed, collected, pings, pongs, trained, thanks, arrived, done;
static uint64_t arrived_from[MOST_RANKS];
static uint64_t agreements[AHEAD], collection[MOST_RANKS];

static void check(int result)
{
	if (result < 0)
		errx(1, "rank %d: %s", margay_rank(), margay_error());
}

/* await handles messages until a count has been reached. */
static void await(const volatile uint64_t *count, uint64_t n)
{
	while (*count < n)
		check(blocking ? margay_wait(-1) : margay_poll());
}

static void on_agreed(const struct margay_am *m, void *unused)
{
	(void)unused;
	agreements[agreed % AHEAD] = m->args[0];
	agreed++;
}

static void on_collected(const struct margay_am *m, void *unused)
{
	(void)unused;
	collection[m->source] = m->args[0];
	collected++;
}

/* ---- Operations ---- */

static void on_ping(const struct margay_am *m, void *unused)
{
	(void)unused;
	expect(m->payload, m->length, pings++);
	if (margay_post(m->source, PONG, m->length, 0, m->payload, m->length) != 1)
		errx(1, "there is no room for an answer");
}

static void on_pong(const struct margay_am *m, void *unused)
{
	(void)unused;
	must(m->length == m->args[0], "the length of a message");
	expect(m->payload, m->length, pongs++);
}

static void roundtrip(size_t bytes, int n)
{
	static uint64_t total;
	unsigned char *message = buffer(&out, bytes);
	for (int i = 0; my_rank() == 0 && i < n; i++) {
		stamp(message, bytes, total + i);
		check(margay_send(1, PING, bytes, 0, message, bytes));
		await(&pongs, total + i + 1);
		lap();
	}
	total += n;
	if (my_rank() == 1)
		await(&pings, total);
}

static void on_train(const struct margay_am *m, void *unused)
{
	(void)unused;
	must(m->length == m->args[0], "the length of a message");
	expect(m->payload, m->length, trained++);
}

static void on_thanks(const struct margay_am *m, void *unused)
{
	(void)unused;
	must(m->args[0] == ++thanks, "the number of an acknowledgement");
}

static void rate(size_t bytes, int n)
{
	static uint64_t sent, trains;
	int length = train(bytes);
	unsigned char *message = buffer(&out, bytes);
	for (int i = 0; i < n; i++) {
		trains++;
		for (int j = 0; my_rank() == 0 && j < length; j++) {
			stamp(message, bytes, sent + j);
			check(margay_send(1, TRAIN, bytes, 0, message, bytes));
		}
		sent += length;
		if (my_rank() == 0) {
			await(&thanks, trains);
			lap();
		} else {
			await(&trained, sent);
			check(margay_send(0, THANKS, trains, 0, NULL, 0));
		}
	}
}

static void on_all(const struct margay_am *m, void *unused)
{
	(void)unused;
	must(m->length == m->args[0], "the length of a message");
	expect(m->payload, m->length, arrived_from[m->source]++);
	arrived++;
}

static void alltoall(size_t bytes, int n)
{
	static uint64_t sent, want;
	unsigned char *message = buffer(&out, bytes);
	for (int i = 0; i < n; i++) {
		for (int j = 0; j < EACH; j++) {
			stamp(message, bytes, sent++);
			for (int k = 1; k < all_ranks(); k++)
				check(margay_send((my_rank() + k) % all_ranks(), ALL, bytes, 0, message, bytes));
		}
		want += (uint64_t)EACH * (all_ranks() - 1);
		await(&arrived, want);
		if (my_rank() == 0)
			lap();
	}
}

/* ---- Collectives ---- */

static void allreduce(size_t bytes, int n)
{
	int64_t in[WORDS], out[WORDS];
	int words = bytes / sizeof in[0], ranks = all_ranks();
	for (int i = 0; i < n; i++) {
		for (int j = 0; j < words; j++)
			in[j] = my_rank() + i + j;
		check(margay_allreduce(in, out, words, MARGAY_INT64, MARGAY_SUM, -1));
		for (int j = 0; j < words; j++)
			must(out[j] == (int64_t)ranks * (ranks - 1) / 2 + (int64_t)ranks * (i + j), "a sum");
		if (my_rank() == 0)
			lap();
	}
}

/* ---- One-sided operations: rank 0 works on a window of rank 1 ---- */

static unsigned char *memory; /* of this rank, in its window */

/* expose makes, once, a window that the others work on. It begins as message 0. */
static void expose(size_t bytes)
{
	if (memory)
		return;
	static unsigned char *contents;
	memory = margay_window(0, bytes);
	must(memory != NULL, margay_error());
	memcpy(memory, buffer(&contents, bytes), bytes);
	stamp(memory, bytes, 0);
	check(margay_barrier(-1));
}

static void on_done(const struct margay_am *m, void *unused)
{
	(void)m;
	(void)unused;
	done++;
}

/* conclude waits until rank 0 is ready. */
static void conclude(void)
{
	static uint64_t times;
	if (my_rank() == 0)
		check(margay_send(1, DONE, 0, 0, NULL, 0));
	else
		await(&done, ++times);
}

static void put(size_t bytes, int n)
{
	unsigned char *message = buffer(&out, bytes);
	expose(bytes);
	for (int i = 1; my_rank() == 0 && i <= n; i++) {
		stamp(message, bytes, i);
		check(margay_put(1, 0, 0, message, bytes));
		check(margay_quiet(-1));
		lap();
	}
	conclude();
	if (my_rank() == 1)
		expect(memory, bytes, n);
	check(margay_barrier(-1)); /* before the memory changes again */
}

static void get(size_t bytes, int n)
{
	static unsigned char *in;
	unsigned char *message = buffer(&in, bytes);
	expose(bytes);
	for (int i = 0; my_rank() == 0 && i < n; i++) {
		stamp(message, bytes, 1); /* not the number of the message to get */
		check(margay_get(message, 1, 0, 0, bytes));
		expect(message, bytes, 0);
		lap();
	}
	conclude();
}

static void fetchadd(size_t bytes, int n)
{
	static uint64_t total;
	uint64_t old = 0;
	expose(bytes);
	for (int i = 0; my_rank() == 0 && i < n; i++) {
		check(margay_fetch_add(1, 0, 0, 1, &old));
		must(old == total + i, "a number fetched");
		lap();
	}
	conclude();
	total += n;
	must(my_rank() != 1 || memcmp(memory, &total, sizeof total) == 0, "the number in memory");
	check(margay_barrier(-1));
}

#define LIMIT MARGAY_MAX_MESSAGE, "messages hold 1 MiB"
#define POSTED MARGAY_MAX_PAYLOAD, "handlers answer with 1 KiB at most"

static const struct operation table[] = {
	{"roundtrip", roundtrip, NULL, 2, POSTED}, {"rate", rate, train, 2, LIMIT}, {"alltoall", alltoall, all_to_all, 0, LIMIT},
	{"barrier", barrier, NULL, 0, 0, NULL}, {"allreduce", allreduce, NULL, 0, WORDS * 8, "the program sums 1,024 words"},
	{"put", put, NULL, 2, 0, NULL}, {"get", get, NULL, 2, 0, NULL}, {"fetchadd", fetchadd, NULL, 2, 0, NULL},
	{NULL, NULL, NULL, 0, 0, NULL},
};

const struct operation *operations = table;

/* ---- The transport ---- */

int join(int argc, char **argv)
{
	if (argc < 1 || (strcmp(argv[0], "poll") != 0 && strcmp(argv[0], "block") != 0))
		errx(2, "the first argument is poll or block");
	blocking = strcmp(argv[0], "block") == 0;
	check(margay_init());
	const struct {
		int number;
		margay_handler run;
	} handlers[] = {
		{AGREED, on_agreed}, {COLLECTED, on_collected}, {PING, on_ping}, {PONG, on_pong},
		{TRAIN, on_train},   {THANKS, on_thanks},       {ALL, on_all},
		{DONE, on_done},
	};
	for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++)
		check(margay_handle(handlers[i].number, handlers[i].run, NULL));
	check(margay_barrier(-1));
	return 1;
}

void meet(void) { check(margay_barrier(-1)); }
void leave(void) { check(margay_finalize(-1)); }
int my_rank(void) { return margay_rank(); }
int all_ranks(void) { return margay_size(); }

uint64_t agree(uint64_t value)
{
	static uint64_t times;
	if (my_rank() != 0) {
		await(&agreed, times + 1);
		return agreements[times++ % AHEAD];
	}
	for (int i = 1; i < all_ranks(); i++)
		check(margay_send(i, AGREED, value, 0, NULL, 0));
	return value;
}

void collect(uint64_t value, uint64_t *all)
{
	if (my_rank() != 0) {
		check(margay_send(0, COLLECTED, value, 0, NULL, 0));
		return;
	}
	static uint64_t want;
	await(&collected, want += all_ranks() - 1);
	collection[0] = value;
	memcpy(all, collection, all_ranks() * sizeof all[0]);
}
