#include "rma.h"

#include <stdlib.h>
#include <string.h>

/* The words of messages:
 *
 *	REQUEST  address                flags << 56 | slot << 48 | length
 *	DATA     slot                   offset
 *	RESULT   slot                   offset
 *	ANSWER   slot | status << 8     0
 *	PROBE    0                      0
 *
 * The payload of a request is the key, the data word if there is one, and then the data of a write,
 * or the place where they are, or nothing if they follow as DATA. The payload of an answer to a
 * read is the place, if the request has asked for one. */
#define WRITES 1
#define HAS_DATA 2
#define PLACE 4
#define MORE 8
#define SLOT_SHIFT 48
#define FLAGS_SHIFT 56
#define STATUS_SHIFT 8

#define HEADER 16		      /* bytes of a payload before data */
#define EAGER (RMA_PAYLOAD - HEADER) /* bytes of a write that its request can carry */

/* A request of another rank. */
struct request {
	struct link link; /* in answers or held */
	int used;
	int writes, has_data, wants_place;
	enum rma_status status;
	int taking; /* DATA are to come */
	uint64_t address, key, length, data, moved;
};

struct rma_peer {
	struct link link; /* in the list of those to which something must be sent */
	struct link ops;  /* that were not sent, or not with all their data */
	struct rma_op *slots[RMA_SLOTS];
	uint64_t used;	   /* slots with a request that was not answered */
	uint64_t graves;   /* those whose operation was dropped */
	uint64_t unsent;   /* graves that need a message DATA without data */
	uint64_t left[RMA_SLOTS]; /* bytes that a dropped read will still give */
	struct request *requests; /* of the rank, by slot; NULL: it has made none */
	struct link answers;	  /* requests whose answer must be sent */
	struct link held;	  /* those whose answers are held back */
	int events;		  /* that the application has not taken */
};

static uint64_t bit(int slot) { return (uint64_t)1 << slot; }

/* ---- Sending ---- */

static void make_busy(struct rma *m, struct rma_peer *p)
{
	if (list_empty(&p->link))
		list_add(&m->busy, &p->link);
}

/* post sends a message and reports whether there was room. */
static int post(struct rma *m, struct rma_peer *p, int kind, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	uint64_t args[2] = {arg0, arg1};
	int sent = m->calls->post(m->io, p - m->peers, kind, args, payload, length);
	if (sent < 0)
		m->failed = 1;
	return sent > 0;
}

/* find checks an access and describes its memory. */
static enum rma_status find(struct rma *m, const struct request *r, uint64_t offset, uint64_t length, struct memory *to)
{
	const struct rma_region *region = r->length ? m->calls->find(m->io, r->key) : NULL;
	to->count = to->length = 0;
	if (r->length == 0)
		return RMA_OK; /* of any address */
	if (!region)
		return RMA_NO_KEY;
	if (!(region->access & (r->writes ? RMA_MAY_WRITE : RMA_MAY_READ)))
		return RMA_NO_ACCESS;
	if (r->address > region->memory.length || r->length > region->memory.length - r->address)
		return RMA_OUTSIDE;
	return memory_range(to, &region->memory, r->address + offset, length) ? RMA_OK : RMA_OUTSIDE;
}

/* post_results sends the data that a read gives, and reports whether there was room. */
static int post_results(struct rma *m, struct rma_peer *p, struct request *r)
{
	char b[RMA_PAYLOAD];
	while (r->moved < r->length) {
		struct memory from;
		size_t n = r->length - r->moved < RMA_PAYLOAD ? r->length - r->moved : RMA_PAYLOAD;
		if ((r->status = find(m, r, r->moved, n, &from)) != RMA_OK)
			return 1;
		if (!post(m, p, RMA_RESULT, r - p->requests, r->moved, memory_piece(&from, 0, b, n), n))
			return 0;
		r->moved += n;
	}
	return 1;
}

/* post_answer answers a request and reports whether there was room. The last data of a read are its
 * answer. */
