#include "engine.h"

#include <stdlib.h>
#include <string.h>

/* The words of messages:
 *
 *	HEAD  tag                    flags << 56 | credits << 48 | length
 *	GO    send | receive << 32   credits << 48 | bytes wanted
 *	DATA  receive                credits << 48 | offset
 *	END   receive                credits << 48
 *
 * The payload of a head is the data word if there is one, and then the message or, of a long one,
 * the number of its send in 8 bytes, and the place of the message if the receiver may read it. */

/* A message that was dropped in the middle. A receive of a rank waits for the rest. */
struct engine_end {
	struct link link;
	uint32_t receive;
};

#define TAGGED 1
#define HAS_DATA 2
#define LONG 4
#define CREDITS_SHIFT 48
#define FLAGS_SHIFT 56

/* ---- Numbers ---- */

/* table_add returns the number of a pointer, or -1 if there is no memory. */
static int64_t table_add(struct engine_table *t, void *what)
{
	if (t->unused_count == 0) {
		uint32_t size = t->size ? 2 * t->size : 64;
		void **slots = realloc(t->slots, size * sizeof *slots);
		if (!slots)
			return -1;
		t->slots = slots;
		uint32_t *unused = realloc(t->unused, size * sizeof *unused);
		if (!unused)
			return -1;
		t->unused = unused;
		for (uint32_t i = size; i > t->size; i--) {
			t->slots[i - 1] = NULL;
			t->unused[t->unused_count++] = i - 1;
		}
		t->size = size;
	}
	uint32_t number = t->unused[--t->unused_count];
	t->slots[number] = what;
	return number;
}

static void *table_get(const struct engine_table *t, uint64_t number)
{
	return number < t->size && !((uintptr_t)t->slots[number] & 1) ? t->slots[number] : NULL;
}

static void table_remove(struct engine_table *t, uint32_t number)
{
	t->slots[number] = NULL;
	t->unused[t->unused_count++] = number;
}

/* grave_of is in a table instead of what was dropped while a rank may still name its number. It is
 * no address. */
static void *grave_of(int rank) { return (void *)((uintptr_t)rank << 1 | 1); }

/* ---- Sending ---- */

/* make_busy adds a rank to those that engine_progress looks at. */
static void make_busy(struct engine *e, struct engine_peer *p)
{
	if (list_empty(&p->link))
		list_add(&e->busy, &p->link);
}

/* post sends a message with the credits that are owed, and reports whether there was room. */
static int post(struct engine *e, struct engine_peer *p, int kind, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	int credits = p->owed;
	uint64_t args[2] = {arg0, arg1 | (uint64_t)credits << CREDITS_SHIFT};
	int sent = e->calls->post(e->io, p - e->peers, kind, args, payload, length);
	if (sent < 0)
		e->failed = 1;
	if (sent <= 0)
		return 0;
	p->owed -= credits;
	p->kept -= credits;
	return 1;
}

/* post_short sends a message in its head, for a credit, and reports whether there was room. */
static int post_short(struct engine *e, struct engine_peer *p, struct engine_send *s)
{
	char b[ENGINE_PAYLOAD];
	const void *payload = b;
	uint64_t flags = (s->tagged ? TAGGED : 0) | (s->has_data ? HAS_DATA : 0);
	size_t n = 0;
	if (s->has_data) {
		memcpy(b, &s->data, sizeof s->data);
		n = sizeof s->data;
		memory_gather(&s->memory, 0, b + n, s->memory.length);
	} else {
		payload = memory_piece(&s->memory, 0, b, s->memory.length);
	}
	if (!post(e, p, ENGINE_HEAD, s->tag, flags << FLAGS_SHIFT | s->memory.length, payload, n + s->memory.length))
		return 0;
	p->credits--;
	return 1;
}

/* post_long sends the head of a long message and reports whether there was room. */
static int post_long(struct engine *e, struct engine_peer *p, struct engine_send *s)
{
	uint64_t words[2 + PLACE_MOST] = {s->data};
	struct place place;
	uint64_t flags = (s->tagged ? TAGGED : 0) | (s->has_data ? HAS_DATA : 0) | LONG;
	int n = s->has_data ? 1 : 0;
	if (!s->is_long) {
		int64_t id = table_add(&e->sends, s);
		if (id < 0) {
			e->failed = 1;
			return 0;
		}
		s->id = id;
		s->is_long = 1;
	}
	words[n++] = s->id;
	if (s->memory.length > ENGINE_SHORT && e->calls->offer(e->io, s->rank, s->memory.length, place.proof)) {
		place.memory = s->memory;
		n += place_write(&words[n], &place);
	}
	if (!post(e, p, ENGINE_HEAD, s->tag, flags << FLAGS_SHIFT | s->memory.length, words, n * sizeof words[0]))
		return 0;
	p->longs++;
	return 1;
}

