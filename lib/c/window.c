/* One-sided operations on windows (kernel/abi/wire, Remote). */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "wire.h"

#define SLOTS 64 /* requests in flight at a time */

/* What a call waits for. */
struct operation {
	int left; /* answers */
	int failed;
	char why[128]; /* the first failure */
};

/* A request in flight. */
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

static struct {
	struct slot slots[SLOTS];
	struct operation puts;      /* all of them since margay_quiet */
	struct operation abandoned; /* what no call waits for any more */
	struct window *windows;
	size_t count;
} state;

/* An access to a window of another node, or of this one: what all calls have. */
struct access {
	int rank, window;
	uint64_t offset;
};

static const char *const reasons[] = {"", "there is no such window", "that is outside the window, or not aligned"};

static int refuse(const struct access *a, int status)
{
	return margay_in_fail("window %d of rank %d at %llu: %s", a->window, a->rank, (unsigned long long)a->offset, reasons[status]);
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
	if (status && !s->operation->failed) {
		s->operation->failed = 1;
		snprintf(s->operation->why, sizeof s->operation->why, "window %d of rank %d at %llu: %s", s->window, s->rank,
			 (unsigned long long)s->offset, reasons[status]);
	} else if (!status && s->to) {
		memcpy(s->to, m->payload, s->length);
	}
	s->operation->left--;
	s->operation = NULL;
	return 0;
}

static struct slot *free_slot(void)
{
	for (int i = 0; i < SLOTS; i++)
		if (!state.slots[i].operation)
			return &state.slots[i];
	return NULL;
}

static int is_free(int n, uint64_t arg)
{
	(void)n;
	(void)arg;
	return free_slot() != NULL;
}

/* request sends a request; its answer has length bytes, which go to to. */
static int request(struct operation *o, const struct access *a, int kind, const void *payload, size_t size, void *to, size_t length)
{
	if (!free_slot() && margay_in_wait(is_free, 0, -1) < 0)
		return -1;
	struct slot *s = free_slot();
	uint16_t generation = s->generation + 1;
	*s = (struct slot){o, generation, a->rank, a->window, a->offset, to, length};
	o->left++;
	uint64_t bytes = kind == WIRE_REMOTE_GET ? length : size;
	uint64_t args = (uint32_t)(s - state.slots) | (uint64_t)generation << 16 | (uint64_t)kind << 32 | (uint64_t)a->window << 40 | bytes << 48;
	if (margay_in_send(a->rank, WIRE_HANDLER_REMOTE, args, a->offset, payload, size, -1) == 0)
		return 0;
	s->operation = NULL;
	o->left--;
	return -1;
}

static int is_over(int n, uint64_t arg)
{
	(void)n;
	return ((struct operation *)(uintptr_t)arg)->left == 0;
}

/* abandon keeps answers away from an operation and its memory. */
static void abandon(struct operation *o)
{
	for (int i = 0; i < SLOTS; i++) {
		if (state.slots[i].operation != o)
			continue;
		state.slots[i].operation = &state.abandoned;
		state.slots[i].to = NULL;
		state.abandoned.left++;
	}
}

/* finish waits for all answers. */
static int finish(struct operation *o, int timeout_ms)
{
	int err = o->left && margay_in_wait(is_over, (uintptr_t)o, timeout_ms) < 0 ? -1 : 0;
	if (err && o != &state.puts)
		abandon(o);
	if (!err && o->failed) {
		o->failed = 0;
		err = margay_in_fail("%s", o->why);
	}
	return err;
}

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
	struct window w = {number, rank, NULL, 0}, *all = realloc(state.windows, (state.count + 1) * sizeof w);
	if (!all) {
		margay_in_fail("no memory");
		return NULL;
	}
	state.windows = all;
	snprintf(name, sizeof name, "window/%d/%d", number, rank);
	w.memory = margay_region(name, size, &w.size);
	if (!w.memory)
		return NULL;
	state.windows[state.count] = w;
	return &state.windows[state.count++];
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
	if (w && size > w->size) {
		margay_in_fail("window %d has %zu bytes, not %zu", number, w->size, size);
		return NULL;
	}
	if (!w)
		w = map_window(number, a.rank, size);
	return w ? w->memory : NULL;
}

