/* One-sided operations on windows (kernel/abi/wire, Remote). */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "direct.h"
#include "internal.h"
#include "wire.h"

#define SLOTS 64 /* messages in flight at a time */

/* The answers that a request awaits. */
struct operation {
	int left; /* answers */
	int failed;
	char why[320]; /* the first failure */
};

/* A message in flight. */
struct slot {
	struct operation *operation; /* NULL: the slot is free */
	uint16_t generation;         /* of its use */
	int rank, window;
	uint64_t offset;
	char *to; /* for the answer's data; NULL: they are not needed */
	size_t length;
};

/* A window that is mapped here. */
struct window {
	int number, rank;
	char *memory;
	size_t size;
};

/* What all accesses have. */
struct access {
	int rank, window;
	uint64_t offset;
};

/* An access that was started. Its messages leave in the order of starting. Or an operation of a
 * group that was started, which has only the first answer of own, and call, or commit and group. */
struct request {
	struct call *call;	   /* NULL: another one, or it is over */
	struct commit *commit;	   /* the same */
	margay_group group;
	struct request *next;      /* in the queue */
	struct operation *answers; /* own, or state.puts */
	struct operation own;
	struct access at;  /* of the next message */
	int kind;          /* of it */
	const char *from;  /* source of a put; NULL: words */
	char *to;          /* for the answers' data; NULL: they are not needed */
	size_t rest;       /* bytes of data, or of words, that no message has covered */
	uint64_t words[2]; /* of an atomic access */
	int counts;        /* an event is counted after the data */
	uint64_t event;    /* its offset */
	margay_request handle; /* 0: the entry of the table is free */
};

static struct {
	struct slot slots[SLOTS];
	int passing;                /* slots in use */
	int asked;                  /* requests by datagrams in flight */
	struct operation puts;      /* of puts without a request */
	struct operation abandoned; /* what no request awaits any more */
	struct request *first;      /* the queue: requests that are not all sent */
	struct request *last;
	struct request table[MARGAY_MAX_REQUESTS];
	uint32_t started; /* requests, for their handles */
	struct window *windows;
	size_t count;
} state;

static const char *const reasons[] = {"", "there is no such window", "that is outside the window, or not aligned"};

static int refuse(const struct access *a, int status)
{
	return margay_in_fail("window %d of rank %d at %llu: %s", a->window, a->rank, (unsigned long long)a->offset, reasons[status]);
}

/* land takes the answer of a message in flight. */
static void land(struct slot *s, int status, const char *data)
{
	if (status && !s->operation->failed) {
		s->operation->failed = 1;
		snprintf(s->operation->why, sizeof s->operation->why, "window %d of rank %d at %llu: %s", s->window, s->rank,
			 (unsigned long long)s->offset, reasons[status]);
	} else if (!status && s->to) {
		memcpy(s->to, data, s->length);
	}
	s->operation->left--;
	s->operation = NULL;
}

int margay_in_answer(const struct margay_am *m)
{
	uint32_t token = m->args[0];
	struct slot *s = &state.slots[token % SLOTS];
	unsigned status = m->args[0] >> 36 & 15;
	if (m->source != margay_rank() || (m->args[0] >> 32 & 15) != WIRE_REMOTE_REPLY || status > WIRE_REMOTE_OUTSIDE)
		return -1;
	if (!s->operation || s->generation != token >> 16 || (status == 0 && m->length != s->length))
		return -1;
	state.passing--;
	land(s, status, m->payload);
	return 0;
}

void margay_in_land(struct direct *d, uint64_t number, int status, const char *data)
{
	state.asked--;
	land(&((struct slot *)d->flights)[number % ONESIDED_OUTSTANDING], status, data);
}

static struct slot *free_slot(void)
{
	for (int i = 0; i < SLOTS; i++)
		if (!state.slots[i].operation)
			return &state.slots[i];
	return NULL;
}

/* ---- The queue ---- */

/* dequeue removes a request from the queue if it is there. */
static void dequeue(struct request *r)
{
	struct request *before = NULL;
	for (struct request *q = state.first; q; before = q, q = q->next) {
		if (q != r)
			continue;
		if (before)
			before->next = r->next;
		else
			state.first = r->next;
		if (state.last == r)
			state.last = before;
		return;
	}
}

