/* offload adds numbers of all ranks in the node kernels: an all-reduce by an extension.
 *
 *	margay run -n 8 ./offload-c [CALLS]
 *
 * Each rank sends its numbers to itself. The extension allreduce of its node takes them, combines
 * the numbers of the node's ranks and other nodes' sums, and sends the result to every rank: no
 * rank is woken before it is there. The program makes the same calls with the library, compares the
 * results, and prints the time of a call and the processor time that a rank spends on it. The Go
 * example beside this one does the same. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include <margay.h>

enum {
	VALUES = 4,
	TIMEOUT = 600 * 1000, /* ms */

	/* The extension's messages (ext/message/allreduce). */
	PART = 10,
	RESULT = PART + 2,
};

/* The extension's object. */
__asm__(".section .rodata\n"
	".global allreduce_object\n"
	"allreduce_object: .incbin \"ext/message/allreduce/allreduce.o\"\n"
	".global allreduce_end\n"
	"allreduce_end:\n"
	".previous\n");
extern const char allreduce_object[], allreduce_end[];

static void die(const char *what, const char *why)
{
	fprintf(stderr, "offload: %s: %s\n", what, why);
	exit(1);
}

static void must(int result, const char *what)
{
	if (result < 0)
		die(what, margay_error());
}

/* ---- The all-reduce of the extension ---- */

static struct {
	uint64_t calls, results; /* started, finished */
	uint64_t values[VALUES];
} reduction;

static void on_result(const struct margay_am *m, void *data)
{
	(void)data;
	if (!m->extension || m->length != sizeof reduction.values || m->args[0] != reduction.results || m->args[1] != MARGAY_SUM)
		die("all-reduce by the extension", "a result that makes no sense");
	memcpy(reduction.values, m->payload, sizeof reduction.values);
	reduction.results++;
}

static int is_there(void *data)
{
	(void)data;
	return reduction.results == reduction.calls;
}

static void by_extension(const uint64_t *in, uint64_t *out)
{
	must(margay_send(margay_rank(), PART, reduction.calls++, MARGAY_SUM, in, VALUES * sizeof *in), "contribute");
	must(margay_wait_for(is_there, NULL, TIMEOUT), "await the result");
	memcpy(out, reduction.values, VALUES * sizeof *out);
}

static void by_library(const uint64_t *in, uint64_t *out)
{
	must(margay_allreduce(in, out, VALUES, MARGAY_UINT64, MARGAY_SUM, TIMEOUT), "all-reduce");
}

/* ---- Measuring ---- */

struct cost {
	uint64_t time, processor; /* nanoseconds */
};

static uint64_t processor_time(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000000 + (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1000;
}

static struct cost now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (struct cost){(uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec, processor_time()};
}

/* measure makes calls and returns what they cost. Their results are added up in sums. */
static struct cost measure(void (*reduce)(const uint64_t *, uint64_t *), int calls, uint64_t *sums)
{
	must(margay_barrier(TIMEOUT), "barrier");
	struct cost begin = now();
	for (int i = 0; i < calls; i++) {
		uint64_t in[VALUES], out[VALUES];
		for (int k = 0; k < VALUES; k++)
			in[k] = (uint64_t)(margay_rank() + 1) * (uint64_t)(i + k + 1);
		reduce(in, out);
		for (int k = 0; k < VALUES; k++)
			sums[k] = sums[k] * 31 + out[k];
	}
	struct cost end = now();
	return (struct cost){end.time - begin.time, end.processor - begin.processor};
}

static void print(const char *how, struct cost c, int calls)
{
	uint64_t all;
	must(margay_allreduce(&c.processor, &all, 1, MARGAY_UINT64, MARGAY_SUM, TIMEOUT), "all-reduce");
	if (margay_rank() == 0)
		printf("%-12s %8.1f us a call, %8.1f us of it on the core of a rank\n", how, (double)c.time / 1e3 / calls,
		       (double)all / margay_size() / 1e3 / calls);
}

int main(int argc, char **argv)
{
	int calls = argc > 1 ? atoi(argv[1]) : 1000, extension = 0;
	uint64_t library[VALUES] = {0}, offloaded[VALUES] = {0};

	if (calls < 1)
		die("arguments", "the number of calls is at least 1");
	must(margay_init(), "init");
	margay_handle(RESULT, on_result, NULL);
	struct cost of_library = measure(by_library, calls, library);
	if (margay_local_rank() == 0) {
		struct margay_setting settings[] = {{"handler", PART, 0}};
		extension = margay_insert("allreduce", NULL, allreduce_object, allreduce_end - allreduce_object, settings, 1);
		must(extension, "insert extension");
	}
	struct cost of_extension = measure(by_extension, calls, offloaded); /* its barrier: all nodes have the extension */
	if (memcmp(library, offloaded, sizeof library) != 0)
		die("all-reduce by the extension", "a wrong result");
	must(margay_barrier(TIMEOUT), "barrier");
	if (extension)
		must(margay_remove(extension), "remove extension");
	print("library", of_library, calls);
	print("extension", of_extension, calls);
	if (margay_rank() == 0)
		printf("%d all-reduces of %d ranks, nodes: %d, equal results, fingerprint %016" PRIx64 "\n", calls, margay_size(), margay_nodes(), library[0]);
	must(margay_finalize(TIMEOUT), "finalize");
	return 0;
}