/* post_piece sends some of a long message's data and reports whether there was room. */
static int post_piece(struct engine *e, struct engine_peer *p, struct engine_send *s)
{
	char b[ENGINE_PAYLOAD];
	size_t n = s->wanted - s->sent < ENGINE_PAYLOAD ? s->wanted - s->sent : ENGINE_PAYLOAD;
	if (!post(e, p, ENGINE_DATA, s->receive, s->sent, memory_piece(&s->memory, s->sent, b, n), n))
		return 0;
	s->sent += n;
	return 1;
}

/* end_send ends a long message. */
static void end_send(struct engine *e, struct engine_send *s)
{
	table_remove(&e->sends, s->id);
	list_remove(&s->link);
	e->calls->sent(e->io, s);
}

/* end_receive ends the receive of a long message. */
static void end_receive(struct engine *e, struct engine_receive *r)
{
	table_remove(&e->receives, r->id);
	if (r->sink)
		free(r);
	else
		e->calls->received(e->io, r);
}

static int push_going(struct engine *e, struct engine_peer *p)
{
	while (!list_empty(&p->going)) {
		struct engine_receive *r = list_of(p->going.next, struct engine_receive, link);
		if (!post(e, p, ENGINE_GO, r->send | (uint64_t)r->id << 32, r->limit, NULL, 0))
			return 0;
		p->kept_longs--;
		list_remove(&r->link);
		if (r->limit == 0)
			end_receive(e, r);
		else
			p->coming++;
	}
	return 1;
}

static int push_ends(struct engine *e, struct engine_peer *p)
{
	while (!list_empty(&p->ends)) {
		struct engine_end *end = list_of(p->ends.next, struct engine_end, link);
		if (!post(e, p, ENGINE_END, end->receive, 0, NULL, 0))
			return 0;
		list_remove(&end->link);
		free(end);
	}
	return 1;
}

static int push_heads(struct engine *e, struct engine_peer *p)
{
	while (!list_empty(&p->heads)) {
		struct engine_send *s = list_of(p->heads.next, struct engine_send, link);
		int is_short = !s->is_long && s->memory.length <= ENGINE_SHORT && p->credits > 0;
		if (!is_short && p->longs == ENGINE_LONG)
			return 1; /* GO makes the rank busy again */
		if (!(is_short ? post_short(e, p, s) : post_long(e, p, s)))
			return 0;
		list_remove(&s->link);
		if (is_short)
			e->calls->sent(e->io, s);
	}
	return 1;
}

static int push_data(struct engine *e, struct engine_peer *p)
{
	while (!list_empty(&p->data)) {
		struct engine_send *s = list_of(p->data.next, struct engine_send, link);
		while (s->sent < s->wanted)
			if (!post_piece(e, p, s))
				return 0;
		end_send(e, s);
	}
	return 1;
}

void engine_progress(struct engine *e)
{
	struct link *last = e->busy.prev, *l = e->busy.next;
	for (int more = !list_empty(&e->busy); more && !e->failed;) {
		struct engine_peer *p = list_of(l, struct engine_peer, link);
		more = l != last;
		l = l->next;
		if (push_going(e, p) && push_ends(e, p) && push_heads(e, p) && push_data(e, p))
			list_remove(&p->link);
	}
}

void engine_send(struct engine *e, struct engine_send *s)
{
	struct engine_peer *p = &e->peers[s->rank];
	s->is_long = s->started = 0;
	s->sent = s->wanted = 0;
	list_add(&p->heads, &s->link);
	if (!push_heads(e, p))
		make_busy(e, p);
}

int engine_send_now(struct engine *e, struct engine_send *s)
{
	struct engine_peer *p = &e->peers[s->rank];
	return list_empty(&p->heads) && s->memory.length <= ENGINE_SHORT && p->credits > 0 && post_short(e, p, s);
}

int engine_awaits(const struct engine *e, int rank) 
{
	const struct engine_peer *p = &e->peers[rank];
	return p->coming > 0 || p->longs > p->graves;
}

int engine_has_left(const struct engine *e, int rank) { return list_empty(&e->peers[rank].heads); }

/* ---- Receiving ---- */

/* pull copies the data of a long message to a receive, and reports whether it could. */
static int pull(struct engine *e, struct engine_receive *r, const struct engine_head *h)
{
	struct place whole, from;
	struct memory to;
	if (!place_read(&whole, h->payload, h->size, h->length))
		return 0;
	memcpy(from.proof, whole.proof, sizeof from.proof);
	return memory_range(&from.memory, &whole.memory, 0, r->limit) && memory_range(&to, &r->memory, 0, r->limit) &&
	       e->calls->pull(e->io, r->source, &from, &to);
}

