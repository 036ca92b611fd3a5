/* Ranks read and write the registered memory of each other at random over queues with little room, and
 * are held to a reference: each byte of each region, what each read gives, and how each operation
 * ends. At the end all are complete, and nothing is left over.
 *
 *	simulate_rma SEED STEPS honest|hostile|reopen
 *
 * With hostile, the last rank sends bytes at random, and changed copies of what the others have sent
 * it; then the others must come to no harm: it changes nothing but its own regions and those that it
 * may write. With reopen, it drops its operations again and again; then all that it sends must make
 * sense, and in the end no rank owes another one anything. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rma.h"

#define RANKS 3
#define REGIONS 4	 /* of a rank */
#define SIZE 9000	 /* bytes of a region */
#define OPS 60		 /* at a time */
#define KEY(rank, i) ((uint64_t)(rank) << 32 | (i))
#define OPEN 2		 /* of the regions that may be written, the last rank has the keys of these alone */

#define CHECK(what)                                                                                                                                         \
	do {                                                                                                                                                \
		if (!(what)) {                                                                                                                              \
			fprintf(stderr, "line %d: not true: %s\n", __LINE__, #what);                                                                        \
			exit(1);                                                                                                                            \
		}                                                                                                                                           \
	} while (0)

static uint64_t state;
static int hostile, reopens;
static int done_count, pulled, refused, dropped, events;

static uint64_t draw(void)
{
	state += 0x9e3779b97f4a7c15;
	uint64_t z = state;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

static int below(int n) { return draw() % n; }

static void *make(size_t size)
{
	void *p = calloc(1, size ? size : 1);
	CHECK(p);
	return p;
}

static struct rma machines[RANKS];

/* ---- Messages on their way ---- */

struct datagram {
	struct datagram *next;
	int kind;
	uint64_t args[2];
	size_t length;
	char payload[RMA_PAYLOAD];
};

static struct way {
	struct datagram *first, **last;
	int count;
} ways[RANKS][RANKS];

static void enqueue(int from, int to, int kind, const uint64_t args[2], const void *payload, size_t length)
{
	struct way *w = &ways[from][to];
	struct datagram *d = make(sizeof *d);
	CHECK(length <= RMA_PAYLOAD);
	d->kind = kind;
	memcpy(d->args, args, sizeof d->args);
	d->length = length;
	if (length)
		memcpy(d->payload, payload, length);
	if (!w->first)
		w->last = &w->first;
	*w->last = d;
	w->last = &d->next;
	w->count++;
}

static int post(void *io, int rank, int kind, const uint64_t args[2], const void *payload, size_t length)
{
	int from = (struct rma *)io - machines;
	if (ways[from][rank].count >= 6 || below(5) == 0)
		return 0;
	enqueue(from, rank, kind, args, payload, length);
	return 1;
}

/* ---- The reference ---- */

/* A region has the access that its number says: none of it, reading, writing, both. */
static struct region {
	struct rma_region region;
	int closed;
	char *bytes;
	char expected[SIZE];
} regions[RANKS][REGIONS];

/* An operation. No two of them touch the same bytes at a time, unless both read. */
static struct op {
	struct rma_op rma;
	int used, at, index, region_rank;
	size_t offset, length;
	enum rma_status expected;
	char *bytes;
	uint64_t data;
} ops[OPS];

/* Events that are due, and those that have come and were not taken, by target and initiator. */
static int due[RANKS][RANKS], untaken[RANKS][RANKS];

static int overlaps(const struct op *a, const struct op *b)
{
	return a->region_rank == b->region_rank && a->index == b->index && a->offset < b->offset + b->length && b->offset < a->offset + a->length &&
	       (a->rma.writes || b->rma.writes);
}

static const struct rma_region *find(void *io, uint64_t key)
{
	int rank = (struct rma *)io - machines;
	for (int i = 0; i < REGIONS; i++)
		if (regions[rank][i].region.key == key && !regions[rank][i].closed)
			return &regions[rank][i].region;
	return NULL;
}

static void release(struct op *o)
{
	free(o->bytes);
	o->bytes = NULL;
	o->used = 0;
}

/* may_vary reports whether a hostile rank decides how an operation ends. */
static int may_vary(const struct op *o) { return hostile && !reopens && o->rma.rank == RANKS - 1; }

/* is_loose reports whether the last rank may change a region at any time. */
static int is_loose(int rank, int index) { return hostile && (index == OPEN || rank == RANKS - 1); }

static void done(void *io, struct rma_op *r)
{
	struct op *o = list_of(r, struct op, rma);
	struct region *region = &regions[o->region_rank][o->index];
	CHECK(o->used && io == &machines[o->at]);
	done_count++;
	if (r->status == RMA_DROPPED) {
		CHECK(reopens && o->at == RANKS - 1);
		dropped++;
		release(o);
		return;
	}
	if (!may_vary(o)) {
		CHECK(r->status == o->expected);
		if (o->expected != RMA_OK)
			refused++;
		else if (r->writes && o->length)
			memcpy(region->expected + o->offset, o->bytes, o->length);
		if (o->expected == RMA_OK && o->length > 0 && !is_loose(o->region_rank, o->index))
			CHECK(memcmp(r->writes ? region->bytes + o->offset : region->expected + o->offset, o->bytes, o->length) == 0);
	}
	release(o);
}

static int written(void *io, int rank, uint64_t length, uint64_t data)
{
	int at = (struct rma *)io - machines;
	(void)length;
	if (!(hostile && rank == RANKS - 1)) {
		CHECK(data == KEY(rank, at) && due[at][rank] > 0);
		due[at][rank]--;
	}
	if (below(10) == 0)
		return 0;
	events++;
	CHECK(++untaken[at][rank] <= RMA_EVENTS + RMA_SLOTS);
	return 1;
}

/* ---- Places ---- */

static int offer(void *io, int rank, uint64_t length, uint64_t proof[PLACE_PROOF])
{
	(void)length;
	uint64_t from = (struct rma *)io - machines;
	memcpy(proof, (uint64_t[]){from, 1, 2}, PLACE_PROOF * sizeof proof[0]);
	return rank >= 0 && below(2);
}

/* is_in reports whether bytes are in the memory of an operation, or of a region. */
static int is_in(const char *at, size_t n, const char *bytes, size_t size) { return bytes && at >= bytes && n <= size && (size_t)(at - bytes) <= size - n; }

/* is_there reports whether a part of a place is memory of a rank: a hostile one names any. */
static int is_there(const struct iovec *part)
{
	for (int i = 0; i < OPS; i++)
		if (ops[i].used && is_in(part->iov_base, part->iov_len, ops[i].bytes, ops[i].length))
			return 1;
	for (int rank = 0; rank < RANKS; rank++)
		for (int i = 0; i < REGIONS; i++)
			if (is_in(part->iov_base, part->iov_len, regions[rank][i].bytes, SIZE))
				return 1;
	return 0;
}

static int pull(void *io, int rank, const struct place *from, const struct memory *to)
{
	char *copy = make(to->length); /* a hostile rank may name the memory itself */
	(void)io;
	CHECK(from->memory.length == to->length && (hostile || rank == (int)from->proof[0]));
	int can = below(3) > 0;
	for (size_t i = 0; can && i < from->memory.count; i++)
		can = is_there(&from->memory.parts[i]);
	if (can) {
		memory_gather(&from->memory, 0, copy, to->length);
		memory_scatter(to, 0, copy, to->length);
	}
	free(copy);
	pulled += can;
	return can;
}

static const struct rma_io calls = {post, offer, pull, find, done, written};

/* ---- Steps ---- */

/* split makes parts of a buffer. */
static void split(struct memory *m, char *bytes, size_t length)
{
	m->length = length;
	m->count = 0;
	for (size_t at = 0; at < length;) {
		size_t n = m->count == MEMORY_PARTS - 1 || below(2) ? length - at : 1 + (size_t)below(length - at);
		m->parts[m->count++] = (struct iovec){bytes + at, n};
		at += n;
	}
}

static size_t some_length(void)
{
	switch (below(4)) {
	case 0:
		return below(3);
	case 1:
		return RMA_PAYLOAD - 20 + below(24);
	case 2:
		return below(SIZE + 1);
	}
	return below(RMA_PAYLOAD);
}

/* is_busy reports whether an operation under way has a region. */
static int is_busy(int rank, int index)
{
	for (int i = 0; i < OPS; i++)
		if (ops[i].used && ops[i].region_rank == rank && ops[i].index == index)
			return 1;
	return 0;
}

static struct op *unused(void)
{
	for (int i = 0; i < OPS; i++)
		if (!ops[i].used)
			return &ops[i];
	return NULL;
}

static int is_honest(int rank) { return rank < RANKS - 1 || !hostile || reopens; }

/* some_op begins an operation, which may be wrong. */
static void some_op(int at, int rank)
{
	struct op *o = unused();
	if (!o || (!is_honest(rank) && below(20) > 0)) /* which answers few */
		return;
	*o = (struct op){.at = at, .region_rank = rank, .index = at < RANKS - 1 ? below(8) ? 1 + below(REGIONS - 1) : 0 : below(OPEN + 1), .length = some_length()};
	o->offset = o->length < SIZE ? below(SIZE - o->length) : 0;
	o->rma = (struct rma_op){.rank = rank, .writes = below(2), .address = o->offset, .key = KEY(rank, o->index)};
	struct region *region = &regions[rank][o->index];
	for (int i = 0; i < OPS; i++)
		if (ops[i].used && overlaps(o, &ops[i]))
			return;
	if (below(12) == 0)
		o->rma.address += below(2) ? SIZE : ~(uint64_t)0 - below(2 * SIZE);
	if (below(12) == 0)
		o->rma.key ^= 1 << 20;
	if (region->closed || o->rma.key != KEY(rank, o->index))
		o->expected = RMA_NO_KEY;
	else if (!(region->region.access & (o->rma.writes ? RMA_MAY_WRITE : RMA_MAY_READ)))
		o->expected = RMA_NO_ACCESS;
	else if (o->rma.address > SIZE || o->length > SIZE - o->rma.address)
		o->expected = RMA_OUTSIDE;
	if (o->length == 0)
		o->expected = RMA_OK;
	else if (o->expected == RMA_OK && o->rma.address != o->offset)
		return; /* wrong, and yet in the region */
	o->bytes = make(o->length);
	for (size_t i = 0; o->rma.writes && i < o->length; i++)
		o->bytes[i] = (char)draw();
	split(&o->rma.memory, o->bytes, o->length);
	if (o->rma.writes && below(3) == 0) {
		o->rma.has_data = 1;
		o->rma.data = KEY(at, rank);
		due[rank][at] += o->expected == RMA_OK;
	}
	o->used = 1;
	rma_start(&machines[at], &o->rma);
}

/* close_region closes a region that no honest operation uses, or opens it again. */
static void close_region(int rank, int i)
{
	if (!is_busy(rank, i) && !reopens)
		regions[rank][i].closed = below(6) == 0;
}

static void deliver(int from, int to)
{
	struct way *w = &ways[from][to];
	struct datagram *d = w->first;
	if (!d)
		return;
	w->first = d->next;
	w->count--;
	char *exact = make(d->length); /* so that a reader beyond it is found */
	memcpy(exact, d->payload, d->length);
	if (!hostile || reopens || to < RANKS - 1)
		rma_arrive(&machines[to], from, d->kind, d->args, exact, d->length);
	free(exact);
	free(d);
}

/* harm has the hostile rank send something. */
static void harm(int to)
{
	const struct datagram *d = ways[to][RANKS - 1].first;
	uint64_t words[RMA_PAYLOAD / 8];
	uint64_t args[2] = {draw(), draw()};
	size_t length = below(4) ? (size_t)below(24) : (size_t)below(sizeof words + 1);
	int kind = below(RMA_KINDS);
	if (ways[RANKS - 1][to].count >= 6)
		return;
	for (size_t i = 0; i < sizeof words / 8; i++)
		words[i] = draw();
	if (below(2)) { /* nearly right */
		int flags = below(16), region = below(OPEN + 1);
		uint64_t size = below(3) ? (uint64_t)below(900) : (uint64_t)below(2 * SIZE);
		args[0] = kind == RMA_REQUEST ? (uint64_t)below(SIZE) : (uint64_t)below(RMA_SLOTS + 1) | (uint64_t)below(RMA_STATUSES + 1) << (below(2) ? 8 : 60);
		args[1] = kind == RMA_REQUEST ? (uint64_t)flags << 56 | (uint64_t)below(RMA_SLOTS + 1) << 48 | size
			: kind == RMA_ANSWER  ? 0
					      : (uint64_t)below(3) * RMA_PAYLOAD;
		words[0] = KEY(to, region);
		length = kind == RMA_REQUEST ? 8 + ((flags & 2) ? 8 : 0) + (size % 1000) * ((flags & 13) == 1) : kind == RMA_ANSWER && below(2) ? 0 : length;
		if (kind == RMA_REQUEST && flags & 4 && flags & 1) { /* a place, perhaps of another rank */
			size_t n = flags & 2 ? 2 : 1;
			words[n + PLACE_PROOF] = (uintptr_t)regions[below(RANKS)][below(REGIONS)].bytes + below(100);
			words[n + PLACE_PROOF + 1] = size;
			length = 8 * (n + PLACE_PROOF + 2);
		}
	} else if (d && below(2)) {
		kind = below(4) ? d->kind : kind;
		memcpy(args, d->args, sizeof args);
		args[below(2)] ^= (uint64_t)1 << below(64);
		length = d->length;
		memcpy(words, d->payload, length);
	}
	enqueue(RANKS - 1, to, kind, args, words, length);
}

static void take_event(int at)
{
	int rank = below(RANKS);
	if (untaken[at][rank] > 0 && below(2)) {
		untaken[at][rank]--;
		rma_took(&machines[at], rank);
	}
}

static void step(void)
{
	int a = below(RANKS), b = below(RANKS);
	if (!is_honest(a)) {
		harm(b);
		return;
	}
	switch (below(12)) {
	case 0:
	case 1:
	case 2:
		some_op(a, b);
		break;
	case 3:
		close_region(a, below(REGIONS));
		break;
	case 4:
		take_event(a);
		break;
	case 5:
		if (reopens && a == RANKS - 1 && below(8) == 0)
			rma_drop(&machines[a]);
		break;
	case 6:
	case 7:
		rma_progress(&machines[a]);
		break;
	default:
		deliver(below(RANKS), b);
		break;
	}
}

/* drain has everything arrive. */
static void drain(void)
{
	for (int round = 0; round < 20000; round++) {
		int left = 0;
		for (int i = 0; i < OPS; i++)
			left += ops[i].used && !may_vary(&ops[i]);
		for (int a = 0; a < RANKS; a++) {
			take_event(a);
			if (is_honest(a))
				rma_progress(&machines[a]);
			for (int b = 0; b < RANKS; b++) {
				left += (is_honest(a) && is_honest(b)) * (ways[a][b].count + untaken[a][b] + rma_awaits(&machines[a], b));
				deliver(a, b);
			}
		}
		if (!left)
			return;
	}
	CHECK(!"it comes to an end");
}

/* check_end checks what is left, and the bytes of all regions that no dishonest rank may write. */
static void check_end(void)
{
	for (int a = 0; a < RANKS; a++)
		CHECK(!machines[a].failed && (hostile || machines[a].under_way == 0) && (!is_honest(RANKS - 1) || machines[a].nonsense == 0));
	for (int rank = 0; rank < RANKS; rank++)
		for (int i = 0; i < REGIONS; i++)
			if (!is_loose(rank, i))
				CHECK(memcmp(regions[rank][i].bytes, regions[rank][i].expected, SIZE) == 0);
	for (int a = 0; a < RANKS && is_honest(RANKS - 1); a++)
		for (int b = 0; b < RANKS; b++)
			CHECK(!rma_awaits(&machines[a], b) && (reopens || due[a][b] == 0));
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	state = strtoull(argv[1], NULL, 10);
	reopens = strcmp(argv[3], "reopen") == 0;
	hostile = reopens || strcmp(argv[3], "hostile") == 0;
	for (int rank = 0; rank < RANKS; rank++) {
		CHECK(rma_open(&machines[rank], RANKS, &calls, &machines[rank]) == 0);
		for (int i = 0; i < REGIONS; i++) {
			struct region *r = &regions[rank][i];
			r->bytes = make(SIZE);
			r->region = (struct rma_region){.key = KEY(rank, i), .access = i};
			split(&r->region.memory, r->bytes, SIZE);
		}
	}
	for (int i = atoi(argv[2]); i > 0; i--)
		step();
	if (reopens)
		rma_drop(&machines[RANKS - 1]);
	drain();
	check_end();
	unsigned long long nonsense = 0;
	for (int rank = 0; rank < RANKS; rank++) {
		nonsense += machines[rank].nonsense;
		rma_close(&machines[rank]);
	}
	printf("%d operations, %d refused, %d dropped, %d copied in place, %d events, %llu messages dropped\n", done_count, refused, dropped, pulled, events,
	       nonsense);
	return 0;
}
