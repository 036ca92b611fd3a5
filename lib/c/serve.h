/* serve.h: how this rank carries out requests about its windows by ranks of other nodes, in C
 * (kernel/abi/onesided, Journal). They may be a stranger's, or nonsense: each number of theirs is
 * checked. */
#ifndef MARGAY_SERVE_H
#define MARGAY_SERVE_H

#include <stdatomic.h>
#include <string.h>

#include "direct.h"

/* serve_parse reads a request, which may be anything, and reports whether it is one. */
static inline int serve_parse(struct onesided_request *q, const char *b, size_t n)
{
	if (n < sizeof *q || n > ONESIDED_MOST)
		return 0;
	memcpy(q, b, sizeof *q);
	if (q->magic != ONESIDED_MAGIC || q->version != ONESIDED_VERSION || q->zero || !q->number)
		return 0;
	n -= sizeof *q;
	switch (q->kind) {
	case WIRE_REMOTE_PUT:
		return q->length == n && n > 0 && n <= ONESIDED_MOST - sizeof(struct onesided_answer);
	case WIRE_REMOTE_GET:
		return n == 0 && q->length > 0 && q->length <= ONESIDED_MOST - sizeof(struct onesided_answer);
	case WIRE_REMOTE_ADD:
		return q->length == n && n == sizeof(uint64_t);
	case WIRE_REMOTE_SWAP:
		return q->length == n && n == 2 * sizeof(uint64_t);
	}
	return 0;
}

static inline _Atomic uint64_t *serve_word(uint64_t *word) { return (_Atomic uint64_t *)word; }

/* serve_within reports whether a request is all in a window. */
static inline int serve_within(const struct onesided_request *q, size_t size)
{
	size_t length = direct_atomic(q->kind) ? sizeof(uint64_t) : q->length;
	return (!direct_atomic(q->kind) || q->offset % 8 == 0) && q->offset <= size && length <= size - q->offset;
}

/* serve_access makes an atomic access and returns what was there before. */
static inline uint64_t serve_access(int kind, _Atomic uint64_t *word, const char *data)
{
	uint64_t values[2];
	memcpy(values, data, kind == WIRE_REMOTE_ADD ? sizeof values[0] : sizeof values);
	if (kind == WIRE_REMOTE_ADD)
		return atomic_fetch_add(word, values[0]);
	atomic_compare_exchange_strong(word, &values[0], values[1]); /* values[0] is then what was there */
	return values[0];
}

/* serve_next carries out the next request of a journal in a window of so many bytes. */
static inline void serve_next(struct onesided_journal *j, const struct onesided_request *q, const char *data, char *window, size_t size)
{
	uint64_t bit = (uint64_t)1 << q->number % 64, outside = atomic_load(serve_word(&j->outside)) & ~bit;
	if (!serve_within(q, size)) {
		outside |= bit;
	} else if (q->kind == WIRE_REMOTE_PUT) {
		memcpy(window + q->offset, data, q->length);
	} else if (direct_atomic(q->kind)) {
		atomic_store(serve_word(&j->intent), q->number);
		uint64_t old = serve_access(q->kind, (_Atomic uint64_t *)(window + q->offset), data);
		atomic_store(serve_word(&j->results[q->number % ONESIDED_OUTSTANDING]), old);
	}
	atomic_store(serve_word(&j->no_window), atomic_load(serve_word(&j->no_window)) & ~bit);
	atomic_store(serve_word(&j->outside), outside);
	atomic_store(serve_word(&j->done), q->number);
}

/* serve_answer carries out a request and writes the answer with its data to b, of ONESIDED_MOST
 * bytes. It returns the answer's length, 0 if the request is too old to be of interest. */
static inline size_t serve_answer(struct onesided_journal *j, const struct onesided_request *q, const char *data, uint64_t key, char *window,
				  size_t size, char *b)
{
	uint64_t done = atomic_load(serve_word(&j->done)), bit = (uint64_t)1 << q->number % 64, old;
	struct onesided_answer a = {.magic = ONESIDED_MAGIC, .version = ONESIDED_VERSION, .kind = WIRE_REMOTE_REPLY, .source = q->source,
				    .target = q->target, .key = key};
	if (q->number > done + 1)
		a.flags = ONESIDED_GAP;
	else if (q->number + ONESIDED_OUTSTANDING <= done)
		return 0;
	else if (q->number == done + 1)
		serve_next(j, q, data, window, size);
	a.done = atomic_load(serve_word(&j->done));
	a.no_window = atomic_load(serve_word(&j->no_window));
	a.outside = atomic_load(serve_word(&j->outside));
	const void *more = NULL;
	int refused = a.flags || (a.no_window | a.outside) & bit;
	if (!refused && q->kind == WIRE_REMOTE_GET) {
		if (!serve_within(q, size))
			return 0; /* the number was another request's: the requester breaks the rules */
		more = window + q->offset;
		a.length = q->length;
	}
	if (!refused && direct_atomic(q->kind)) {
		old = atomic_load(serve_word(&j->results[q->number % ONESIDED_OUTSTANDING]));
		more = &old;
		a.length = sizeof old;
	}
	if (more) {
		a.number = q->number;
		memcpy(b + sizeof a, more, a.length);
	}
	memcpy(b, &a, sizeof a);
	return sizeof a + a.length;
}

/* serve_busy writes the answer to a request that the node kernel keeps from being carried out, and
 * returns its length. */
static inline size_t serve_busy(struct onesided_journal *j, const struct onesided_request *q, uint64_t key, char *b)
{
	struct onesided_answer a = {.magic = ONESIDED_MAGIC, .version = ONESIDED_VERSION, .kind = WIRE_REMOTE_REPLY, .source = q->source,
				    .target = q->target, .flags = ONESIDED_GAP, .key = key, .done = atomic_load(serve_word(&j->done))};
	a.no_window = atomic_load(serve_word(&j->no_window));
	a.outside = atomic_load(serve_word(&j->outside));
	memcpy(b, &a, sizeof a);
	return sizeof a;
}

/* serve_carry is serve_answer, but while the node kernel carries out a request it does nothing, and
 * the answer makes the requester ask once more. */
static inline size_t serve_carry(struct onesided_journal *j, const struct onesided_request *q, const char *data, uint64_t key, char *window,
				 size_t size, char *b)
{
	uint64_t none = 0;
	if (!atomic_compare_exchange_strong(serve_word(&j->server), &none, ONESIDED_BY_RANK))
		return serve_busy(j, q, key, b);
	size_t n = serve_answer(j, q, data, key, window, size, b);
	atomic_store(serve_word(&j->server), 0);
	return n;
}

#endif