static int post_answer(struct rma *m, struct rma_peer *p, struct request *r)
{
	uint64_t words[PLACE_MOST], slot = r - p->requests;
	struct place place;
	size_t n = 0;
	int gives = r->status == RMA_OK && !r->writes && r->length > 0;
	r->wants_place = gives && r->moved == 0 && r->wants_place && m->calls->offer(m->io, p - m->peers, r->length, place.proof);
	if (gives && !r->wants_place) {
		if (!post_results(m, p, r))
			return 0;
		if (r->status == RMA_OK)
			return 1;
	} else if (gives && (r->status = find(m, r, 0, r->length, &place.memory)) == RMA_OK) {
		n = place_write(words, &place);
	}
	return post(m, p, RMA_ANSWER, slot | (uint64_t)r->status << STATUS_SHIFT, 0, words, n * sizeof words[0]);
}

static int push_answers(struct rma *m, struct rma_peer *p)
{
	while (!list_empty(&p->answers)) {
		struct request *r = list_of(p->answers.next, struct request, link);
		if (!post_answer(m, p, r))
			return 0;
		list_remove(&r->link);
		r->taking = r->status == RMA_SEND;
		r->used = r->taking;
		if (r->taking)
			r->status = RMA_OK;
	}
	return 1;
}

/* free_slot returns a free slot, -1 if there is none. */
static int free_slot(const struct rma_peer *p)
{
	uint64_t free = ~p->used & (~(uint64_t)0 >> (64 - RMA_SLOTS));
	return free ? __builtin_ctzll(free) : -1;
}

/* post_request sends a request and reports whether there was room. */
static int post_request(struct rma *m, struct rma_peer *p, struct rma_op *op)
{
	union {
		uint64_t words[2 + PLACE_MOST];
		char bytes[RMA_PAYLOAD];
	} b = {.words = {op->key, op->data}};
	struct place place;
	uint64_t flags = (op->writes ? WRITES : 0) | (op->has_data ? HAS_DATA : 0);
	size_t n = (op->has_data ? 2 : 1) * sizeof b.words[0];
	int offers = op->in_place && op->memory.length > EAGER && m->calls->offer(m->io, op->rank, op->memory.length, place.proof);
	op->in_place = offers;
	if (!op->writes) {
		flags |= offers ? PLACE : 0;
	} else if (op->memory.length <= EAGER) {
		memory_gather(&op->memory, 0, b.bytes + n, op->memory.length);
		n += op->memory.length;
	} else if (offers) {
		place.memory = op->memory;
		n += sizeof b.words[0] * place_write(&b.words[n / sizeof b.words[0]], &place);
		flags |= PLACE;
	} else {
		flags |= MORE;
	}
	return post(m, p, RMA_REQUEST, op->address, flags << FLAGS_SHIFT | (uint64_t)op->slot << SLOT_SHIFT | op->memory.length, b.bytes, n);
}

/* post_data sends the data of a write and reports whether there was room. */
static int post_data(struct rma *m, struct rma_peer *p, struct rma_op *op)
{
	char b[RMA_PAYLOAD];
	while (op->moved < op->memory.length) {
		size_t left = op->memory.length - op->moved, n = left < RMA_PAYLOAD ? left : RMA_PAYLOAD;
		if (!post(m, p, RMA_DATA, op->slot, op->moved, memory_piece(&op->memory, op->moved, b, n), n))
			return 0;
		op->moved += n;
	}
	return 1;
}

/* sends_data reports whether DATA of an operation follow its request. */
static int sends_data(const struct rma_op *op) { return op->writes && !op->in_place && op->memory.length > EAGER; }

static int push_ops(struct rma *m, struct rma_peer *p)
{
	while (!list_empty(&p->ops)) {
		struct rma_op *op = list_of(p->ops.next, struct rma_op, link);
		if (op->slot < 0 && (op->slot = free_slot(p)) < 0)
			return 1; /* an answer makes the rank busy again */
		p->used |= bit(op->slot);
		p->slots[op->slot] = op;
		if (!op->requested && !post_request(m, p, op))
			return 0;
		op->requested = 1;
		if (sends_data(op) && !post_data(m, p, op))
			return 0;
		list_remove(&op->link);
	}
	return 1;
}

/* push_unsent ends the requests of writes that were dropped before all their data had been sent. */
static int push_unsent(struct rma *m, struct rma_peer *p)
{
	while (p->unsent) {
		int slot = __builtin_ctzll(p->unsent);
		if (!post(m, p, RMA_DATA, slot, 0, NULL, 0))
			return 0;
		p->unsent &= ~bit(slot);
	}
	return 1;
}

