/* Engines of some ranks send messages to each other at random over queues with little room, and
 * are held to a simple reference: which message each receive gets, when its head arrives or the
 * receive is posted, and each byte of it. At the end everything has been received, and nothing is
 * left over.
 *
 *	simulate SEED STEPS honest|hostile|reopen
 *
 * With hostile, the last rank sends bytes at random, and changed copies of what the others have sent
 * it; then the others must come to no harm. With reopen, it ends what is under way again and again,
 * and goes on; then all that it sends must make sense, and no receive waits for it for ever. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

#define RANKS 3
#define MOST 20000
#define TAGS 4

#define CHECK(what)                                                                                                                                         \
	do {                                                                                                                                                \
		if (!(what)) {                                                                                                                              \
			fprintf(stderr, "line %d: not true: %s\n", __LINE__, #what);                                                                        \
			exit(1);                                                                                                                            \
		}                                                                                                                                           \
	} while (0)

static uint64_t state;
static int hostile; /* the last rank does not keep to the reference */
static int reopens; /* but is honest */
static int pulled;   /* messages that were read where they are */
static int broken;   /* receives whose sender has dropped the message in the middle */
static int dropping; /* engines end what is under way */

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

/* ---- Messages on their way ---- */

struct datagram {
	struct datagram *next;
	int kind;
	uint64_t args[2];
	size_t length;
	char payload[ENGINE_PAYLOAD];
};

static struct way {
	struct datagram *first, **last;
	int count;
	int heads; /* that have arrived */
} ways[RANKS][RANKS];

static struct engine engines[RANKS];

static void enqueue(int from, int to, int kind, const uint64_t args[2], const void *payload, size_t length)
{
	struct way *w = &ways[from][to];
	struct datagram *d = make(sizeof *d);
	CHECK(length <= ENGINE_PAYLOAD);
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
	int from = (struct engine *)io - engines;
	if (ways[from][rank].count >= 6 || below(5) == 0)
		return 0;
	enqueue(from, rank, kind, args, payload, length);
	return 1;
}

/* ---- The reference ---- */

struct message {
	struct engine_send send;
	int from, number; /* of those to its rank */
	int arrived, taken, sent;
	size_t length;
	char *bytes;
};

struct receive {
	struct engine_receive receive;
	int at, posted, done;
	struct message *expected;
	size_t size;
	char *bytes;
};

static struct message *messages[MOST];
static struct receive *receives[MOST];
static int message_count, receive_count;
static struct message *arrived[MOST]; /* in this order */
static int arrived_count;

static int suits(const struct receive *r, const struct message *m)
{
	const struct match_want *w = &r->receive.want;
	return m->send.rank == r->at && m->send.tagged == r->receive.tagged && (w->source == MATCH_ANY || w->source == m->from) &&
	       ((m->send.tag ^ w->tag) & ~w->ignore) == 0;
}

/* head_arrives finds the receive for the next message on a way. */
static void head_arrives(int from, int to)
{
	int number = ways[from][to].heads++;
	struct message *m = NULL;
	for (int i = 0; i < message_count && !m; i++)
		if (messages[i]->from == from && messages[i]->send.rank == to && messages[i]->number == number)
			m = messages[i];
	CHECK(m);
	for (int i = 0; i < receive_count; i++) {
		struct receive *r = receives[i];
		if (r->posted && !r->expected && suits(r, m)) {
			r->expected = m;
			m->taken = 1;
			return;
		}
	}
	arrived[arrived_count++] = m;
}

static struct message *waiting_for(const struct receive *r)
{
	for (int i = 0; i < arrived_count; i++)
		if (!arrived[i]->taken && suits(r, arrived[i]))
			return arrived[i];
	return NULL;
}

/* ---- Places ---- */

static int offer(void *io, int rank, uint64_t length, uint64_t proof[PLACE_PROOF])
{
	(void)length;
	uint64_t from = (struct engine *)io - engines;
	memcpy(proof, (uint64_t[]){from, 1, 2}, PLACE_PROOF * sizeof proof[0]);
	return rank >= 0 && below(2);
}

/* is_there reports whether a place is the memory of a message that was not sent, or of its
 * beginning: a hostile rank names any. */
static int is_there(const struct place *p)
{
	for (int i = 0; i < message_count; i++) {
		const struct message *m = messages[i];
		size_t same = 0;
		while (same < p->memory.count && same < m->send.memory.count &&
		       p->memory.parts[same].iov_base == m->send.memory.parts[same].iov_base &&
		       p->memory.parts[same].iov_len <= m->send.memory.parts[same].iov_len)
			same++;
		if (!m->sent && m->from == (int)p->proof[0] && same == p->memory.count)
			return 1;
	}
	return 0;
}