static void enqueue(struct request *r)
{
	r->next = NULL;
	if (state.first)
		state.last->next = r;
	else
		state.first = r;
	state.last = r;
}

/* count_event makes the counting of an event the rest of a request whose data are sent, and reports
 * whether there is one. */
static int count_event(struct request *r)
{
	if (!r->counts)
		return 0;
	r->counts = 0;
	r->kind = WIRE_REMOTE_ADD;
	r->at.offset = r->event;
	r->words[0] = 1;
	r->from = NULL;
	r->rest = sizeof r->words[0];
	return 1;
}

/* flight_of describes the next message of a request, of n bytes. */
static struct slot flight_of(const struct request *r, uint16_t generation, size_t n)
{
	size_t answer = r->kind == WIRE_REMOTE_GET ? n : r->kind == WIRE_REMOTE_PUT ? 0 : sizeof(uint64_t);
	return (struct slot){r->answers, generation, r->at.rank, r->at.window, r->at.offset, r->to, answer};
}

/* source_of returns the data of the next message. */
static const char *source_of(const struct request *r) { return r->from ? r->from : (const char *)r->words; }

/* sent notes that a message of n bytes is sent. */
static void sent(struct request *r, size_t n)
{
	r->answers->left++;
	r->at.offset += n;
	r->rest -= n;
	if (r->kind == WIRE_REMOTE_PUT)
		r->from += n;
	if (r->kind == WIRE_REMOTE_GET)
		r->to += n;
}

/* post_next sends the next message of a request in a slot and returns 1, 0 without room for it. */
static int post_next(struct request *r, struct slot *s)
{
	size_t n = r->rest < MARGAY_MAX_PAYLOAD ? r->rest : MARGAY_MAX_PAYLOAD;
	uint16_t generation = s->generation + 1;
	uint64_t args = (uint32_t)(s - state.slots) | (uint64_t)generation << 16 | (uint64_t)r->kind << 32 | (uint64_t)r->at.window << 40 |
			(uint64_t)n << 48;
	int posted = margay_in_post(r->at.rank, WIRE_HANDLER_REMOTE, args, r->at.offset, source_of(r), r->kind == WIRE_REMOTE_GET ? 0 : n);
	if (posted <= 0)
		return posted;
	*s = flight_of(r, generation, n);
	state.passing++;
	sent(r, n);
	return 1;
}

/* ask adds as much of a request to a direct as there is room for, and returns 1, 0 without room. */
static int ask(struct request *r, struct direct *d)
{
	int some = 0;
	if (!d->flights && !(d->flights = calloc(ONESIDED_OUTSTANDING, sizeof(struct slot))))
		return margay_in_fail("no memory");
	while (r->rest && direct_room(d, r->kind)) {
		size_t n = r->rest < d->piece ? r->rest : d->piece;
		uint64_t number = direct_add(d, r->kind, r->at.window, r->at.offset, source_of(r), n);
		if (!number)
			return margay_in_fail("no memory");
		((struct slot *)d->flights)[number % ONESIDED_OUTSTANDING] = flight_of(r, 0, n);
		state.asked++;
		sent(r, n);
		some = 1;
	}
	return some;
}

/* passes reports whether messages to a rank are in flight through the node kernels. */
static int passes(int rank)
{
	for (int i = 0; state.passing && i < SLOTS; i++)
		if (state.slots[i].operation && state.slots[i].rank == rank)
			return 1;
	return 0;
}

/* send_next sends some of a request and returns 1, 0 if it has to wait. Requests to a rank change
 * between datagrams and the node kernels only when all before are answered, so that they take
 * effect in order. *fresh is a direct with requests that were not sent, or NULL. */
