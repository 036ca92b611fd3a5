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
	puts("whole");
	check(margay_finalize(WAIT));
}
