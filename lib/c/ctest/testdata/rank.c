/* The rank of the contract suite (lib/ranktest), with the C library. */
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "margay.h"

void collect(const char *seed, const char *count, const char *die);
void windows(const char *seed, const char *count);
void pending(void);
void commits(const char *count, const char *dies);
void give_up(void);
void refusals(void);

static struct message {
	int source;
	uint64_t args[2];
	size_t length;
	char *payload;
} *came;
static size_t count, room;
static int quit;

static void check(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
}

static void on_message(const struct margay_am *m, void *data)
{
	if (count == room) {
		room = 2 * room + 16;
		came = realloc(came, room * sizeof *came);
	}
	struct message *c = &came[count++];
	c->source = m->source;
	c->length = m->length;
	memcpy(c->args, m->args, sizeof c->args);
	c->payload = malloc(m->length + 1);
	memcpy(c->payload, m->payload, m->length);
	if (data != &came)
		errx(1, "the handler's data is lost");
}

static void on_quit(const struct margay_am *m, void *data)
{
	(void)m;
	*(int *)data = 1;
}

static void echo(void)
{
	check(margay_handle(1, on_message, &came));
	check(margay_handle(3, on_quit, &quit));
	while (!quit) {
		if (margay_wait(20000) == 0)
			errx(1, "%s", margay_error());
		for (size_t i = 0; i < count; i++) { /* while it sends, more may come */
			struct message m = came[i];
			check(margay_send(m.source, 2, m.args[0], m.args[1] + 1, m.payload, m.length));
			free(m.payload);
		}
		count = 0;
	}
	check(margay_barrier(20000));
	check(margay_finalize(20000));
}

static void flood(int n)
{
	unsigned char payload[MARGAY_MAX_PAYLOAD];
	for (int i = 0; i < n; i++) {
		for (size_t j = 0; j < sizeof payload; j++)
			payload[j] = i + j;
		check(margay_send(0, 7, i, ~(uint64_t)i, payload, i % (MARGAY_MAX_PAYLOAD + 1)));
	}
	check(margay_finalize(20000));
}

static volatile int handled, failed;

static void on_upcall(const struct margay_am *m, void *data)
{
	(void)data;
	failed |= margay_post(m->source, 2, m->args[0], m->args[1] + 1, m->payload, m->length) != 1;
	handled++;
}

static void on_awaited(const struct margay_am *m, void *data)
{
	(void)m;
	--*(volatile int *)data;
}

static int none_missing(void *data) { return *(volatile int *)data == 0; }

static void await(int n, int barriers)
{
	volatile int missing = n;
	check(margay_handle(5, on_awaited, (void *)&missing));
	for (int i = 0; i < barriers; i++)
		check(margay_barrier(20000));
	check(margay_upcalls(1));
	check(margay_wait_for(none_missing, (void *)&missing, 20000));
	check(margay_finalize(20000));
}

static void on_counted(const struct margay_am *m, void *data)
{
	(void)m;
	++*(int *)data;
}

static void meet(int n, int timeout)
{
	int counted = 0;
	check(margay_handle(6, on_counted, &counted));
	for (int i = 1; i <= n; i++) {
		check(margay_send(0, 6, i, 0, NULL, 0));
		check(margay_barrier(i == n ? timeout : 20000));
		if (counted < i)
			errx(1, "after barrier %d, %d messages have been handled", i, counted);
	}
	check(margay_finalize(20000));
}

static void served(int timeout)
{
	int counted = 0;
	check(margay_handle(6, on_counted, &counted));
	check(margay_wait(20000) == 1 ? 0 : -1);
	const char *window = margay_window(0, 4096);
	check(window ? 0 : -1);
	int n = margay_wait(timeout);
	printf("%d %d", n, window[0]);
}

static void compute(int n)
{
	check(margay_handle(4, on_upcall, NULL));
	check(margay_upcalls(1));
	while (handled < n)
		;
	if (failed)
		errx(1, "an upcall is not sent back");
	check(margay_finalize(20000));
}