static int send_next(struct request *r, struct direct **fresh)
{
	int allowed = 0;
	struct direct *d = margay_in_direct(r->at.rank, &allowed);
	if (*fresh && *fresh != d) {
		margay_in_ask(*fresh);
		*fresh = NULL;
	}
	if (d && allowed) {
		int was = margay_in_mask(), some = passes(r->at.rank) ? 0 : ask(r, d);
		margay_in_unmask(was);
		if (some > 0)
			*fresh = d;
		return some;
	}
	struct slot *s = free_slot();
	if (!s || (d && !direct_idle(d)))
		return 0;
	for (;;) {
		int posted = post_next(r, s);
		if (posted || !margay_in_room(r->at.rank, WIRE_HANDLER_REMOTE, MARGAY_MAX_PAYLOAD))
			return posted;
	}
}

/* fail_request makes the last error the error of a request. */
static void fail_request(struct request *r)
{
	r->own.failed = 1;
	snprintf(r->own.why, sizeof r->own.why, "%s", margay_error());
}

void margay_in_progress(void)
{
	struct direct *fresh = NULL;
	for (struct request *r; (r = state.first);) {
		int done = send_next(r, &fresh);
		if (done == 0)
			break;
		if (done < 0)
			fail_request(r);
		if (done < 0 || (r->rest == 0 && !count_event(r)))
			dequeue(r);
	}
	if (fresh)
		margay_in_ask(fresh);
}

static int is_drained(int n, uint64_t arg)
{
	(void)n;
	(void)arg;
	return !state.first;
}

int margay_in_drain(int timeout_ms) { return state.first && margay_in_wait(is_drained, 0, timeout_ms) < 0 ? -1 : 0; }

/* abandon_in keeps the answers of n messages away from an operation and its memory. */
static void abandon_in(struct slot *slots, int n, const struct operation *o)
{
	for (int i = 0; i < n; i++) {
		if (slots[i].operation != o)
			continue;
		slots[i].operation = &state.abandoned;
		slots[i].to = NULL;
		state.abandoned.left++;
	}
}

/* abandon keeps answers away from an operation and its memory. */
static void abandon(const struct operation *o)
{
	int allowed;
	abandon_in(state.slots, SLOTS, o);
	for (int rank = 0; state.asked && rank < margay_size(); rank++) {
		struct direct *d = margay_in_direct(rank, &allowed);
		if (d && d->flights)
			abandon_in(d->flights, ONESIDED_OUTSTANDING, o);
	}
}

/* is_queued reports whether a request has messages to send. */
static int is_queued(const struct request *r)
{
	for (const struct request *q = state.first; q; q = q->next)
		if (q == r)
			return 1;
	return 0;
}

static int is_sent(int n, uint64_t arg)
{
	(void)n;
	return !is_queued((const struct request *)(uintptr_t)arg);
}

static int is_complete(int n, uint64_t arg)
{
	const struct request *r = (const struct request *)(uintptr_t)arg;
	return r->own.left == 0 && is_sent(n, arg);
}

/* withdraw ends a request: none of its memory is used any more. */
static void withdraw(struct request *r)
{
	if (r->call)
		margay_in_leave(r->call);
	if (r->commit)
		margay_in_abandon_commit(r->commit, r->group);
	r->commit = NULL;
	dequeue(r);
	abandon(&r->own);
}

static int outcome(const struct operation *o) { return o->failed ? margay_in_fail("%s", o->why) : 0; }

/* ---- Windows of this node ---- */

/* find returns a window that is mapped here, NULL if it is not. */
static struct window *find(int number, int rank)
{
	for (size_t i = 0; i < state.count; i++)
		if (state.windows[i].number == number && state.windows[i].rank == rank)
			return &state.windows[i];
	return NULL;
}

/* map_window maps a window of a rank of this node. */
static struct window *map_window(int number, int rank, size_t size)
{
	char name[WIRE_MAX_NAME];
	struct window w = {number, rank, NULL, 0};
	snprintf(name, sizeof name, "window/%d/%d", number, rank);
	w.memory = margay_region(name, size, &w.size);
	if (!w.memory)
		return NULL;
	int was = margay_in_mask(); /* an upcall may have a request taken, which finds a window */
	struct window *all = realloc(state.windows, (state.count + 1) * sizeof w);
	if (all) {
		state.windows = all;
		all[state.count++] = w;
	}
	margay_in_unmask(was);
	if (!all) {
		margay_in_fail("no memory");
		return NULL;
	}
	return &all[state.count - 1];
}