/* give gives a message to a receive. */
static void give(struct engine *e, struct engine_receive *r, int source, const struct engine_head *h)
{
	struct engine_peer *p = &e->peers[source];
	uint64_t fits = h->length < r->memory.length ? h->length : r->memory.length;
	r->source = source;
	r->tag = h->tag;
	r->has_data = h->has_data;
	r->data = h->data;
	r->length = h->length;
	r->got = r->broken = 0;
	if (!h->is_long) {
		p->owed++;
		memory_scatter(&r->memory, 0, h->payload, fits);
		r->got = fits;
		e->calls->received(e->io, r);
		return;
	}
	int64_t id = table_add(&e->receives, r);
	if (id < 0) {
		e->failed = 1;
		return;
	}
	r->id = id;
	r->send = h->send;
	r->limit = fits;
	if (fits > 0 && pull(e, r, h)) {
		r->got = fits;
		r->limit = 0;
	}
	list_add(&p->going, &r->link);
	make_busy(e, p);
}

void engine_accept(struct engine *e, struct engine_receive *r, struct engine_message *m)
{
	struct engine_head h = {.has_data = m->has_data, .is_long = m->is_long, .tag = m->came.tag, .data = m->data, .length = m->length, .send = m->send,
				.payload = m->payload, .size = m->size};
	r->sink = 0;
	list_open(&r->want.link);
	list_open(&r->link);
	give(e, r, m->came.source, &h);
	free(m);
}

void engine_receive(struct engine *e, struct engine_receive *r)
{
	r->sink = 0;
	list_open(&r->want.link);
	list_open(&r->link);
	struct match_came *came = match_post(&e->matchers[r->tagged], &r->want);
	if (came)
		engine_accept(e, r, list_of(came, struct engine_message, came));
}

int engine_cancel(struct engine_receive *r)
{
	int posted = !list_empty(&r->want.link);
	list_remove(&r->want.link);
	return posted;
}

struct engine_message *engine_peek(struct engine *e, struct engine_receive *r)
{
	struct match_came *came = match_unexpected(&e->matchers[r->tagged], &r->want);
	if (!came)
		return NULL;
	struct engine_message *m = list_of(came, struct engine_message, came);
	r->source = came->source;
	r->tag = came->tag;
	r->has_data = m->has_data;
	r->data = m->data;
	r->length = m->length;
	r->got = 0;
	return m;
}

void engine_claim(struct engine_message *m) { list_remove(&m->came.link); }

void engine_discard(struct engine *e, struct engine_message *m)
{
	struct engine_receive *sink = calloc(1, sizeof *sink);
	list_remove(&m->came.link);
	if (!sink) {
		e->failed = 1;
		return;
	}
	if (!m->is_long) {
		e->peers[m->came.source].owed++;
		free(sink);
		free(m);
		return;
	}
	engine_accept(e, sink, m);
	sink->sink = 1;
}

/* keep keeps a message until a receive takes it. */
static void keep(struct engine *e, int source, const struct engine_head *h)
{
	struct engine_message *m = malloc(sizeof *m + h->size);
	if (!m) {
		e->failed = 1;
		return;
	}
	*m = (struct engine_message){.came = {.tag = h->tag, .source = source}, .has_data = h->has_data, .is_long = h->is_long, .data = h->data,
				     .length = h->length, .send = h->send, .size = h->size};
	if (h->size)
		memcpy(m->payload, h->payload, h->size);
	match_keep(&e->matchers[h->tagged], &m->came);
}

int engine_parse(struct engine_head *h, const uint64_t args[2], const char *payload, size_t length)
{
	int flags = args[1] >> FLAGS_SHIFT;
	uint64_t send = 0;
	if (flags & ~(TAGGED | HAS_DATA | LONG))
		return 0;
	*h = (struct engine_head){.tagged = (flags & TAGGED) != 0, .has_data = (flags & HAS_DATA) != 0, .is_long = (flags & LONG) != 0, .tag = args[0],
				  .length = args[1] & ENGINE_LONGEST};
	if (!h->tagged && h->tag != 0)
		return 0;
	if (h->has_data) {
		if (length < sizeof h->data)
			return 0;
		memcpy(&h->data, payload, sizeof h->data);
		payload += sizeof h->data;
		length -= sizeof h->data;
	}
	if (h->is_long) {
		struct place place;
		if (length < sizeof send)
			return 0;
		memcpy(&send, payload, sizeof send);
		payload += sizeof send;
		length -= sizeof send;
		if (send > UINT32_MAX || (length && !place_read(&place, payload, length, h->length)))
			return 0;
	} else if (h->length != length || length > ENGINE_SHORT) {
		return 0;
	}
	h->send = send;
	h->payload = payload;
	h->size = length;
	return 1;
}