static void services(void)
{
	size_t size;
	char *region = margay_region("shared", 4096, &size);
	if (!region || size != 4096)
		errx(1, "%s", margay_error());
	region[0] = 'R';
	struct margay_setting settings[] = {{"c", 5, 0}, {"m", 6, 1}};
	int x = margay_insert("x", "message", "object", 6, settings, 2);
	check(x);
	struct margay_stats s;
	check(margay_stats(x, &s));
	printf("%llu %llu %llu %llu %s\n", (unsigned long long)s.runs, (unsigned long long)s.instructions, (unsigned long long)s.faults,
	       (unsigned long long)s.nanoseconds, s.last_fault);
	struct margay_state state;
	check(margay_state(x, "m", &state));
	*(char *)state.bytes = 'S';
	printf("%zu %zu\n", state.entries, state.stride);
	fflush(stdout);
	check(margay_remove(x));
	check(margay_insert(NULL, NULL, "object", 6, NULL, 0));
}

struct element {
	struct element *next;
	uint64_t value;
};

static void list(const char *what)
{
	size_t size;
	struct element **first = margay_fixed_region("list", 4096, &size);
	if (!first || size != 4096 || first != margay_fixed_region("list", 0, NULL))
		errx(1, "%s", margay_error());
	struct element *elements = (struct element *)(first + 2);
	if (strcmp(what, "write") == 0) {
		for (int i = 0; i < 10; i++) {
			elements[i] = (struct element){.next = i < 9 ? &elements[i + 1] : NULL, .value = i * i};
		}
		*first = elements;
	}
	uint64_t sum = 0;
	for (struct element *e = *first; e; e = e->next)
		sum += e->value;
	printf("%p %llu\n", (void *)first, (unsigned long long)sum);
}

static void on_late(const struct margay_am *m, void *data)
{
	(void)m;
	(void)data;
	errx(1, "a handler runs");
}

static int holds(void *data) { return data == NULL; }

/* says prints the error of a call that has failed. */
static void says(int failed)
{
	if (failed)
		puts(margay_error());
}

static void finalized(void)
{
	struct margay_stats stats;
	struct margay_state state;
	check(margay_handle(5, on_late, NULL));
	int x = margay_insert(NULL, NULL, "object", 6, NULL, 0);
	check(x);
	check(margay_upcalls(1));
	check(margay_finalize(20000));
	puts("finalized");
	fflush(stdout);
	while (getchar() != EOF)
		;
	if (margay_poll() != -1 || margay_upcalls(1) != -1 || margay_upcalls(0) != -1 || margay_mask(0) != -1 || margay_mask(1) != -1)
		errx(1, "it polls, or changes what upcalls do");
	says(margay_send(0, 7, 0, 0, NULL, 0) == -1);
	says(margay_post(0, 7, 0, 0, NULL, 0) == -1);
	says(margay_wait(1000) == -1);
	says(margay_wait_for(holds, NULL, 1000) == -1);
	says(margay_barrier(1000) == -1);
	says(margay_finalize(1000) == -1);
	says(margay_region("shared", 4096, NULL) == NULL);
	says(margay_fixed_region("shared", 4096, NULL) == NULL);
	says(margay_insert(NULL, NULL, "object", 6, NULL, 0) == -1);
	says(margay_stats(x, &stats) == -1);
	says(margay_state(x, "m", &state) == -1);
	says(margay_remove(x) == -1);
	says(margay_broadcast(0, &stats, 8, 1000) == -1);
}

static void calls(void)
{
	double in = 0, out;
	int32_t number = 0;
	char eight[8], all[3 * sizeof eight];
	says(margay_reduce(9, &number, &number, 1, MARGAY_INT32, MARGAY_SUM, 1000) == -1);
	says(margay_allreduce(&in, &out, 1, MARGAY_FLOAT64, MARGAY_AND, 1000) == -1);
	says(margay_broadcast(0, eight, sizeof eight, 20000) == -1);
	says(margay_allgather(eight, sizeof eight, all, 1000) == -1);
}