/* check fails if a call must not be made, or with those arguments. */
static int check(const struct access *a)
{
	if (margay_in_no_job() != 0)
		return -1;
	if (margay_in_handler())
		return margay_in_fail("a handler must not use windows");
	if (a->rank < 0 || a->rank >= margay_size())
		return margay_in_fail("there is no rank %d, but ranks 0 to %d", a->rank, margay_size() - 1);
	if (a->window < 0 || a->window >= MARGAY_MAX_WINDOWS)
		return margay_in_fail("there is no window %d, but windows 0 to %d", a->window, MARGAY_MAX_WINDOWS - 1);
	return 0;
}

static int is_near(const struct access *a) { return margay_node_of(a->rank) == margay_node(); }

/* near returns length bytes of a window of this node, NULL if there are none. A word is aligned. */
static char *near(const struct access *a, size_t length, int word)
{
	struct window *w = find(a->window, a->rank);
	if (!w && !(w = map_window(a->window, a->rank, 0))) {
		refuse(a, WIRE_REMOTE_NO_WINDOW);
		return NULL;
	}
	if (a->offset > w->size || length > w->size - a->offset || (word && a->offset % 8)) {
		refuse(a, WIRE_REMOTE_OUTSIDE);
		return NULL;
	}
	return w->memory + a->offset;
}

static _Atomic uint64_t *near_word(const struct access *a) { return (_Atomic uint64_t *)near(a, 8, 1); }

/* ---- Calls ---- */

void *margay_window(int number, size_t size)
{
	struct access a = {margay_in_no_job() == 0 ? margay_rank() : 0, number, 0};
	if (check(&a) != 0)
		return NULL;
	struct window *w = find(number, a.rank);
	if (size == 0) {
		margay_in_fail("window %d of 0 bytes: a window has 1 byte at least", number);
		return NULL;
	}
	if (w && size > w->size) {
		margay_in_fail("window %d has %zu bytes, not %zu", number, w->size, size);
		return NULL;
	}
	if (!w)
		w = map_window(number, a.rank, size);
	return w ? w->memory : NULL;
}

/* begin_near carries out a request on a window of this node. */
static int begin_near(const struct request *r)
{
	struct access event = {r->at.rank, r->at.window, r->event};
	int word = r->kind != WIRE_REMOTE_PUT && r->kind != WIRE_REMOTE_GET;
	_Atomic uint64_t *counter = NULL;
	if (r->counts && !(counter = near_word(&event)))
		return -1;
	char *at = near(&r->at, word ? sizeof r->words[0] : r->rest, word);
	if (!at)
		return -1;
	uint64_t old = r->words[0];
	if (r->kind == WIRE_REMOTE_PUT && r->rest)
		memcpy(at, r->from, r->rest);
	if (r->kind == WIRE_REMOTE_GET && r->rest)
		memcpy(r->to, at, r->rest);
	if (r->kind == WIRE_REMOTE_ADD)
		old = atomic_fetch_add((_Atomic uint64_t *)at, r->words[0]);
	if (r->kind == WIRE_REMOTE_SWAP)
		atomic_compare_exchange_strong((_Atomic uint64_t *)at, &old, r->words[1]); /* old is then what was there */
	if (counter)
		atomic_fetch_add(counter, 1);
	if (word || counter)
		margay_in_wake(r->at.rank);
	if (word && r->to)
		memcpy(r->to, &old, sizeof old);
	return 0;
}

/* begin starts a request, or fails. */
static int begin(struct request *r)
{
	if (is_near(&r->at))
		return begin_near(r);
	if (r->rest == 0 && !count_event(r))
		return 0;
	enqueue(r);
	margay_in_progress();
	return 0;
}

/* free_entry returns a free entry of the table, or fails. */
static struct request *free_entry(void)
{
	for (uint32_t i = 0; i < MARGAY_MAX_REQUESTS; i++)
		if (!state.table[i].handle)
			return &state.table[i];
	margay_in_fail("%d requests are outstanding: test or wait for one first", MARGAY_MAX_REQUESTS);
	return NULL;
}