static int pull(void *io, int rank, const struct place *from, const struct memory *to)
{
	struct memory rest;
	(void)io;
	CHECK(from->memory.length == to->length && (hostile || rank == (int)from->proof[0]));
	if (below(3) == 0 || !is_there(from))
		return 0;
	for (size_t at = 0, i = 0; i < from->memory.count; at += from->memory.parts[i++].iov_len) {
		CHECK(memory_range(&rest, to, at, from->memory.parts[i].iov_len));
		memory_scatter(&rest, 0, from->memory.parts[i].iov_base, from->memory.parts[i].iov_len);
	}
	pulled++;
	return 1;
}

static void on_sent(void *io, struct engine_send *s)
{
	struct message *m = list_of(s, struct message, send);
	if (reopens && io == &engines[RANKS - 1]) {
		free(m->bytes);
		free(m);
		return;
	}
	CHECK(!m->sent);
	m->sent = 1;
	memset(m->bytes, 0xee, m->length); /* its memory may be reused */
}

static char byte_of(const struct message *m, size_t i) { return (char)(m->from * 31 + m->number * 7 + i * 3 + i / 256); }

static void on_received(void *io, struct engine_receive *e)
{
	struct receive *r = list_of(e, struct receive, receive);
	const struct message *m = r->expected;
	if (reopens && io == &engines[RANKS - 1]) {
		free(r->bytes);
		free(r);
		return;
	}
	if (dropping)
		return;
	CHECK(!r->done);
	r->done = 1;
	broken += e->broken;
	if (hostile && e->source == RANKS - 1)
		return;
	CHECK(!e->broken);
	CHECK(m && e->source == m->from && e->tag == m->send.tag && e->has_data == m->send.has_data && (!e->has_data || e->data == m->send.data));
	CHECK(e->length == m->length && e->got == (m->length < r->size ? m->length : r->size));
	for (size_t i = 0; i < r->size; i++)
		CHECK(r->bytes[i] == (i < e->got ? byte_of(m, i) : 0x55));
}

static const struct engine_io calls = {post, offer, pull, on_sent, on_received};

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
		return ENGINE_SHORT - 2 + below(5);
	case 2:
		return below(9000);
	}
	return below(ENGINE_SHORT);
}

static void some_send(int from, int to)
{
	struct message *m = make(sizeof *m);
	if (message_count == MOST)
		return;
	m->from = from;
	for (int i = 0; i < message_count; i++)
		m->number += messages[i]->from == from && messages[i]->send.rank == to;
	m->length = some_length();
	m->bytes = make(m->length);
	for (size_t i = 0; i < m->length; i++)
		m->bytes[i] = byte_of(m, i);
	m->send = (struct engine_send){.rank = to, .tagged = below(4) > 0, .has_data = below(3) == 0, .data = draw()};
	m->send.tag = m->send.tagged ? (uint64_t)below(TAGS) : 0;
	split(&m->send.memory, m->bytes, m->length);
	messages[message_count++] = m;
	struct engine_send now = m->send;
	if (below(2) && engine_send_now(&engines[from], &now))
		on_sent(NULL, &m->send);
	else
		engine_send(&engines[from], &m->send);
}

/* post_receive posts a receive, which may be for a claimed message. */
static void post_receive(struct receive *r)
{
	struct engine *e = &engines[r->at];
	struct message *m = waiting_for(r);
	r->bytes = make(r->size);
	memset(r->bytes, 0x55, r->size);
	split(&r->receive.memory, r->bytes, r->size);
	receives[receive_count++] = r;
	if (m) {
		r->expected = m;
		m->taken = 1;
	}
	r->posted = 1;
	if (!hostile && below(4) == 0) { /* claim it first */
		struct engine_message *claimed = engine_peek(e, &r->receive);
		CHECK(!claimed == !m);
		if (claimed) {
			CHECK(r->receive.length == m->length && r->receive.source == m->from);
			engine_claim(claimed);
			engine_accept(e, &r->receive, claimed);
			return;
		}
	}
	engine_receive(e, &r->receive);
}

static void some_receive(int at)
{
	if (receive_count == MOST)
		return;
	struct receive *r = make(sizeof *r);
	r->at = at;
	r->size = some_length();
	r->receive.tagged = below(4) > 0;
	r->receive.want.tag = r->receive.tagged ? (uint64_t)below(TAGS) : 0;
	r->receive.want.ignore = r->receive.tagged ? (uint64_t)below(TAGS) & (uint64_t)below(TAGS) : 0;
	r->receive.want.source = hostile ? below(RANKS) : below(RANKS + 1) - 1;
	post_receive(r);
}

