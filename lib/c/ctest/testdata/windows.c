/* The accesses of mode windows (lib/ranktest), which lib/margay/windows_test.go makes too and
 * explains. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "margay.h"

#define PART 4096
#define PASSED 5000
#define COUNTED 10
#define WAIT 20000

static uint64_t state;
static unsigned char *copies; /* of this rank's parts, by rank */
static size_t words;

static uint64_t scramble(uint64_t x)
{
	x += 0x9e3779b97f4a7c15;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
	x = (x ^ x >> 27) * 0x94d049bb133111eb;
	return x ^ x >> 31;
}

static size_t draw(size_t n)
{
	state = scramble(state);
	return state % n;
}

static void check(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
}

static void same(const void *got, const void *want, size_t size)
{
	if (memcmp(got, want, size) != 0)
		errx(1, "the memory is another one");
}

static void access_bytes(int i, int to, unsigned char *mine, size_t own, int put)
{
	unsigned char got[PART];
	size_t offset = draw(PART), length = draw(PART - offset + 1);
	if (put) {
		for (size_t k = 0; k < length; k++)
			mine[offset + k] = i + k;
		check(margay_put(to, 0, own + offset, mine + offset, length));
	} else {
		check(margay_get(got, to, 0, own + offset, length));
		same(got, mine + offset, length);
	}
}

static void access_word(int to, unsigned char *mine, size_t own)
{
	size_t offset = draw(PART / 8) * 8;
	uint64_t was, old, value = scramble(state);
	memcpy(&was, mine + offset, sizeof was);
	uint64_t expected = was + draw(2);
	if (draw(2) == 0) {
		check(margay_fetch_add(to, 0, own + offset, value, &old));
		value += was;
	} else {
		check(margay_compare_swap(to, 0, own + offset, expected, value, &old));
		if (expected != was)
			value = was;
	}
	if (old != was)
		errx(1, "there was %llx before, not %llx", (unsigned long long)old, (unsigned long long)was);
	memcpy(mine + offset, &value, sizeof value);
}

static void count(void)
{
	for (int i = 0; i < COUNTED; i++) {
		check(margay_fetch_add(0, 0, words + 8, 1, NULL));
		for (uint64_t expected = 0, old;; expected = old) {
			check(margay_compare_swap(0, 0, words + 16, expected, expected + 1, &old));
			if (old == expected)
				break;
		}
	}
	for (size_t event = words + 8; margay_rank() == 0 && event <= words + 16; event += 8) {
		check(margay_event_wait(0, event, COUNTED * margay_size(), WAIT));
		if (margay_event_test(0, event, COUNTED * margay_size()) != 1 || margay_event_test(0, event, COUNTED * margay_size() + 1) != 0)
			errx(1, "the word has counted too far");
	}
}

static void ring(const unsigned char *window)
{
	size_t at = (size_t)margay_size() * PART;
	unsigned char data[PASSED];
	for (int round = 0; round < 10; round++) {
		memset(data, round, sizeof data);
		check(margay_put_event((margay_rank() + 1) % margay_size(), 0, at, data, sizeof data, words));
		check(margay_event_wait(0, words, round + 1, WAIT));
		same(window + at, data, sizeof data);
		check(margay_barrier(WAIT));
	}
}

static void refused(const char *what, int result, const char *why)
{
	if (result != -1 || !strstr(margay_error(), why))
		errx(1, "%s: %s", what, margay_error());
}

static void wrong(void)
{
	int right = (margay_rank() + 1) % margay_size();
	char two[2] = {0};
	refused("a get from no window", margay_get(two, right, 9, 0, 1), "no such window");
	refused("an add to half a word", margay_fetch_add(right, 0, 4, 1, NULL), "not aligned");
	int put = margay_put(right, 0, words + 23, two, sizeof two);
	refused("a put beyond a window", put ? put : margay_quiet(WAIT), "outside the window");
	check(margay_quiet(WAIT)); /* it was reported */
	check(margay_barrier(WAIT));
	put = margay_put(right, 0, words + 23, two, sizeof two);
	if (put) /* at once */
		check(margay_barrier(WAIT));
	else
		refused("a barrier after a put beyond a window", margay_barrier(WAIT), "outside the window");
	check(margay_barrier(WAIT));
	check(margay_quiet(WAIT));
}

/* What a round of started accesses uses. */
struct round {
	unsigned char data[PART], got[PART];
	uint64_t added, swapped;
};

/* start_round starts a put, two atomic accesses and a get of this rank's part of a rank's window. */
static void start_round(struct round *r, int i, margay_request requests[4])
{
	int to = i % margay_size();
	size_t own = (size_t)margay_rank() * PART;
	uint64_t word;
	for (size_t k = 0; k < PART; k++)
		r->data[k] = i + k * 3;
	memcpy(&word, r->data + 8, sizeof word);
	check(margay_put_nb(to, 0, own, r->data, PART, &requests[0]));
	check(margay_fetch_add_nb(to, 0, own + 8, 5, &r->added, &requests[1]));
	check(margay_compare_swap_nb(to, 0, own + 8, word + 5, word + 7, &r->swapped, &requests[2]));
	check(margay_get_nb(r->got, to, 0, own, PART, &requests[3]));
}

