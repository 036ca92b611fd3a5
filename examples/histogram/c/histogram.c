/* histogram counts the words of a text on all nodes of a job.
 *
 *	margay run -n 8 --with FILE ./histogram-c [-c ENTRIES] [-p] [-t] FILE
 *
 * Each rank counts the words of its share of the text. It sends every word with its count as an
 * active message to the word's owner, a rank given by the word's hash. There the extension
 * accumulate adds the count to a table in the node kernel or on the node's network interface, while
 * the rank sleeps. Finally the first rank of each node reads its node's table and sends the result
 * to rank 0, which prints it. The Go example beside this one does the same.
 *
 * With -p the ranks send no word before rank 0 has read a line of its standard input, so that
 * `margay ext list` can show where the extension runs. With -t rank 0 prints the processor time of
 * the ranks for a message. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <margay.h>

enum {
	MAX_WORD = 64, /* as in the extension */
	TOP_TEN = 10,
	TIMEOUT = 600 * 1000, /* ms */
};

/* The messages of this program. */
enum {
	COUNT_WORD, /* for the extension; payload: a word, first argument: its count */
	ALL_SENT,   /* to the first rank of each node; first argument: how many words this rank has sent to that node */
	NODE_TOTAL, /* to rank 0; payload: struct total */
	NODE_TOP,   /* to rank 0; payload: a word, first argument: its count */
};

/* The extension's object, and the layout of its state (ext/message/accumulate/accumulate.c). */
__asm__(".section .rodata\n"
	".global accumulate_object\n"
	"accumulate_object: .incbin \"" ACCUMULATE "\"\n"
	".global accumulate_end\n"
	"accumulate_end:\n"
	".previous\n");
extern const char accumulate_object[], accumulate_end[];

struct accumulate_totals {
	uint64_t handled, sum, full, refused;
};

struct accumulate_slot {
	uint32_t length, reserved;
	uint64_t count;
	char word[MAX_WORD];
};

/* The histogram of a text. */
struct count {
	uint64_t count;
	size_t length;
	char word[MAX_WORD];
};

struct histogram {
	uint64_t words, different, fingerprint;
	int tops;
	struct count top[TOP_TEN + 1];
};

struct total {
	uint64_t handled, words, different, fingerprint;
};

static void die(const char *what, const char *why)
{
	fprintf(stderr, "histogram: %s: %s\n", what, why);
	exit(1);
}

static void must(int result, const char *what)
{
	if (result < 0)
		die(what, margay_error());
}

/* ---- Words ---- */

static int is_part(unsigned char c)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* each_word calls f for every word of the runs of letters, digits and underscores that begin in
 * text[begin, end). A run of more than MAX_WORD bytes is several words. */
static void each_word(const char *text, size_t size, size_t begin, size_t end, void (*f)(const char *word, size_t length))
{
	size_t at = begin;
	if (begin > 0 && begin < size && is_part(text[begin - 1]))
		while (at < size && is_part(text[at]))
			at++; /* this run began before */
	while (at < end) {
		while (at < end && !is_part(text[at]))
			at++;
		if (at == end)
			return;
		size_t first = at;
		while (at < size && is_part(text[at])) {
			if (++at - first == MAX_WORD) {
				f(text + first, MAX_WORD);
				first = at;
			}
		}
		if (at > first)
			f(text + first, at - first);
	}
}

/* hash is FNV-1a. */
static uint64_t hash(const char *word, size_t length)
{
	uint64_t h = 14695981039346656037ULL;
	for (size_t i = 0; i < length; i++)
		h = (h ^ (unsigned char)word[i]) * 1099511628211ULL;
	return h;
}

/* The words of this rank's share: a hash table with open addressing. */
struct entry {
	uint64_t hash, count;
	const char *word;
	size_t length;
};

static struct {
	struct entry *entries;
	size_t size, used; /* size is a power of two */
} table;

static struct entry *find(struct entry *entries, size_t size, uint64_t h, const char *word, size_t length)
{
	for (size_t i = h;; i++) {
		struct entry *e = &entries[i & (size - 1)];
		if (!e->word || (e->hash == h && e->length == length && memcmp(e->word, word, length) == 0))
			return e;
	}
}

static void grow(void)
{
	size_t size = table.size ? 2 * table.size : 1 << 12;
	struct entry *entries = calloc(size, sizeof *entries);
	if (!entries)
		die("count", "out of memory");
	for (size_t i = 0; i < table.size; i++) {
		struct entry *e = &table.entries[i];
		if (e->word)
			*find(entries, size, e->hash, e->word, e->length) = *e;
	}
	free(table.entries);
	table.entries = entries;
	table.size = size;
}