/* take_entry takes a free entry for a request. */
static margay_request take_entry(struct request *r)
{
	state.started = state.started % ((1 << 22) - 1) + 1;
	return r->handle = state.started * MARGAY_MAX_REQUESTS + (uint32_t)(r - state.table);
}

/* start starts a request of the application. */
static int start(const struct request *what, margay_request *handle)
{
	*handle = 0;
	struct request *r = check(&what->at) != 0 ? NULL : free_entry();
	if (!r)
		return -1;
	*r = *what;
	r->answers = &r->own;
	if (begin(r) != 0)
		return -1;
	*handle = take_entry(r);
	return 0;
}

/* open makes a request that others complete. */
static int open(const struct request *what, margay_request *handle)
{
	struct request *r = free_entry();
	if (!r)
		return -1;
	*r = *what;
	*handle = take_entry(r);
	return 0;
}

/* close_request completes such a request. why is NULL unless it has failed. */
static void close_request(margay_request handle, const char *name, const char *why)
{
	struct request *r = &state.table[handle % MARGAY_MAX_REQUESTS];
	r->call = NULL;
	r->commit = NULL;
	r->own.left = 0;
	r->own.failed = why != NULL;
	if (why)
		snprintf(r->own.why, sizeof r->own.why, "%s: %s", name, why);
}

int margay_in_open_request(struct call *c, margay_request *handle)
{
	return open(&(struct request){.call = c, .own.left = 1}, handle);
}

void margay_in_close_request(margay_request handle, int kind, const char *why) { close_request(handle, margay_in_kind(kind), why); }

int margay_in_open_commit(struct commit *c, margay_group group, margay_request *handle)
{
	return open(&(struct request){.commit = c, .group = group, .own.left = 1}, handle);
}

void margay_in_close_commit(margay_request handle, const char *why) { close_request(handle, "xfer and signal", why); }

char *margay_in_window(int number, size_t *size)
{
	struct window *w = find(number, margay_rank());
	if (!w && !(w = map_window(number, margay_rank(), 0)))
		return NULL;
	*size = w->size;
	return w->memory;
}

char *margay_in_mapped(int number, size_t *size)
{
	struct window *w = find(number, margay_rank());
	if (!w)
		return NULL;
	*size = w->size;
	return w->memory;
}

/* run makes an access and waits until it is sent, for a put, or complete. */
static int run(struct request r)
{
	int is_put = r.kind == WIRE_REMOTE_PUT;
	int (*done)(int n, uint64_t arg) = is_put ? is_sent : is_complete;
	r.answers = is_put ? &state.puts : &r.own;
	if (check(&r.at) != 0 || begin(&r) != 0)
		return -1;
	if (!done(0, (uintptr_t)&r) && margay_in_wait(done, (uintptr_t)&r, -1) < 0) {
		withdraw(&r);
		return -1;
	}
	return outcome(&r.own);
}

static struct request a_put(int rank, int window, size_t offset, const void *from, size_t length)
{
	return (struct request){.at = {rank, window, offset}, .kind = WIRE_REMOTE_PUT, .from = from, .rest = length};
}

static struct request a_put_event(int rank, int window, size_t offset, const void *from, size_t length, size_t event)
{
	struct request r = a_put(rank, window, offset, from, length);
	r.counts = 1;
	r.event = event;
	return r;
}

static struct request a_get(void *to, int rank, int window, size_t offset, size_t length)
{
	return (struct request){.at = {rank, window, offset}, .kind = WIRE_REMOTE_GET, .to = to, .rest = length};
}

static struct request an_add(int rank, int window, size_t offset, uint64_t value, uint64_t *old)
{
	return (struct request){.at = {rank, window, offset}, .kind = WIRE_REMOTE_ADD, .to = (char *)old, .rest = 8, .words = {value}};
}

static struct request a_swap(int rank, int window, size_t offset, uint64_t expected, uint64_t value, uint64_t *old)
{
	return (struct request){.at = {rank, window, offset}, .kind = WIRE_REMOTE_SWAP, .to = (char *)old, .rest = 16, .words = {expected, value}};
}

