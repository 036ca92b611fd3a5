/* latency measures the time from a message's arrival at a node to its handler in a process there,
 * and the cost of a switch between processes on a core.
 *
 *	margay run -n 2 ./latency [--json] [MESSAGES [MICROSECONDS]]
 *	margay run -n 3 --per-core 2 ./latency [--json] [MESSAGES [MICROSECONDS]]
 *
 * The last rank, on its own core, repeatedly sends a message, waits for its echo and then for some
 * time. Rank 0 handles it by each mechanism in turns. With two ranks it has its core for itself,
 * unless it starts a second process, so that Linux shares the core. With three ranks, rank 1
 * computes on the same core, shared by the schedulers roundrobin (turns) and message-first. The
 * extension stamp records arrival times. Computing processes compare their results with an
 * undisturbed run. */
#include <err.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <margay.h>

/* Objects of extensions, in this program. */
#define OBJECT(name, file)                                                                                                            \
	__asm__(".section .rodata\n.global " #name "_object\n" #name "_object: .incbin \"" file "\"\n.global " #name "_end\n" #name    \
		"_end:\n.previous\n");                                                                                                 \
	extern const char name##_object[], name##_end[]

OBJECT(stamp, "ext/message/stamp/stamp.o");
OBJECT(message_first, "ext/sched/messagefirst/messagefirst.o");
OBJECT(roundrobin, "ext/sched/roundrobin/roundrobin.o");

enum { STAMPS = 1024 }; /* entries of stamp's map */

enum { TURNS = 10 }; /* at most */

enum { ECHO = 1, MEASURE = 2, INTERRUPT = 128 }; /* handlers; stamp makes upcalls of the last */

enum { STEPS = 200000 }; /* of a piece of work */

static const uint64_t BURST = 100000000; /* nanoseconds of work by which switches are measured, about */
static const uint64_t QUANTUM = 200000;  /* nanoseconds of a turn during the measurement */

/* The cost of a burst of work. */
struct used {
	uint64_t start, end; /* CLOCK_MONOTONIC */
	uint64_t processor;  /* nanoseconds */
	uint64_t lost;       /* times that it lost the core */
};

/* Memory shared by the ranks and the child of rank 0. */
struct shared {
	_Atomic int core[3];
	_Atomic int finished; /* the turn that is over */
	_Atomic int burst;    /* pieces of work of a burst */
	_Atomic int started;  /* the child computes */
	_Atomic uint64_t results, different, taken;
	struct used alone[2], both[2];
};

/* The process that computes on the receiver's core while a message arrives. */
enum companion { NOBODY, CHILD, RANK };

static struct shared *shared;
static uint64_t *stamps;            /* when messages arrived */
static uint64_t *arrival, *sending; /* nanoseconds since a message arrived, and since it was sent */
static uint64_t undisturbed;        /* the result of a piece of work */
static volatile int count;
static int echoes, turn, turns;

static void check(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
}

static uint64_t clock_now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint64_t now(void) { return clock_now(CLOCK_MONOTONIC); }

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

/* ---- Computing ---- */

/* piece is a piece of work whose result depends on each of its steps, in floating point and
 * integers. */
static uint64_t piece(void)
{
	static volatile uint64_t seed = 88172645463325252ull; /* or the compiler knows that all results are the same */
	double x = 1;
	uint64_t h = seed, bits;
	for (int i = 0; i < STEPS; i++) {
		h ^= h << 13, h ^= h >> 7, h ^= h << 17;
		x = x * 1.0000001 + (double)(h >> 40) * 1e-12;
	}
	memcpy(&bits, &x, sizeof bits);
	return h ^ bits;
}

static void compute(void)
{
	if (piece() != undisturbed)
		atomic_fetch_add(&shared->different, 1);
	atomic_fetch_add(&shared->results, 1);
}

/* times_lost is the number of times that Linux preempted this process. */
static uint64_t times_lost(void)
{
	struct rusage r;
	getrusage(RUSAGE_SELF, &r);
	return r.ru_nivcsw;
}

/* accompany computes until the turn ends. */
static void accompany(void)
{
	uint64_t lost = times_lost();
	shared->started = 1;
	while (shared->finished != turn)
		compute();
	shared->taken += times_lost() - lost;
}