static void count_word(const char *word, size_t length)
{
	if (4 * table.used >= 3 * table.size)
		grow();
	uint64_t h = hash(word, length);
	struct entry *e = find(table.entries, table.size, h, word, length);
	if (!e->word) {
		*e = (struct entry){.hash = h, .word = word, .length = length};
		table.used++;
	}
	e->count++;
}

/* ---- The histogram ---- */

static int before(const struct count *a, const struct count *b)
{
	if (a->count != b->count)
		return a->count > b->count;
	size_t n = a->length < b->length ? a->length : b->length;
	int c = memcmp(a->word, b->word, n);
	return c ? c < 0 : a->length < b->length;
}

static void add_top(struct histogram *h, const char *word, size_t length, uint64_t count)
{
	struct count c = {.count = count, .length = length};
	memcpy(c.word, word, length);
	int at = h->tops;
	for (; at > 0 && before(&c, &h->top[at - 1]); at--)
		h->top[at] = h->top[at - 1];
	h->top[at] = c;
	if (h->tops < TOP_TEN)
		h->tops++;
}

/* ---- The job ---- */

static int finished;           /* ranks that have sent all their words, to the first rank of a node */
static uint64_t expected;      /* words that they have sent to this node */
static int reported;           /* nodes that have reported to rank 0 */
static struct histogram whole; /* the sum of their reports */
static uint64_t *handled;      /* by node */
static int *handled_node;

static void on_all_sent(const struct margay_am *m, void *data)
{
	(void)data;
	finished++;
	expected += m->args[0];
}

static void on_node_top(const struct margay_am *m, void *data)
{
	(void)data;
	add_top(&whole, m->payload, m->length, m->args[0]);
}

static void on_node_total(const struct margay_am *m, void *data)
{
	struct total t;
	(void)data;
	memcpy(&t, m->payload, sizeof t);
	int at = reported++;
	for (; at > 0 && handled_node[at - 1] > m->node; at--) {
		handled[at] = handled[at - 1];
		handled_node[at] = handled_node[at - 1];
	}
	handled[at] = t.handled;
	handled_node[at] = m->node;
	whole.words += t.words;
	whole.different += t.different;
	whole.fingerprint += t.fingerprint;
}

static int insert(uint32_t capacity)
{
	struct margay_setting settings[] = {
		{"capacity", capacity, 0},
		{"handler", COUNT_WORD, 0},
		{"table", capacity, 1},
	};
	int extension = margay_insert("accumulate", NULL, accumulate_object, accumulate_end - accumulate_object, settings, 3);
	must(extension, "insert extension");
	return extension;
}

/* send_words sends this rank's counts, and the number of words sent to each node to that node's
 * first rank. */
static void send_words(void)
{
	uint64_t *sent = calloc(margay_size(), sizeof *sent); /* by rank */
	if (!sent)
		die("send", "out of memory");
	for (size_t i = 0; i < table.size; i++) {
		struct entry *e = &table.entries[i];
		if (!e->word)
			continue;
		int owner = e->hash % margay_size();
		must(margay_send(owner, COUNT_WORD, e->count, 0, e->word, e->length), "send word");
		sent[owner]++;
	}
	for (int leader = 0, next; leader < margay_size(); leader = next) {
		uint64_t n = 0;
		for (next = leader; next < margay_size() && margay_node_of(next) == margay_node_of(leader); next++)
			n += sent[next];
		must(margay_send(leader, ALL_SENT, n, 0, NULL, 0), "send");
	}
	free(sent);
}

static int all_finished(void *data)
{
	(void)data;
	return finished == margay_size();
}

static int all_reported(void *data)
{
	(void)data;
	return reported == margay_nodes();
}