void rma_progress(struct rma *m)
{
	struct link *last = m->busy.prev, *l = m->busy.next;
	for (int more = !list_empty(&m->busy); more && !m->failed;) {
		struct rma_peer *p = list_of(l, struct rma_peer, link);
		more = l != last;
		l = l->next;
		if (push_answers(m, p) && push_unsent(m, p) && push_ops(m, p))
			list_remove(&p->link);
	}
}

void rma_start(struct rma *m, struct rma_op *op)
{
	struct rma_peer *p = &m->peers[op->rank];
	op->slot = -1;
	op->requested = 0;
	op->in_place = 1;
	op->moved = 0;
	op->status = RMA_OK;
	m->under_way++;
	list_add(&p->ops, &op->link);
	if (!push_ops(m, p))
		make_busy(m, p);
}

int rma_has_room(const struct rma *m, int rank) { return list_empty(&m->peers[rank].ops); }

int rma_awaits(const struct rma *m, int rank) { return m->peers[rank].used != 0; }

void rma_probe(struct rma *m, int rank) { post(m, &m->peers[rank], RMA_PROBE, 0, 0, NULL, 0); }

/* ---- Requests of other ranks ---- */

int rma_parse(struct rma_request *q, const uint64_t args[2], const char *payload, size_t length)
{
	int flags = args[1] >> FLAGS_SHIFT, ways = flags & (PLACE | MORE);
	*q = (struct rma_request){.writes = (flags & WRITES) != 0, .has_data = (flags & HAS_DATA) != 0, .more = (flags & MORE) != 0,
				  .slot = args[1] >> SLOT_SHIFT & 0xff, .address = args[0], .length = args[1] & RMA_LONGEST};
	if (flags & ~(WRITES | HAS_DATA | PLACE | MORE) || ways == (PLACE | MORE) || q->slot >= RMA_SLOTS ||
	    (!q->writes && (q->has_data || q->more)) || (ways && q->length == 0) || length < (q->has_data ? 2 : 1) * sizeof q->key)
		return 0;
	memcpy(&q->key, payload, sizeof q->key);
	payload += sizeof q->key;
	length -= sizeof q->key;
	if (q->has_data) {
		memcpy(&q->data, payload, sizeof q->data);
		payload += sizeof q->data;
		length -= sizeof q->data;
	}
	q->payload = payload;
	q->has_place = (flags & PLACE) != 0;
	if (!q->writes || q->more)
		return length == 0;
	return q->has_place ? place_read(&q->place, payload, length, q->length) : length == q->length;
}

/* answer answers a request, at the latest in a call of rma_progress. */
static void answer(struct rma *m, struct rma_peer *p, struct request *r)
{
	list_add(&p->answers, &r->link);
	make_busy(m, p);
}

/* end_write answers a write when all its data have come. */
static void end_write(struct rma *m, struct rma_peer *p, struct request *r)
{
	r->taking = 0;
	if (r->has_data && r->status == RMA_OK && m->calls->written(m->io, p - m->peers, r->length, r->data) && p->events++ >= RMA_EVENTS)
		list_add(&p->held, &r->link);
	else
		answer(m, p, r);
}

void rma_took(struct rma *m, int rank)
{
	struct rma_peer *p = &m->peers[rank];
	p->events--;
	if (list_empty(&p->held))
		return;
	struct request *r = list_of(p->held.next, struct request, link);
	list_remove(&r->link);
	answer(m, p, r);
}

/* write_now carries out a write whose data are here or can be copied. */
static void write_now(struct rma *m, struct rma_peer *p, struct request *r, const struct rma_request *q)
{
	struct memory to;
	r->status = find(m, r, 0, r->length, &to);
	if (r->status == RMA_OK && !q->has_place) {
		memory_scatter(&to, 0, q->payload, r->length);
	} else if (r->status == RMA_OK && !m->calls->pull(m->io, p - m->peers, &q->place, &to)) {
		r->status = RMA_SEND;
		answer(m, p, r);
		return;
	}
	end_write(m, p, r);
}