static void some_cancel(int at)
{
	struct receive *r = receive_count ? receives[below(receive_count)] : NULL;
	if (!r || r->at != at || r->done || (hostile && r->receive.want.source == RANKS - 1))
		return;
	int cancelled = engine_cancel(&r->receive);
	CHECK(cancelled == (r->posted && !r->expected));
	r->posted &= !cancelled;
}

static void deliver(int from, int to)
{
	struct way *w = &ways[from][to];
	struct datagram *d = w->first;
	if (!d)
		return;
	w->first = d->next;
	w->count--;
	if (!(hostile && (from == RANKS - 1 || to == RANKS - 1)) && d->kind == ENGINE_HEAD)
		head_arrives(from, to);
	char *exact = make(d->length); /* so that a reader beyond it is found */
	memcpy(exact, d->payload, d->length);
	if (!hostile || reopens || to < RANKS - 1)
		engine_arrive(&engines[to], from, d->kind, d->args, exact, d->length);
	free(exact);
	free(d);
}

/* harm has the hostile rank send something. */
static void harm(int to)
{
	const struct datagram *d = ways[to][RANKS - 1].first;
	uint64_t args[2] = {draw(), draw()};
	char payload[ENGINE_PAYLOAD];
	size_t length = below(4) ? (size_t)below(24) : (size_t)below(sizeof payload + 1);
	int kind = below(ENGINE_KINDS);
	if (ways[RANKS - 1][to].count >= 6)
		return;
	for (size_t i = 0; i < sizeof payload; i++)
		payload[i] = draw();
	if (below(2)) { /* nearly right */
		args[0] = kind == ENGINE_GO ? (uint64_t)below(70) | draw() << 32 : (uint64_t)below(70);
		args[1] = (kind == ENGINE_HEAD ? (uint64_t)below(8) << 56 : 0) | (uint64_t)below(2) << 48 | (uint64_t)(below(3) ? length : (size_t)below(3000));
		if (kind == ENGINE_HEAD && below(2)) {
			memset(payload, 0, 8);
			payload[0] = below(70);
			length = 8;
		}
	} else if (d && below(2)) {
		kind = below(4) ? d->kind : kind;
		memcpy(args, d->args, sizeof args);
		args[below(2)] ^= (uint64_t)1 << below(64);
		length = d->length;
		memcpy(payload, d->payload, length);
	}
	enqueue(RANKS - 1, to, kind, args, payload, length);
}

/* check_peer checks that engine_progress looks at a rank if something can be sent to it. */
static void check_peer(const struct engine_peer *p)
{
	if (!list_empty(&p->link))
		return;
	CHECK(list_empty(&p->data) && list_empty(&p->going) && p->longs <= ENGINE_LONG);
	if (list_empty(&p->heads))
		return;
	const struct engine_send *s = list_of(p->heads.next, struct engine_send, link);
	CHECK(p->longs == ENGINE_LONG && (s->is_long || s->memory.length > ENGINE_SHORT || p->credits == 0));
}

static void check_bounds(void)
{
	for (int at = 0; at < RANKS - hostile; at++) {
		int kept[RANKS] = {0}, kept_longs[RANKS] = {0};
		for (int tagged = 0; tagged < 2; tagged++) {
			struct link *list = &engines[at].matchers[tagged].unexpected;
			for (struct link *l = list->next; l != list; l = l->next) {
				const struct engine_message *m = list_of(l, struct engine_message, came.link);
				(*(m->is_long ? &kept_longs[m->came.source] : &kept[m->came.source]))++;
			}
		}
		for (int from = 0; from < RANKS; from++)
			CHECK(kept[from] <= ENGINE_CREDITS && kept_longs[from] <= ENGINE_LONG);
		for (int to = 0; to < RANKS; to++)
			check_peer(&engines[at].peers[to]);
	}
}

/* reopen has the last rank send or receive something, or end what is under way. */
static void reopen(int to)
{
	struct engine *e = &engines[RANKS - 1];
	struct message *m;
	struct receive *r;
	switch (below(8)) {
	case 0:
		if (below(8) == 0)
			engine_drop(e);
		break;
	case 1:
	case 2:
		m = make(sizeof *m);
		m->length = some_length();
		m->bytes = make(m->length);
		m->send = (struct engine_send){.rank = to, .tagged = 1, .tag = below(TAGS)};
		split(&m->send.memory, m->bytes, m->length);
		engine_send(e, &m->send);
		break;
	case 3:
	case 4:
		r = make(sizeof *r);
		r->size = some_length();
		r->bytes = make(r->size);
		r->receive.tagged = 1;
		r->receive.want = (struct match_want){.tag = below(TAGS), .source = MATCH_ANY};
		split(&r->receive.memory, r->bytes, r->size);
		engine_receive(e, &r->receive);
		break;
	default:
		engine_progress(e);
	}
}