static void burst(struct used *u)
{
	struct used was = {now(), 0, clock_now(CLOCK_PROCESS_CPUTIME_ID), times_lost()};
	for (int i = 0; i < shared->burst; i++)
		compute();
	*u = (struct used){was.start, now(), clock_now(CLOCK_PROCESS_CPUTIME_ID) - was.processor, times_lost() - was.lost};
}

/* start_child runs a function in a child process on this core. */
static pid_t start_child(void (*what)(void))
{
	pid_t child = fork();
	if (child < 0)
		err(1, "fork");
	if (child == 0) {
		what();
		_exit(0);
	}
	return child;
}

static void end_child(pid_t child)
{
	int status;
	if (waitpid(child, &status, 0) != child || status != 0)
		errx(1, "the child has failed");
}

/* ---- Rank 0's part ---- */

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
	check(margay_upcalls(1));
	while (count < n)
		compute();
	check(margay_upcalls(0));
}

struct mechanism {
	const char *name, *policy;
	int handler;
	void (*run)(int n);
	enum companion companion;
	int pause; /* microseconds at least, after which the core is the companion's again */
	uint64_t *arrival, *sending;
	uint64_t taken; /* times that the companion lost the core */
};

static struct mechanism alone[] = {
	{"polling", "", MEASURE, polling, NOBODY, 0, NULL, NULL, 0},
	{"blocking receive", "", MEASURE, sleeping, NOBODY, 0, NULL, NULL, 0},
	{"signal into its own computing", "", INTERRUPT, computing, NOBODY, 0, NULL, NULL, 0},
	{"blocking receive beside computing", "Linux", MEASURE, sleeping, CHILD, 0, NULL, NULL, 0},
}, beside[] = {
	{"blocking receive beside computing", "turns", MEASURE, sleeping, RANK, 0, NULL, NULL, 0},
	{"blocking receive beside computing", "message-first", MEASURE, sleeping, RANK, 0, NULL, NULL, 0},
	{"signal, both compute", "turns", INTERRUPT, computing, RANK, 3000, NULL, NULL, 0},
	{"signal, both compute", "message-first", INTERRUPT, computing, RANK, 3000, NULL, NULL, 0},
};

enum { MECHANISMS = sizeof alone / sizeof alone[0] };
_Static_assert(sizeof alone == sizeof beside, "each number of ranks has as many");

/* receive is rank 0's part of a turn. */
static void receive(struct mechanism *m, int n)
{
	pid_t child = 0;
	if (m->companion == CHILD) {
		shared->started = 0;
		child = start_child(accompany);
		while (!shared->started)
			usleep(100);
	}
	m->run(n);
	shared->finished = turn;
	if (child)
		end_child(child);
}

static void transmit(const struct mechanism *m, int first, int end, int pause)
{
	for (int i = first; i < end; i++) {
		usleep(pause > m->pause ? pause : m->pause);
		check(margay_send(0, m->handler, i, now(), NULL, 0));
		while (echoes <= i - first)
			margay_wait(-1);
	}
}

static int insert(const char *name, const char *object, const char *end, const struct margay_setting *setting)
{
	int x = margay_insert(name, NULL, object, end - object, setting, setting != NULL);
	check(x);
	return x;
}

/* take_turn measures some messages of one mechanism. */
static void take_turn(struct mechanism *m, int first, int end, int pause)
{
	int policy = -1, rank = margay_rank();
	turn++;
	count = echoes = 0;
	if (rank == 0) {
		shared->taken = 0;
		arrival = m->arrival;
		sending = m->sending;
		if (strcmp(m->policy, "message-first") == 0)
			policy = insert("message-first", message_first_object, message_first_end, NULL);
		if (strcmp(m->policy, "turns") == 0)
			policy = insert("roundrobin", roundrobin_object, roundrobin_end, NULL);
	}
	check(margay_barrier(-1));
	if (rank == 0)
		receive(m, end - first);
	else if (rank == margay_size() - 1)
		transmit(m, first, end, pause);
	else
		accompany();
	check(margay_barrier(-1));
	if (rank == 0)
		m->taken += shared->taken;
	if (policy >= 0)
		check(margay_remove(policy));
}