/* put puts without an event. */
static int put(struct access a, const char *from, size_t length)
{
	if (is_near(&a)) {
		char *to = near(&a, length, 0);
		if (!to)
			return -1;
		memcpy(to, from, length);
		return 0;
	}
	while (length > 0) {
		size_t n = length < MARGAY_MAX_PAYLOAD ? length : MARGAY_MAX_PAYLOAD;
		if (request(&state.puts, &a, WIRE_REMOTE_PUT, from, n, NULL, 0) != 0)
			return -1;
		from += n;
		a.offset += n;
		length -= n;
	}
	return 0;
}

int margay_put(int rank, int window, size_t offset, const void *from, size_t length)
{
	struct access a = {rank, window, offset};
	return check(&a) != 0 ? -1 : put(a, from, length);
}

int margay_put_event(int rank, int window, size_t offset, const void *from, size_t length, size_t event)
{
	struct access a = {rank, window, offset}, at = {rank, window, event};
	uint64_t one = 1;
	if (check(&a) != 0)
		return -1;
	_Atomic uint64_t *word = NULL;
	if (is_near(&a) && !(word = near_word(&at)))
		return -1;
	if (put(a, from, length) != 0)
		return -1;
	if (!word)
		return request(&state.puts, &at, WIRE_REMOTE_ADD, &one, sizeof one, NULL, sizeof one);
	atomic_fetch_add(word, 1);
	margay_in_wake(rank);
	return 0;
}

int margay_get(void *to, int rank, int window, size_t offset, size_t length)
{
	struct access a = {rank, window, offset};
	struct operation o = {0};
	char *next = to;
	if (check(&a) != 0)
		return -1;
	if (is_near(&a)) {
		const char *from = near(&a, length, 0);
		if (!from)
			return -1;
		memcpy(to, from, length);
		return 0;
	}
	int err = 0;
	while (length > 0 && !err) {
		size_t n = length < MARGAY_MAX_PAYLOAD ? length : MARGAY_MAX_PAYLOAD;
		err = request(&o, &a, WIRE_REMOTE_GET, NULL, 0, next, n);
		next += n;
		a.offset += n;
		length -= n;
	}
	return finish(&o, -1) != 0 ? -1 : err; /* o must not be used later, whatever has failed */
}

/* far_atomic makes an atomic access to a window of another node. */
static int far_atomic(const struct access *a, int kind, const uint64_t *words, size_t size, uint64_t *old)
{
	struct operation o = {0};
	uint64_t was;
	if (request(&o, a, kind, words, size, &was, sizeof was) != 0 || finish(&o, -1) != 0)
		return -1;
	if (old)
		*old = was;
	return 0;
}

int margay_fetch_add(int rank, int window, size_t offset, uint64_t value, uint64_t *old)
{
	struct access a = {rank, window, offset};
	if (check(&a) != 0)
		return -1;
	if (!is_near(&a))
		return far_atomic(&a, WIRE_REMOTE_ADD, &value, sizeof value, old);
	_Atomic uint64_t *word = near_word(&a);
	if (!word)
		return -1;
	value = atomic_fetch_add(word, value);
	margay_in_wake(rank);
	if (old)
		*old = value;
	return 0;
}

int margay_compare_swap(int rank, int window, size_t offset, uint64_t expected, uint64_t value, uint64_t *old)
{
	struct access a = {rank, window, offset};
	uint64_t words[] = {expected, value};
	if (check(&a) != 0)
		return -1;
	if (!is_near(&a))
		return far_atomic(&a, WIRE_REMOTE_SWAP, words, sizeof words, old);
	_Atomic uint64_t *word = near_word(&a);
	if (!word)
		return -1;
	atomic_compare_exchange_strong(word, &expected, value); /* expected is then what was there */
	margay_in_wake(rank);
	if (old)
		*old = expected;
	return 0;
}

void margay_fence(void) { atomic_thread_fence(memory_order_seq_cst); }

int margay_quiet(int timeout_ms)
{
	struct access a = {0};
	if (check(&a) != 0)
		return -1;
	margay_fence();
	return finish(&state.puts, timeout_ms);
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
	return own_event(window, event, count, &e) != 0 ? -1 : has_come(0, (uintptr_t)&e);
}

int margay_event_wait(int window, size_t event, uint64_t count, int timeout_ms)
{
	struct event e;
	if (own_event(window, event, count, &e) != 0)
		return -1;
	return margay_in_wait(has_come, (uintptr_t)&e, timeout_ms) < 0 ? -1 : 0;
}