static uint64_t processor_time(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (uint64_t)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 + (uint64_t)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* report reads this node's table, when all words have arrived, and sends it to rank 0. */
static void report(int extension)
{
	struct margay_state state;
	struct histogram h = {0};
	must(margay_wait_for(all_finished, NULL, TIMEOUT), "wait for the other ranks");
	must(margay_state(extension, "totals", &state), "read totals");
	struct accumulate_totals t = *(struct accumulate_totals *)state.bytes;
	if (t.full || t.refused)
		die("the table is full", "the option -c makes it larger");
	if (t.handled != expected) {
		fprintf(stderr, "histogram: node %d: %" PRIu64 " words were sent, %" PRIu64 " handled\n", margay_node(), expected, t.handled);
		exit(1);
	}
	must(margay_state(extension, "table", &state), "read table");
	for (size_t i = 0; i < state.entries; i++) {
		struct accumulate_slot *s = (struct accumulate_slot *)((char *)state.bytes + i * state.stride);
		if (s->length == 0 || s->length > MAX_WORD)
			continue;
		h.words += s->count;
		h.different++;
		h.fingerprint += hash(s->word, s->length) * s->count;
		add_top(&h, s->word, s->length, s->count);
	}
	for (int i = 0; i < h.tops; i++)
		must(margay_send(0, NODE_TOP, h.top[i].count, 0, h.top[i].word, h.top[i].length), "send");
	struct total total = {t.handled, h.words, h.different, h.fingerprint};
	must(margay_send(0, NODE_TOTAL, 0, 0, &total, sizeof total), "send");
}

/* await_line waits until rank 0 has read a line. */
static void await_line(void)
{
	if (margay_rank() == 0)
		for (int c = getchar(); c != EOF && c != '\n'; c = getchar())
			;
	must(margay_barrier(TIMEOUT), "barrier");
}

/* print_time prints the processor time of the ranks, in microseconds here. */
static void print_time(uint64_t spent)
{
	uint64_t all, messages = 0;
	must(margay_allreduce(&spent, &all, 1, MARGAY_UINT64, MARGAY_SUM, TIMEOUT), "all-reduce");
	for (int i = 0; i < reported; i++)
		messages += handled[i];
	if (margay_rank() == 0 && messages > 0)
		printf("%.2f us on the cores of the ranks for a message\n", (double)all / messages);
}

/* words returns the number of words of the text, from this rank's share of it. */
static uint64_t words(void)
{
	uint64_t share = 0, all;
	for (size_t i = 0; i < table.size; i++)
		share += table.entries[i].count;
	must(margay_allreduce(&share, &all, 1, MARGAY_UINT64, MARGAY_SUM, TIMEOUT), "all-reduce");
	return all;
}

/* print prints the histogram of a text with so many words. */
static void print(uint64_t all)
{
	uint64_t messages = 0;
	must(margay_wait_for(all_reported, NULL, TIMEOUT), "wait for the nodes");
	if (whole.words != all) {
		fprintf(stderr, "histogram: %" PRIu64 " words were counted, the text has %" PRIu64 "\n", whole.words, all);
		exit(1);
	}
	printf("%10s  %s\n", "count", "word");
	for (int i = 0; i < whole.tops; i++)
		printf("%10" PRIu64 "  %.*s\n", whole.top[i].count, (int)whole.top[i].length, whole.top[i].word);
	printf("%" PRIu64 " words, %" PRIu64 " different, fingerprint %016" PRIx64 "\n", whole.words, whole.different, whole.fingerprint);
	for (int i = 0; i < reported; i++)
		messages += handled[i];
	printf("%" PRIu64 " messages sent and handled: ", messages);
	for (int i = 0; i < reported; i++)
		printf("%snode%d %" PRIu64, i ? ", " : "", handled_node[i], handled[i]);
	printf("\n");
}

static void count_share(const char *path)
{
	struct stat info;
	int file = open(path, O_RDONLY);
	if (file < 0 || fstat(file, &info) != 0) {
		perror(path);
		exit(1);
	}
	size_t size = info.st_size;
	if (size > 0) {
		char *text = mmap(NULL, size, PROT_READ, MAP_SHARED, file, 0);
		if (text == MAP_FAILED)
			die("map text", "no memory");
		size_t rank = margay_rank(), ranks = margay_size();
		each_word(text, size, size * rank / ranks, size * (rank + 1) / ranks, count_word);
	}
	close(file);
}

int main(int argc, char **argv)
{
	uint32_t capacity = 1 << 16;
	int option, pauses = 0, timed = 0;
	while ((option = getopt(argc, argv, "c:pt")) != -1 && option != '?') {
		if (option == 'c')
			capacity = strtoul(optarg, NULL, 10);
		pauses |= option == 'p';
		timed |= option == 't';
	}
	if (option != -1 || optind != argc - 1 || capacity == 0 || (capacity & (capacity - 1))) {
		fprintf(stderr, "usage: histogram-c [-c ENTRIES (a power of two)] [-p] [-t] FILE\n");
		return 2;
	}
	must(margay_init(), "init");
	handled = calloc(margay_nodes(), sizeof *handled);
	handled_node = calloc(margay_nodes(), sizeof *handled_node);
	if (!handled || !handled_node)
		die("start", "out of memory");
	margay_handle(ALL_SENT, on_all_sent, NULL);
	margay_handle(NODE_TOTAL, on_node_total, NULL);
	margay_handle(NODE_TOP, on_node_top, NULL);
	int extension = margay_local_rank() == 0 ? insert(capacity) : -1;
	must(margay_barrier(TIMEOUT), "barrier"); /* every node has the extension now */
	count_share(argv[optind]);
	uint64_t all = words();
	if (pauses)
		await_line();
	uint64_t begin = processor_time();
	send_words();
	must(margay_barrier(TIMEOUT), "barrier"); /* all words have been handled */
	uint64_t spent = processor_time() - begin;
	if (extension >= 0)
		report(extension);
	if (margay_rank() == 0)
		print(all);
	if (timed)
		print_time(spent);
	must(margay_finalize(TIMEOUT), "finalize");
	return 0;
}