/* ---- The cost of a switch ---- */

struct lost {
	int64_t switches, processor, elapsed; /* more than without switches; the last two in nanoseconds */
};

static void child_alone(void) { burst(&shared->alone[1]); }
static void child_both(void) { burst(&shared->both[1]); }

static uint64_t min(uint64_t a, uint64_t b) { return a < b ? a : b; }
static uint64_t max(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* switching runs two processes one after the other and then at the same time on one core. */
static struct lost switching(void)
{
	int rank = margay_rank(), with = margay_size() == 3;
	for (int who = 0; who < 2; who++) {
		check(margay_barrier(-1));
		if (rank == who && (who == 0 || with))
			burst(&shared->alone[who]);
		else if (rank == 0 && !with)
			end_child(start_child(child_alone));
	}
	check(margay_barrier(-1));
	if (rank == 0) {
		pid_t child = with ? 0 : start_child(child_both);
		burst(&shared->both[0]);
		if (child)
			end_child(child);
	} else if (rank == 1 && with) {
		burst(&shared->both[1]);
	}
	check(margay_barrier(-1));
	const struct used *a = shared->alone, *b = shared->both;
	return (struct lost){
		b[0].lost + b[1].lost - a[0].lost - a[1].lost,
		b[0].processor + b[1].processor - a[0].processor - a[1].processor,
		max(b[0].end, b[1].end) - min(b[0].start, b[1].start) - (a[0].end - a[0].start) - (a[1].end - a[1].start),
	};
}

/* ---- The report ---- */

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
	return (x > y) - (x < y);
}

static void print_times(const char *name, const uint64_t *times, int n)
{
	printf("\"%s\": [", name);
	for (int i = 0; i < n; i++)
		printf("%s%llu", i ? "," : "", (unsigned long long)times[i]);
	printf("]");
}

static void print_json(const struct mechanism *mechanisms, int n, const struct lost *lost, const char *policy)
{
	printf("{\"mechanisms\": [");
	for (int i = 0; i < MECHANISMS; i++) {
		const struct mechanism *m = &mechanisms[i];
		printf("%s\n  {\"name\": \"%s\", \"policy\": \"%s\", \"taken\": %llu, ", i ? "," : "", m->name, m->policy,
		       (unsigned long long)m->taken);
		print_times("arrival_ns", m->arrival, n);
		printf(", ");
		print_times("sending_ns", m->sending, n);
		printf("}");
	}
	printf("],\n \"switching\": {\"policy\": \"%s\", \"rounds\": [", policy);
	for (int i = 0; i < turns; i++)
		printf("%s\n  {\"switches\": %lld, \"processor_ns\": %lld, \"elapsed_ns\": %lld}", i ? "," : "", (long long)lost[i].switches,
		       (long long)lost[i].processor, (long long)lost[i].elapsed);
	printf("]},\n \"results\": %llu, \"different\": %llu}\n", (unsigned long long)shared->results,
	       (unsigned long long)shared->different);
}

static void print_text(const struct mechanism *mechanisms, int n, const struct lost *lost, const char *policy)
{
	struct lost sum = {0, 0, 0};
	printf("%-51s %19s %19s\n%-35s %-15s %9s %9s %9s %9s\n", "us from", "arrival to handler", "sending to handler", "", "the core by",
	       "p50", "p99", "p50", "p99");
	for (const struct mechanism *m = mechanisms; m < mechanisms + MECHANISMS; m++)
		printf("%-35s %-15s %9.1f %9.1f %9.1f %9.1f\n", m->name, m->policy, m->arrival[n / 2] / 1e3, m->arrival[n * 99 / 100] / 1e3,
		       m->sending[n / 2] / 1e3, m->sending[n * 99 / 100] / 1e3);
	for (int i = 0; i < turns; i++) {
		sum.switches += lost[i].switches;
		sum.processor += lost[i].processor;
		sum.elapsed += lost[i].elapsed;
	}
	if (sum.switches > 0)
		printf("two that compute, %s: %lld switches, each costs %.1f us of processor time, %.1f us in all\n", policy,
		       (long long)sum.switches, (double)sum.processor / sum.switches / 1e3, (double)sum.elapsed / sum.switches / 1e3);
	printf("%llu results of computing, %llu not those of an undisturbed run\n", (unsigned long long)shared->results,
	       (unsigned long long)shared->different);
}