static void tests(void)
{
	char eight[8];
	margay_request first, second;
	int complete;
	check(margay_group_broadcast_nb(MARGAY_WORLD, 0, eight, sizeof eight, &first));
	check(margay_group_broadcast_nb(MARGAY_WORLD, 0, eight, sizeof eight, &second));
	while ((complete = margay_request_test(&first)) == 0)
		;
	says(complete == -1 && first == 0);
	says(margay_request_wait(&second, -1) == -1);
	says(margay_broadcast(0, eight, sizeof eight, 4000) == -1);
}

int main(int argc, char **argv)
{
	if (argc < 2)
		errx(2, "usage: rank MODE");
	check(margay_init());
	if (strcmp(argv[1], "nowhere") == 0) {
		if (margay_send(3, 0, 0, 0, NULL, 0) < 0)
			puts(margay_error());
		if (margay_send(0, 256, 0, 0, NULL, 0) < 0)
			puts(margay_error());
		if (margay_send(0, 0, 0, 0, NULL, MARGAY_MAX_MESSAGE + 1) < 0)
			puts(margay_error());
		if (margay_post(0, 0, 0, 0, NULL, MARGAY_MAX_PAYLOAD + 1) < 0)
			puts(margay_error());
		if (!margay_window(1, 0))
			puts(margay_error());
		if (margay_barrier(50) < 0 && margay_barrier(50) < 0)
			puts(margay_error());
	} else if (strcmp(argv[1], "forked") == 0) {
		pid_t child = fork();
		if (child == 0) {
			says(margay_send(0, 1, 0, 0, NULL, 0) == -1);
			return 0;
		}
		check(waitpid(child, NULL, 0) == child ? 0 : -1);
		check(margay_send(0, 1, 0, 0, NULL, 0));
	} else if (strcmp(argv[1], "who") == 0) {
		printf("%d %d %d %d %d %d %d", margay_job(), margay_rank(), margay_size(), margay_node(), margay_nodes(), margay_local_rank(),
		       margay_local_size());
		for (int rank = 0; rank < margay_size(); rank++)
			printf(" %d", margay_node_of(rank));
	} else if (strcmp(argv[1], "echo") == 0) {
		echo();
	} else if (strcmp(argv[1], "flood") == 0) {
		flood(atoi(argv[2]));
	} else if (strcmp(argv[1], "list") == 0) {
		list(argv[2]);
	} else if (strcmp(argv[1], "await") == 0) {
		await(atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 1);
	} else if (strcmp(argv[1], "meet") == 0) {
		meet(atoi(argv[2]), argc > 3 ? atoi(argv[3]) : 20000);
	} else if (strcmp(argv[1], "served") == 0) {
		served(atoi(argv[2]));
	} else if (strcmp(argv[1], "compute") == 0) {
		compute(atoi(argv[2]));
	} else if (strcmp(argv[1], "finalized") == 0) {
		finalized();
	} else if (strcmp(argv[1], "calls") == 0) {
		calls();
	} else if (strcmp(argv[1], "overdue") == 0) {
		char eight[8];
		says(margay_broadcast(0, eight, sizeof eight, atoi(argv[2])) == -1);
	} else if (strcmp(argv[1], "split") == 0) {
		margay_group group;
		says(margay_group_split(MARGAY_WORLD, 0, 0, &group, 20000) == -1 && group == MARGAY_NO_GROUP);
		says(margay_group_barrier(group, 0) == -1);
	} else if (strcmp(argv[1], "tests") == 0) {
		tests();
	} else if (strcmp(argv[1], "windows") == 0) {
		windows(argv[2], argv[3]);
	} else if (strcmp(argv[1], "commit") == 0) {
		commits(argv[2], argv[3]);
	} else if (strcmp(argv[1], "giveup") == 0) {
		give_up();
	} else if (strcmp(argv[1], "pending") == 0) {
		pending();
	} else if (strcmp(argv[1], "refused") == 0) {
		refusals();
	} else if (strcmp(argv[1], "collect") == 0) {
		collect(argv[2], argv[3], argc > 4 ? argv[4] : NULL);
	} else {
		services();
	}
	return 0;
}
