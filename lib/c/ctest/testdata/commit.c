/* The operations of mode commit (lib/ranktest), which lib/margay/commit_test.go makes too and
 * explains. */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "margay.h"

#define RACED 0
#define COMPARED 8
#define WRITTEN 16
#define ARRIVED 24
#define COMPLETE 32
#define BLOCK 64
#define LONGEST 20000
#define WAIT 60000

static unsigned char *window;

static uint64_t word(size_t at)
{
	uint64_t v;
	memcpy(&v, window + at, sizeof v);
	return v;
}

static int check(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
	return result;
}

static void compare(void)
{
	int size = margay_size() > 1 ? margay_size() - 1 : 1;
	margay_group group;
	check(margay_group_split(MARGAY_WORLD, margay_rank() == size ? -1 : 0, 0, &group, WAIT));
	if (margay_rank() != 0)
		return;
	uint64_t first = 10, last = 9 + size;
	struct {
		enum margay_comparison comparison;
		uint64_t value;
		int want;
	} all[] = {
		{MARGAY_EQ, first, size == 1}, {MARGAY_EQ, first + 1, 0}, {MARGAY_NE, last + 1, 1}, {MARGAY_NE, last, 0},
		{MARGAY_LT, last + 1, 1}, {MARGAY_LT, last, 0}, {MARGAY_LE, last, 1}, {MARGAY_LE, last - 1, 0},
		{MARGAY_GT, first - 1, 1}, {MARGAY_GT, first, 0}, {MARGAY_GE, first, 1}, {MARGAY_GE, first + 1, 0},
	};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		uint64_t want = word(WRITTEN), got;
		int is = check(margay_compare_and_write(group, 3, COMPARED, all[i].comparison, all[i].value, WRITTEN, i + 1, WAIT));
		if (is != all[i].want)
			errx(1, "comparison %zu: %d", i, is);
		if (is)
			want = i + 1;
		for (int rank = 0; rank < size; rank++) {
			check(margay_get(&got, rank, 3, WRITTEN, sizeof got));
			if (got != want)
				errx(1, "comparison %zu: rank %d has %d, not %d", i, rank, (int)got, (int)want);
		}
		if (check(margay_compare_and_write(group, 3, COMPARED, all[i].comparison, all[i].value, MARGAY_NO_WORD, 0, WAIT)) != is)
			errx(1, "comparison %zu alone differs", i);
	}
}

static void race(int n)
{
	for (int won = 0; won < n;) {
		uint64_t was = word(RACED);
		won += check(margay_compare_and_write(MARGAY_WORLD, 3, RACED, MARGAY_EQ, was, RACED, was + 1, WAIT));
	}
	check(margay_barrier(WAIT));
	if (word(RACED) != (uint64_t)n * margay_size())
		errx(1, "the word was raised %d times, not %d", (int)word(RACED), n * margay_size());
}

static void whole(void)
{
	uint32_t n;
	memcpy(&n, window + BLOCK, sizeof n);
	for (uint32_t i = 4; i < n; i++)
		if (n > LONGEST || window[BLOCK + i] != window[BLOCK + 4])
			errx(1, "the block of %u bytes is torn", n);
}

static void transfer(int n, int dies)
{
	static unsigned char data[LONGEST];
	int rank = margay_rank();
	uint64_t last[2];
	margay_request request;
	for (int i = 0; i < n; i++) {
		uint32_t length = 8 + (rank * 7919 + i * 104729) % (LONGEST - 8);
		int test;
		memset(data, rank * 16 + i + 1, length);
		memcpy(data, &length, sizeof length);
		check(margay_xfer_and_signal(MARGAY_WORLD, 3, BLOCK, data, length, ARRIVED, COMPLETE, &request));
		if (i + 1 == dies && rank == margay_size() - 1)
			raise(SIGKILL);
		while ((test = check(margay_event_test(3, COMPLETE, i + 1))) == 0)
			whole();
		check(margay_request_wait(&request, WAIT));
	}
	check(margay_event_wait(3, ARRIVED, (uint64_t)n * margay_size(), WAIT));
	last[0] = word(BLOCK);
	last[1] = ~word(BLOCK);
	check(margay_allreduce(last, last, 2, MARGAY_UINT64, MARGAY_MAX, WAIT));
	if (last[0] != ~last[1])
		errx(1, "the ranks have blocks %llx and %llx", (unsigned long long)last[0], (unsigned long long)~last[1]);
	whole();
}

static void refuses(const char *what, int result, const char *why)
{
	if (result != -1 || !strstr(margay_error(), why))
		errx(1, "%s: %d, %s", what, result, margay_error());
}

static void refused(void)
{
	char data[24] = {1}, none[32] = {0}, *small;
	margay_request request;
	memset(data, 1, sizeof data);
	check(margay_xfer_and_signal(MARGAY_WORLD, 4, 16, data, sizeof data, 8, MARGAY_NO_EVENT, &request));
	refuses("a transfer that the last rank refuses", margay_request_wait(&request, WAIT), "outside the window");
	refuses("a comparison", margay_compare_and_write(MARGAY_WORLD, 4, 0, MARGAY_EQ, 0, 40, 7, WAIT), "outside the window");
	refuses("a comparison in no window", margay_compare_and_write(MARGAY_WORLD, 5, 0, MARGAY_EQ, 0, 40, 7, WAIT), "no such window");
	check(margay_barrier(WAIT));
	small = margay_window(4, sizeof none);
	if (!small || memcmp(small, none, sizeof none) != 0)
		errx(1, "refused operations have changed the window");
	refuses("a local event that is half a word", margay_xfer_and_signal(MARGAY_WORLD, 3, 0, NULL, 0, MARGAY_NO_EVENT, 4, &request), "not aligned");
}

static void freed(int rank)
{
	margay_group group, old;
	check(margay_group_split(MARGAY_WORLD, 0, 0, &group, WAIT));
	old = group;
	if (margay_rank() == rank)
		check(margay_group_free(&group));
	check(margay_barrier(WAIT));
	refuses("a comparison of a freed group", margay_compare_and_write(old, 3, 0, MARGAY_GE, 0, 0, 1, WAIT), margay_rank() == rank ? "there is no group" : "it has freed the group");
	check(margay_barrier(WAIT));
	if (margay_rank() != rank)
		check(margay_group_free(&group));
}

void commits(const char *count, const char *dies)
{
	int n = atoi(count);
	uint64_t number = margay_rank() + 10;
	if (!(window = margay_window(3, BLOCK + LONGEST)) || !margay_window(4, margay_rank() == margay_size() - 1 ? 32 : 64))
		errx(1, "%s", margay_error());
	memcpy(window + COMPARED, &number, sizeof number);
	check(margay_barrier(WAIT));
	compare();
	check(margay_barrier(WAIT));
	race(n);
	check(margay_barrier(WAIT));
	transfer(n, dies ? atoi(dies) : 0);
	check(margay_barrier(WAIT));
	refused();
	check(margay_barrier(WAIT));
	freed(margay_size() - 1);
	freed(0);
	check(margay_barrier(WAIT));
	puts("whole");
	check(margay_finalize(WAIT));
}

void give_up(void)
{
	if (!margay_window(0, 8))
		errx(1, "%s", margay_error());
	for (int i = 0; i < 2; i++) {
		if (margay_compare_and_write(MARGAY_WORLD, 0, 0, MARGAY_EQ, 0, 0, 1, i ? 5000 : 500) == -1)
			puts(margay_error());
		fflush(stdout);
		margay_wait(WAIT);
	}
}