/* place checks that the ranks are on the right cores. */
static void place(void)
{
	const char *core = getenv("MARGAY_CORE");
	int size = margay_size(), bad = size < 2 || size > 3;
	for (int i = 0; i < size; i++)
		bad |= margay_node_of(i) != margay_node_of(0);
	if (bad)
		errx(1, "this takes two or three ranks on one node: margay run -n 2, or margay run -n 3 --per-core 2");
	shared = margay_region("latency", sizeof *shared, NULL);
	if (!shared)
		errx(1, "%s", margay_error());
	shared->core[margay_rank()] = core ? atoi(core) : -1;
	check(margay_barrier(-1));
	if (shared->core[size - 1] == shared->core[0] || (size == 3 && shared->core[1] != shared->core[0])) {
		if (margay_rank() == 0)
			errx(1, "the last rank needs a core of its own, and rank 1 of three that of rank 0; they are on cores %d, %d, %d: "
			     "margay run -n 3 --per-core 2, or margay run -n 2 --per-core 1",
			     shared->core[0], shared->core[1], size == 3 ? shared->core[2] : -1);
		pause(); /* until rank 0 has said so and ended the job */
	}
}

/* prepare gets ready for n messages of each mechanism. */
static void prepare(struct mechanism *mechanisms, int n)
{
	undisturbed = piece();
	if (margay_rank() != 0)
		return;
	uint64_t start = now();
	if (piece() != undisturbed)
		errx(1, "this processor does not compute the same twice");
	shared->burst = max(1, BURST / (now() - start));
	for (struct mechanism *m = mechanisms; m < mechanisms + MECHANISMS; m++) {
		m->arrival = calloc(n, sizeof *m->arrival);
		m->sending = calloc(n, sizeof *m->sending);
		if (!m->arrival || !m->sending)
			err(1, "calloc");
	}
	struct margay_state state;
	check(margay_state(insert("stamp", stamp_object, stamp_end, NULL), "stamps", &state));
	stamps = state.bytes;
}

int main(int argc, char **argv)
{
	int json = argc > 1 && strcmp(argv[1], "--json") == 0;
	argc -= json;
	argv += json;
	int n = argc > 1 ? atoi(argv[1]) : 1000, pause = argc > 2 ? atoi(argv[2]) : 200;
	struct lost lost[TURNS];
	if (n < 1)
		errx(1, "at least one message");
	turns = n < TURNS ? n : TURNS; /* a turn without a message measures nothing */
	check(margay_init());
	place();
	struct mechanism *mechanisms = margay_size() == 3 ? beside : alone;
	prepare(mechanisms, n);
	check(margay_handle(MEASURE, measure, NULL));
	check(margay_handle(INTERRUPT, measure, NULL));
	check(margay_handle(ECHO, echo, NULL));
	for (int i = 0; i < turns; i++)
		for (int m = 0; m < MECHANISMS; m++)
			take_turn(&mechanisms[m], n * i / turns, n * (i + 1) / turns, pause);
	const struct margay_setting quantum = {"quantum", QUANTUM, 0};
	if (margay_rank() == 0 && margay_size() == 3)
		insert("roundrobin", roundrobin_object, roundrobin_end, &quantum);
	for (int i = 0; i < turns; i++)
		lost[i] = switching();
	if (margay_rank() == 0) {
		const char *policy = margay_size() == 3 ? "roundrobin" : "Linux";
		for (struct mechanism *m = mechanisms; m < mechanisms + MECHANISMS; m++) {
			qsort(m->arrival, n, sizeof *m->arrival, by_size);
			qsort(m->sending, n, sizeof *m->sending, by_size);
		}
		(json ? print_json : print_text)(mechanisms, n, lost, policy);
		if (shared->different)
			errx(1, "computing was disturbed");
	}
	check(margay_finalize(-1));
	return 0;
}