int margay_put(int rank, int window, size_t offset, const void *from, size_t length)
{
	return run(a_put(rank, window, offset, from, length));
}

int margay_put_event(int rank, int window, size_t offset, const void *from, size_t length, size_t event)
{
	return run(a_put_event(rank, window, offset, from, length, event));
}

int margay_get(void *to, int rank, int window, size_t offset, size_t length) { return run(a_get(to, rank, window, offset, length)); }

int margay_fetch_add(int rank, int window, size_t offset, uint64_t value, uint64_t *old)
{
	return run(an_add(rank, window, offset, value, old));
}

int margay_compare_swap(int rank, int window, size_t offset, uint64_t expected, uint64_t value, uint64_t *old)
{
	return run(a_swap(rank, window, offset, expected, value, old));
}

int margay_put_nb(int rank, int window, size_t offset, const void *from, size_t length, margay_request *request)
{
	struct request r = a_put(rank, window, offset, from, length);
	return start(&r, request);
}

int margay_put_event_nb(int rank, int window, size_t offset, const void *from, size_t length, size_t event, margay_request *request)
{
	struct request r = a_put_event(rank, window, offset, from, length, event);
	return start(&r, request);
}

int margay_get_nb(void *to, int rank, int window, size_t offset, size_t length, margay_request *request)
{
	struct request r = a_get(to, rank, window, offset, length);
	return start(&r, request);
}

int margay_fetch_add_nb(int rank, int window, size_t offset, uint64_t value, uint64_t *old, margay_request *request)
{
	struct request r = an_add(rank, window, offset, value, old);
	return start(&r, request);
}

int margay_compare_swap_nb(int rank, int window, size_t offset, uint64_t expected, uint64_t value, uint64_t *old, margay_request *request)
{
	struct request r = a_swap(rank, window, offset, expected, value, old);
	return start(&r, request);
}

/* ---- Requests ---- */

/* Some requests of the application. */
struct some {
	margay_request *handles;
	int count;
};

/* entry returns the request of a handle that is not 0. */
static struct request *entry(margay_request handle) { return &state.table[handle % MARGAY_MAX_REQUESTS]; }

static int handle_complete(margay_request handle) { return !handle || is_complete(0, (uintptr_t)entry(handle)); }

/* check_requests fails if a call must not be made, or a handle is of no request. */
static int check_requests(const struct some *some)
{
	struct access none = {0};
	if (check(&none) != 0)
		return -1;
	for (int i = 0; i < some->count; i++)
		if (some->handles[i] && entry(some->handles[i])->handle != some->handles[i])
			return margay_in_fail("request %u is not outstanding", some->handles[i]);
	return 0;
}

/* collect frees a complete request and returns 0, or -1 if it has failed. */
static int collect(margay_request *handle)
{
	if (!*handle)
		return 0;
	struct request *r = entry(*handle);
	*handle = r->handle = 0;
	return outcome(&r->own);
}

static int all_complete(int n, uint64_t arg)
{
	const struct some *some = (const struct some *)(uintptr_t)arg;
	(void)n;
	for (int i = 0; i < some->count; i++)
		if (!handle_complete(some->handles[i]))
			return 0;
	return 1;
}

/* next_complete returns the index of a complete request, -1 if all handles are 0, or -2. */
static int next_complete(const struct some *some)
{
	int found = -1;
	for (int i = 0; i < some->count; i++) {
		if (!some->handles[i])
			continue;
		if (handle_complete(some->handles[i]))
			return i;
		found = -2;
	}
	return found;
}

static int any_complete(int n, uint64_t arg)
{
	(void)n;
	return next_complete((const struct some *)(uintptr_t)arg) != -2;
}

/* await waits for requests and returns 1, 0 after the time-out. If the node kernel is gone, it
 * withdraws all of them. */
static int await(struct some *some, int (*done)(int n, uint64_t arg), int timeout_ms)
{
	if (check_requests(some) != 0)
		return -1;
	int n = done(0, (uintptr_t)some) ? 0 : margay_in_wait(done, (uintptr_t)some, timeout_ms);
	if (n != -2)
		return n >= 0;
	for (int i = 0; i < some->count; i++)
		margay_request_abandon(&some->handles[i]);
	return margay_in_fail("the node kernel is gone");
}