/* requests_of returns the requests of a rank, NULL if there is no memory. */
static struct request *requests_of(struct rma *m, struct rma_peer *p)
{
	if (!p->requests && !(p->requests = calloc(RMA_SLOTS, sizeof *p->requests)))
		m->failed = 1;
	return p->requests;
}

static int take_request(struct rma *m, struct rma_peer *p, const uint64_t args[2], const char *payload, size_t length)
{
	struct rma_request q;
	struct memory from;
	if (!rma_parse(&q, args, payload, length) || !requests_of(m, p) || p->requests[q.slot].used)
		return 0;
	struct request *r = &p->requests[q.slot];
	*r = (struct request){.used = 1, .writes = q.writes, .has_data = q.has_data, .wants_place = q.has_place, .address = q.address, .key = q.key,
			      .length = q.length, .data = q.data, .taking = q.more};
	list_open(&r->link);
	if (r->taking)
		return 1;
	if (r->writes) {
		write_now(m, p, r, &q);
	} else {
		r->status = find(m, r, 0, r->length, &from);
		answer(m, p, r);
	}
	return 1;
}

static int take_data(struct rma *m, struct rma_peer *p, const uint64_t args[2], const char *payload, size_t length)
{
	struct request *r = args[0] < RMA_SLOTS && p->requests ? &p->requests[args[0]] : NULL;
	struct memory to;
	if (!r || !r->used || !r->taking)
		return 0;
	if (length == 0) {
		r->taking = 0;
		r->status = RMA_DROPPED;
		answer(m, p, r);
		return 1;
	}
	if (args[1] != r->moved || length > r->length - r->moved)
		return 0;
	if (r->status == RMA_OK && (r->status = find(m, r, r->moved, length, &to)) == RMA_OK)
		memory_scatter(&to, 0, payload, length);
	r->moved += length;
	if (r->moved == r->length)
		end_write(m, p, r);
	return 1;
}

/* ---- Answers ---- */

/* end_slot makes a slot free. */
static void end_slot(struct rma *m, struct rma_peer *p, int slot)
{
	p->slots[slot] = NULL;
	p->used &= ~bit(slot);
	p->graves &= ~bit(slot);
	if (!list_empty(&p->ops))
		make_busy(m, p);
}

/* end ends an operation. */
static void end(struct rma *m, struct rma_op *op, enum rma_status status)
{
	if (op->slot >= 0)
		end_slot(m, &m->peers[op->rank], op->slot);
	op->status = status;
	m->under_way--;
	m->calls->done(m->io, op);
}

/* again sends an operation again, without a place, or its data. It has a slot, so it comes before
 * those that may wait for one. */
static void again(struct rma *m, struct rma_peer *p, struct rma_op *op)
{
	op->in_place = 0;
	op->moved = 0;
	op->requested = op->writes;
	list_add(p->ops.next, &op->link);
	make_busy(m, p);
}

/* take_place ends a read by copying from the place that an answer has named. */
static void take_place(struct rma *m, struct rma_peer *p, struct rma_op *op, const struct place *place)
{
	if (m->calls->pull(m->io, op->rank, place, &op->memory))
		end(m, op, RMA_OK);
	else
		again(m, p, op);
}

/* take_late takes the answer to an operation that was dropped, and reports whether it makes
 * sense. */
static int take_late(struct rma *m, struct rma_peer *p, int slot, enum rma_status status)
{
	if (p->unsent & bit(slot) && status == RMA_SEND)
		return 0;
	if (status == RMA_SEND) {
		p->unsent |= bit(slot);
		make_busy(m, p);
	} else {
		p->unsent &= ~bit(slot);
		end_slot(m, p, slot);
	}
	return 1;
}