static int take_head(struct engine *e, int source, const uint64_t args[2], const char *payload, size_t length)
{
	struct engine_peer *p = &e->peers[source];
	struct engine_head h;
	if (!engine_parse(&h, args, payload, length) || (h.is_long ? p->kept_longs == ENGINE_LONG : p->kept == ENGINE_CREDITS))
		return 0;
	if (h.is_long)
		p->kept_longs++;
	else
		p->kept++;
	struct match_came came = {.tag = h.tag, .source = source};
	struct match_want *want = match_arrive(&e->matchers[h.tagged], &came);
	if (want)
		give(e, list_of(want, struct engine_receive, want), source, &h);
	else
		keep(e, source, &h);
	return 1;
}

/* break_off has END sent to a receive of a rank. */
static void break_off(struct engine *e, struct engine_peer *p, uint32_t receive)
{
	struct engine_end *end = malloc(sizeof *end);
	if (!end) {
		e->failed = 1;
		return;
	}
	end->receive = receive;
	list_add(&p->ends, &end->link);
	make_busy(e, p);
}

/* take_dropped takes GO of a rank for a send that was dropped, and reports whether it was. */
static int take_dropped(struct engine *e, int source, uint32_t number, uint32_t receive, uint64_t wanted)
{
	if (number >= e->sends.size || e->sends.slots[number] != grave_of(source))
		return 0;
	table_remove(&e->sends, number);
	e->peers[source].longs--;
	e->peers[source].graves--;
	make_busy(e, &e->peers[source]);
	if (wanted > 0)
		break_off(e, &e->peers[source], receive);
	return 1;
}

static int take_go(struct engine *e, int source, const uint64_t args[2], size_t length)
{
	struct engine_peer *p = &e->peers[source];
	struct engine_send *s = table_get(&e->sends, (uint32_t)args[0]);
	uint64_t wanted = args[1] & ENGINE_LONGEST;
	if (length || args[1] >> FLAGS_SHIFT)
		return 0;
	if (take_dropped(e, source, args[0], args[0] >> 32, wanted))
		return 1;
	if (!s || s->rank != source || s->started || !list_empty(&s->link) || wanted > s->memory.length)
		return 0;
	p->longs--;
	s->started = 1;
	s->receive = args[0] >> 32;
	s->wanted = wanted;
	list_add(&p->data, &s->link);
	make_busy(e, p);
	return 1;
}

/* under_way returns the receive of a number that waits for data of a rank, or NULL. */
static struct engine_receive *under_way(const struct engine *e, int source, uint64_t number)
{
	struct engine_receive *r = table_get(&e->receives, number);
	return r && r->source == source && list_empty(&r->link) ? r : NULL;
}

static int take_data(struct engine *e, int source, const uint64_t args[2], const char *payload, size_t length)
{
	struct engine_receive *r = under_way(e, source, args[0]);
	if (args[1] >> FLAGS_SHIFT || !r || (args[1] & ENGINE_LONGEST) != r->got || length == 0 || length > r->limit - r->got)
		return 0;
	memory_scatter(&r->memory, r->got, payload, length);
	r->got += length;
	if (r->got == r->limit) {
		e->peers[source].coming--;
		end_receive(e, r);
	}
	return 1;
}

static int take_end(struct engine *e, int source, const uint64_t args[2], size_t length)
{
	struct engine_receive *r = under_way(e, source, args[0]);
	if (args[1] & ~((uint64_t)0xff << CREDITS_SHIFT) || !r || length)
		return 0;
	r->broken = 1;
	e->peers[source].coming--;
	end_receive(e, r);
	return 1;
}

/* take_credits takes the credits of a message and reports whether they make sense. */
static int take_credits(struct engine *e, int source, uint64_t word)
{
	struct engine_peer *p = &e->peers[source];
	int credits = word >> CREDITS_SHIFT & 0xff;
	if (credits > ENGINE_CREDITS - p->credits)
		return 0;
	p->credits += credits;
	if (credits > 0 && !list_empty(&p->heads)) /* the first one may need no GO before it now */
		make_busy(e, p);
	return 1;
}