static void step(void)
{
	int a = below(RANKS - hostile), b = below(RANKS);
	switch (below(12)) {
	case 0:
	case 1:
		some_send(a, b);
		break;
	case 2:
	case 3:
		some_receive(a);
		break;
	case 4:
		if (below(8) == 0)
			some_cancel(a);
		break;
	case 5:
		if (reopens)
			reopen(b);
		else if (hostile)
			harm(a);
		break;
	case 6:
	case 7:
		engine_progress(&engines[a]);
		break;
	default:
		deliver(below(RANKS), b);
		break;
	}
}

/* drain has everything arrive, with receives for all that was sent. */
static void drain(void)
{
	for (int round = 0; round < 200000; round++) {
		int left = 0;
		for (int i = 0; i < message_count; i++) {
			struct message *m = messages[i];
			left += !m->sent;
		}
		if (reopens && round % 16 == 0)
			engine_drop(&engines[RANKS - 1]);
		for (int a = 0; a < RANKS - (hostile && !reopens); a++) {
			engine_progress(&engines[a]);
			for (int b = 0; b < RANKS; b++) {
				left += ways[a][b].count + ways[b][a].count;
				deliver(a, b);
				deliver(b, a);
			}
		}
		for (int i = 0; i < arrived_count && receive_count < MOST; i++) {
			struct message *m = arrived[i];
			if (m->taken)
				continue;
			struct receive *r = make(sizeof *r);
			r->at = m->send.rank;
			r->size = some_length();
			r->receive.tagged = m->send.tagged;
			r->receive.want.tag = m->send.tag;
			r->receive.want.source = m->from;
			post_receive(r);
		}
		if (!left)
			return;
		if (hostile && !reopens) { /* it never answers what the others have sent it */
			int honest = 0;
			for (int i = 0; i < message_count; i++)
				honest += !messages[i]->sent && messages[i]->send.rank != RANKS - 1;
			for (int a = 0; a < RANKS - 1; a++)
				for (int b = 0; b < RANKS - 1; b++)
					honest += ways[a][b].count;
			if (!honest)
				return;
		}
	}
	CHECK(!"it comes to an end");
}

/* check_end checks that no engine of honest ranks has anything left. */
static void check_end(void)
{
	for (int i = 0; i < receive_count; i++)
		CHECK(!receives[i]->expected || receives[i]->done);
	for (int a = 0; a < RANKS && (!hostile || reopens); a++)
		CHECK(engines[a].nonsense == 0 && !engines[a].failed);
	for (int a = 0; a < RANKS && (!hostile || reopens); a++)
		for (int b = 0; b < RANKS; b++)
			CHECK(!engine_awaits(&engines[a], b));
	if (hostile)
		return;
	for (int a = 0; a < RANKS; a++) {
		struct engine *e = &engines[a];
		CHECK(e->sends.unused_count == e->sends.size && e->receives.unused_count == e->receives.size);
		for (int b = 0; b < RANKS; b++) {
			struct engine_peer *p = &e->peers[b], *q = &engines[b].peers[a];
			CHECK(p->longs == 0 && q->kept_longs == 0 && p->credits + q->owed == ENGINE_CREDITS && q->owed == q->kept);
		}
	}
}

int main(int argc, char **argv)
{
	if (argc < 4)
		return 2;
	state = strtoull(argv[1], NULL, 10);
	reopens = strcmp(argv[3], "reopen") == 0;
	hostile = reopens || strcmp(argv[3], "hostile") == 0;
	for (int i = 0; i < RANKS; i++)
		CHECK(engine_open(&engines[i], RANKS, &calls, &engines[i]) == 0);
	for (int i = atoi(argv[2]); i > 0; i--) {
		step();
		if (i % 64 == 0)
			check_bounds();
	}
	drain();
	check_end();
	int done = 0;
	for (int i = 0; i < receive_count; i++)
		done += receives[i]->done;
	uint64_t nonsense = 0;
	dropping = 1;
	for (int i = 0; i < RANKS - (hostile && !reopens); i++) {
		nonsense += engines[i].nonsense;
		engine_close(&engines[i]);
	}
	printf("%d messages, %d receives done, %d read in place, %d broken, %llu dropped\n", message_count, done, pulled, broken,
	       (unsigned long long)nonsense);
	return 0;
}