int margay_request_test(margay_request *request)
{
	struct some one = {request, 1};
	if (check_requests(&one) != 0)
		return -1;
	if (!handle_complete(*request))
		margay_poll();
	if (!handle_complete(*request))
		return 0;
	return collect(request) != 0 ? -1 : 1;
}

int margay_request_wait(margay_request *request, int timeout_ms) { return margay_request_wait_all(request, 1, timeout_ms); }

int margay_request_wait_all(margay_request *requests, int count, int timeout_ms)
{
	struct some some = {requests, count};
	struct operation first = {0};
	int done = await(&some, all_complete, timeout_ms);
	if (done <= 0)
		return done;
	for (int i = 0; i < count; i++) {
		if (collect(&requests[i]) == 0 || first.failed)
			continue;
		first.failed = 1;
		snprintf(first.why, sizeof first.why, "%s", margay_error());
	}
	return outcome(&first) != 0 ? -1 : 1;
}

int margay_request_wait_any(margay_request *requests, int count, int *index, int timeout_ms)
{
	struct some some = {requests, count};
	*index = -1;
	int done = await(&some, any_complete, timeout_ms);
	if (done <= 0)
		return done;
	*index = next_complete(&some);
	return *index >= 0 && collect(&requests[*index]) != 0 ? -1 : 1;
}

int margay_request_abandon(margay_request *request)
{
	struct some one = {request, 1};
	if (check_requests(&one) != 0)
		return -1;
	if (*request) {
		withdraw(entry(*request));
		*request = entry(*request)->handle = 0;
	}
	return 0;
}

/* ---- Order and events ---- */

void margay_fence(void) { atomic_thread_fence(memory_order_seq_cst); }

/* is_quiet reports whether no message is queued or in flight. */
static int is_quiet(int n, uint64_t arg)
{
	(void)n;
	(void)arg;
	for (int i = 0; i < SLOTS; i++)
		if (state.slots[i].operation)
			return 0;
	return !state.first && !state.asked;
}

static int all_answered(int n, uint64_t arg)
{
	(void)n;
	(void)arg;
	return !state.puts.left;
}

int margay_in_answered(int timeout_ms) { return state.puts.left && margay_in_wait(all_answered, 0, timeout_ms) < 0 ? -1 : 0; }

int margay_in_refused(void)
{
	int err = outcome(&state.puts);
	state.puts.failed = 0;
	return err;
}

int margay_quiet(int timeout_ms)
{
	struct access a = {0};
	if (check(&a) != 0)
		return -1;
	margay_fence();
	if (!is_quiet(0, 0) && margay_in_wait(is_quiet, 0, timeout_ms) < 0)
		return -1;
	return margay_in_refused();
}

/* An event that is waited for. */
struct event {
	const _Atomic uint64_t *word;
	uint64_t count;
};

static int has_come(int n, uint64_t arg)
{
	const struct event *e = (const struct event *)(uintptr_t)arg;
	(void)n;
	return atomic_load(e->word) >= e->count;
}

/* own_event finds an event in a window of this rank. */
static int own_event(int window, size_t offset, uint64_t count, struct event *e)
{
	struct access a = {margay_in_no_job() == 0 ? margay_rank() : 0, window, offset};
	if (check(&a) != 0 || !(e->word = near_word(&a)))
		return -1;
	e->count = count;
	return 0;
}

int margay_event_test(int window, size_t event, uint64_t count)
{
	struct event e;
	if (own_event(window, event, count, &e) != 0)
		return -1;
	if (!has_come(0, (uintptr_t)&e))
		margay_poll();
	return has_come(0, (uintptr_t)&e);
}

int margay_event_wait(int window, size_t event, uint64_t count, int timeout_ms)
{
	struct event e;
	if (own_event(window, event, count, &e) != 0)
		return -1;
	return margay_in_wait(has_come, (uintptr_t)&e, timeout_ms) < 0 ? -1 : 0;
}