void engine_arrive(struct engine *e, int source, int kind, const uint64_t args[2], const void *payload, size_t length)
{
	int sense = length <= ENGINE_PAYLOAD && take_credits(e, source, args[1]);
	if (sense && kind == ENGINE_HEAD)
		sense = take_head(e, source, args, payload, length);
	else if (sense && kind == ENGINE_GO)
		sense = take_go(e, source, args, length);
	else if (sense && kind == ENGINE_END)
		sense = take_end(e, source, args, length);
	else if (sense)
		sense = take_data(e, source, args, payload, length);
	if (!sense)
		e->nonsense++;
}

/* ---- The whole ---- */

int engine_open(struct engine *e, int size, const struct engine_io *calls, void *io)
{
	*e = (struct engine){.calls = calls, .io = io, .size = size, .peers = calloc(size, sizeof *e->peers)};
	if (!e->peers)
		return -1;
	list_open(&e->busy);
	match_open(&e->matchers[0]);
	match_open(&e->matchers[1]);
	for (int rank = 0; rank < size; rank++) {
		struct engine_peer *p = &e->peers[rank];
		list_open(&p->link);
		list_open(&p->heads);
		list_open(&p->data);
		list_open(&p->going);
		list_open(&p->ends);
		p->credits = ENGINE_CREDITS;
	}
	return 0;
}

/* sink_for replaces a receive that ends by one that drops its data. */
static void sink_for(struct engine *e, struct engine_receive *r)
{
	struct engine_receive *sink = malloc(sizeof *sink);
	if (!sink) {
		e->failed = 1;
		return;
	}
	*sink = *r;
	sink->sink = 1;
	sink->memory.count = sink->memory.length = 0;
	list_open(&sink->link);
	if (!list_empty(&r->link)) { /* the same place: GO names its number */
		list_add(r->link.next, &sink->link);
		list_remove(&r->link);
	}
	e->receives.slots[r->id] = sink;
}

static void drop_sends(struct engine *e)
{
	for (int rank = 0; rank < e->size; rank++) {
		struct engine_peer *p = &e->peers[rank];
		while (!list_empty(&p->heads)) {
			struct engine_send *s = list_of(p->heads.next, struct engine_send, link);
			list_remove(&s->link);
			if (s->is_long)
				table_remove(&e->sends, s->id);
			e->calls->sent(e->io, s);
		}
	}
	for (uint32_t i = 0; i < e->sends.size; i++) {
		struct engine_send *s = table_get(&e->sends, i);
		if (!s)
			continue;
		list_remove(&s->link);
		if (s->started) {
			table_remove(&e->sends, i);
			if (s->sent < s->wanted)
				break_off(e, &e->peers[s->rank], s->receive);
		} else {
			e->sends.slots[i] = grave_of(s->rank);
			e->peers[s->rank].graves++;
		}
		e->calls->sent(e->io, s);
	}
}

static void drop_receives(struct engine *e)
{
	for (int tagged = 0; tagged < 2; tagged++) {
		struct link *posted = &e->matchers[tagged].posted;
		while (!list_empty(posted)) {
			struct engine_receive *r = list_of(posted->next, struct engine_receive, want.link);
			list_remove(&r->want.link);
			e->calls->received(e->io, r);
		}
	}
	for (uint32_t i = 0; i < e->receives.size; i++) {
		struct engine_receive *r = table_get(&e->receives, i);
		if (!r || r->sink)
			continue;
		sink_for(e, r);
		e->calls->received(e->io, r);
	}
}

void engine_drop(struct engine *e)
{
	drop_sends(e);
	drop_receives(e);
	for (int tagged = 0; tagged < 2; tagged++) {
		struct link *list = &e->matchers[tagged].unexpected;
		while (!list_empty(list) && !e->failed)
			engine_discard(e, list_of(list->next, struct engine_message, came.link));
	}
}

int engine_is_idle(const struct engine *e)
{
	for (const struct link *l = e->busy.next; l != &e->busy; l = l->next) {
		const struct engine_peer *p = list_of(l, struct engine_peer, link);
		if (!list_empty(&p->going) || !list_empty(&p->ends))
			return 0;
	}
	return 1;
}

void engine_close(struct engine *e)
{
	engine_drop(e);
	for (int rank = 0; rank < e->size; rank++) {
		struct link *ends = &e->peers[rank].ends;
		while (!list_empty(ends)) {
			struct link *l = ends->next;
			list_remove(l);
			free(list_of(l, struct engine_end, link));
		}
	}
	for (uint32_t i = 0; i < e->receives.size; i++)
		free(table_get(&e->receives, i)); /* a sink: there are no others */
	free(e->peers);
	free(e->sends.slots);
	free(e->sends.unused);
	free(e->receives.slots);
	free(e->receives.unused);
}