static int take_answer(struct rma *m, struct rma_peer *p, const uint64_t args[2], const char *payload, size_t length)
{
	uint64_t slot = args[0] & (bit(STATUS_SHIFT) - 1), status = args[0] >> STATUS_SHIFT;
	struct place place;
	if (slot >= RMA_SLOTS || status >= RMA_STATUSES || args[1])
		return 0;
	if (p->graves & bit(slot))
		return take_late(m, p, slot, status);
	struct rma_op *op = p->slots[slot];
	if (!op || !list_empty(&op->link) || status == RMA_DROPPED)
		return 0;
	if (status == RMA_SEND) {
		if (length || !op->writes || !op->in_place)
			return 0;
		again(m, p, op);
		return 1;
	}
	if (length) {
		if (status != RMA_OK || op->writes || !op->in_place || !place_read(&place, payload, length, op->memory.length))
			return 0;
		take_place(m, p, op, &place);
		return 1;
	}
	if (status == RMA_OK && !op->writes && op->memory.length > 0)
		return 0;
	end(m, op, status);
	return 1;
}

static int take_result(struct rma *m, struct rma_peer *p, const uint64_t args[2], const char *payload, size_t length)
{
	if (args[0] >= RMA_SLOTS || length == 0)
		return 0;
	if (p->graves & bit(args[0])) {
		if (length > p->left[args[0]])
			return 0;
		p->left[args[0]] -= length;
		if (p->left[args[0]] == 0)
			end_slot(m, p, args[0]);
		return 1;
	}
	struct rma_op *op = p->slots[args[0]];
	if (!op || op->writes || !list_empty(&op->link) || args[1] != op->moved || length > op->memory.length - op->moved)
		return 0;
	memory_scatter(&op->memory, op->moved, payload, length);
	op->moved += length;
	if (op->moved == op->memory.length)
		end(m, op, RMA_OK);
	return 1;
}

void rma_arrive(struct rma *m, int source, int kind, const uint64_t args[2], const void *payload, size_t length)
{
	struct rma_peer *p = &m->peers[source];
	int sense = length <= RMA_PAYLOAD;
	if (sense && kind == RMA_REQUEST)
		sense = take_request(m, p, args, payload, length);
	else if (sense && kind == RMA_DATA)
		sense = take_data(m, p, args, payload, length);
	else if (sense && kind == RMA_RESULT)
		sense = take_result(m, p, args, payload, length);
	else if (sense && kind == RMA_ANSWER)
		sense = take_answer(m, p, args, payload, length);
	if (!sense)
		m->nonsense++;
}

/* ---- The whole ---- */

int rma_open(struct rma *m, int size, const struct rma_io *calls, void *io)
{
	*m = (struct rma){.calls = calls, .io = io, .size = size, .peers = calloc(size, sizeof *m->peers)};
	if (!m->peers)
		return -1;
	list_open(&m->busy);
	for (int rank = 0; rank < size; rank++) {
		struct rma_peer *p = &m->peers[rank];
		list_open(&p->link);
		list_open(&p->ops);
		list_open(&p->answers);
		list_open(&p->held);
	}
	return 0;
}

/* bury drops an operation whose request was sent: its slot stays used until the answer comes. */
static void bury(struct rma *m, struct rma_peer *p, struct rma_op *op)
{
	p->slots[op->slot] = NULL;
	p->graves |= bit(op->slot);
	p->left[op->slot] = op->writes ? 0 : op->memory.length - op->moved;
	if (!list_empty(&op->link) && op->writes) {
		p->unsent |= bit(op->slot);
		make_busy(m, p);
	}
	op->slot = -1;
}

static void drop(struct rma *m, struct rma_peer *p, struct rma_op *op)
{
	if (op->requested)
		bury(m, p, op);
	list_remove(&op->link);
	end(m, op, RMA_DROPPED);
}

void rma_drop(struct rma *m)
{
	for (int rank = 0; rank < m->size; rank++) {
		struct rma_peer *p = &m->peers[rank];
		for (int slot = 0; slot < RMA_SLOTS; slot++)
			if (p->slots[slot])
				drop(m, p, p->slots[slot]);
		while (!list_empty(&p->ops))
			drop(m, p, list_of(p->ops.next, struct rma_op, link));
	}
}

int rma_is_idle(const struct rma *m)
{
	for (const struct link *l = m->busy.next; l != &m->busy; l = l->next) {
		const struct rma_peer *p = list_of(l, struct rma_peer, link);
		if (!list_empty(&p->answers) || p->unsent)
			return 0;
	}
	return 1;
}

void rma_close(struct rma *m)
{
	for (int rank = 0; rank < m->size; rank++)
		free(m->peers[rank].requests);
	free(m->peers);
}