/* check_round checks the results of a round. */
static void check_round(struct round *r)
{
	uint64_t word, now;
	memcpy(&word, r->data + 8, sizeof word);
	now = word + 7;
	if (r->added != word || r->swapped != word + 5)
		errx(1, "there was %llx and %llx", (unsigned long long)r->added, (unsigned long long)r->swapped);
	memcpy(r->data + 8, &now, sizeof now);
	same(r->got, r->data, PART);
}

#define ROUNDS 16

/* started starts many accesses before it waits for any. */
static void started(void)
{
	static struct round rounds[ROUNDS];
	margay_request requests[4 * ROUNDS], none[2] = {0, 0};
	int index, half = 2 * ROUNDS;
	for (int i = 0; i < ROUNDS; i++)
		start_round(&rounds[i], i, requests + 4 * i);
	for (int i = 0; i < half; i++) {
		check(margay_request_wait_any(requests, half, &index, WAIT));
		if (index < 0 || requests[index])
			errx(1, "request %d is complete", index);
	}
	while (margay_request_test(&requests[half]) == 0)
		;
	if (margay_request_wait_all(requests, 4 * ROUNDS, WAIT) != 1 || margay_request_wait(&requests[0], WAIT) != 1)
		errx(1, "%s", margay_error());
	if (margay_request_wait_any(none, 2, &index, WAIT) != 1 || index != -1)
		errx(1, "none of the requests is complete: %d", index);
	for (int i = 0; i < ROUNDS; i++)
		check_round(&rounds[i]);
}

/* started_event counts an event with a started put, and checks errors of requests. */
static void started_event(const unsigned char *window)
{
	int right = (margay_rank() + 1) % margay_size();
	size_t at = (size_t)margay_size() * PART;
	unsigned char data[PASSED], two[2] = {0};
	margay_request request, old;
	memset(data, 99, sizeof data);
	check(margay_put_event_nb(right, 0, at, data, sizeof data, words, &request));
	old = request;
	check(margay_event_wait(0, words, 11, WAIT));
	same(window + at, data, sizeof data);
	check(margay_request_wait(&request, WAIT));
	refused("a wait for a request that has ended", margay_request_wait(&old, WAIT), "is not outstanding");
	int err = margay_put_nb(right, 0, words + 23, two, sizeof two, &request);
	refused("a started put beyond a window", err ? err : margay_request_wait(&request, WAIT), "outside the window");
	err = margay_get_nb(two, right, 9, 0, 1, &request);
	refused("a started get from no window", err ? err : margay_request_wait(&request, WAIT), "no such window");
	check(margay_put_nb(right, 0, at, data, sizeof data, &request));
	check(margay_barrier(WAIT)); /* which completes the put */
	check(margay_quiet(WAIT));
	if (margay_request_test(&request) != 1)
		errx(1, "a request is not complete after margay_quiet");
}

/* pending waits for requests without an answer. */
void pending(void)
{
	static uint64_t got, value;
	margay_request requests[MARGAY_MAX_REQUESTS], more;
	check(margay_get_nb(&got, 0, 0, 16, sizeof got, &requests[0]));
	if (margay_request_wait(&requests[0], 50) != 0 || margay_request_test(&requests[0]) != 0)
		errx(1, "a request without an answer is complete");
	for (int i = 1; i < MARGAY_MAX_REQUESTS; i++)
		check(margay_put_nb(0, 0, 0, &value, sizeof value, &requests[i]));
	if (margay_put_nb(0, 0, 0, &value, sizeof value, &more) != -1 || more)
		errx(1, "there are more requests than the limit");
	puts(margay_error());
	check(margay_request_abandon(&requests[0]));
	check(margay_put_nb(0, 0, 0, &value, sizeof value, &requests[0]));
	puts("abandoned");
	fflush(stdout);
	check(margay_request_wait_all(requests, MARGAY_MAX_REQUESTS, WAIT));
	if (got)
		errx(1, "an answer came to memory of an abandoned request");
	check(margay_finalize(WAIT));
}

/* refusals prints what calls say about refused puts. */
void refusals(void)
{
	char one = 0;
	check(margay_put(0, 9, 0, &one, sizeof one));
	if (margay_barrier(WAIT) == -1)
		puts(margay_error());
	check(margay_barrier(WAIT));
	check(margay_put(0, 9, 0, &one, sizeof one));
	if (margay_finalize(WAIT) == -1)
		puts(margay_error());
	if (margay_barrier(WAIT) == -1)
		puts(margay_error());
}

void windows(const char *seed_text, const char *count_text)
{
	size_t own = (size_t)margay_rank() * PART;
	unsigned char got[PART];
	state = strtoull(seed_text, NULL, 10) + margay_rank();
	words = (size_t)margay_size() * PART + (PASSED + 7) / 8 * 8;
	copies = calloc(margay_size(), PART);
	unsigned char *window = margay_window(0, words + 24);
	if (!window || margay_window(0, words + 24) != window)
		errx(1, "%s", margay_error());
	check(margay_barrier(WAIT));
	for (int i = 0; i < atoi(count_text); i++) {
		int to = draw(margay_size());
		size_t kind = draw(4);
		if (kind < 2)
			access_bytes(i, to, copies + to * PART, own, kind == 0);
		else
			access_word(to, copies + to * PART, own);
	}
	check(margay_quiet(WAIT));
	for (int rank = 0; rank < margay_size(); rank++) {
		check(margay_get(got, rank, 0, own, PART));
		same(got, copies + rank * PART, PART);
	}
	count();
	ring(window);
	wrong();
	started();
	started_event(window);
	puts("whole");
	check(margay_finalize(WAIT));
}
