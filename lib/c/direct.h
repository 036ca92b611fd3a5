/* direct.h: this rank's requests about windows of a rank of another node, sent by datagrams to that
 * rank or its node kernel, in C (kernel/abi/onesided, Requester). Answers may be a stranger's or
 * late: each number of theirs is checked. Times are in nanoseconds. */
#ifndef MARGAY_DIRECT_H
#define MARGAY_DIRECT_H

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "onesided.h"
#include "trip.h"
#include "wire.h"

/* direct_slot is a request that was not answered, or one behind such a request. */
struct direct_slot {
	uint16_t size; /* of its datagram */
	uint8_t kind;
	uint16_t length; /* of the answer's data */
	int answered, resent;
	int64_t at; /* when it was sent */
};

struct direct {
	struct sockaddr_in address; /* of the node kernel; port 0: there is no such way */
	uint32_t source, target;
	uint64_t key; /* in requests */
	size_t piece; /* bytes of data in a datagram */
	char *buffer; /* datagrams of ONESIDED_MOST bytes, by number */
	void *flights; /* what window.c knows of the requests */
	struct direct_slot slots[ONESIDED_OUTSTANDING];

	uint64_t first; /* number of the first request that is not answered */
	uint64_t next;  /* number of the next request */
	uint64_t sent;  /* the requests before were sent */
	uint64_t reach; /* the requests before were sent at least once */
	int gets;       /* that are not answered */
	unsigned window;
	int timeouts;  /* since the last progress */
	uint64_t back; /* first when requests were sent again because of a gap */
	int64_t deadline;
	struct trip trip;
	int kernel;    /* requests go to the node kernel */
	int copied;    /* direct_emit has described a copy for the rank */
	int64_t asked; /* when the rank got the last copy */
	int64_t again; /* then it gets the next one */
	int64_t pause; /* the last one until then; 0: the rank answers */
};

/* direct_takes is called for each request that an answer answers, with its number. */
typedef void (*direct_takes)(struct direct *d, uint64_t number, int status, const char *data);

static inline void direct_open(struct direct *d, size_t largest)
{
	size_t most = largest < ONESIDED_MOST ? largest : ONESIDED_MOST;
	d->piece = (most - sizeof(struct onesided_answer)) & ~(size_t)7;
	d->first = d->next = d->sent = d->reach = 1;
	d->window = ONESIDED_OUTSTANDING;
	d->pause = ONESIDED_LEAST_PAUSE;
}

static inline int direct_idle(const struct direct *d) { return d->first == d->next; }

static inline int direct_atomic(int kind) { return kind == WIRE_REMOTE_ADD || kind == WIRE_REMOTE_SWAP; }

/* direct_room reports whether there is room for a request of a kind: there is none for one that may
 * change memory while a get is not answered. */
static inline int direct_room(const struct direct *d, int kind)
{
	return d->next - d->first < ONESIDED_OUTSTANDING && (kind == WIRE_REMOTE_GET || d->gets == 0);
}

/* direct_add adds a request, and returns its number; 0: there is no memory. There must be room for
 * the request. */
static inline uint64_t direct_add(struct direct *d, int kind, int window, uint64_t offset, const void *data, size_t length)
{
	struct direct_slot *s = &d->slots[d->next % ONESIDED_OUTSTANDING];
	struct onesided_request q = {.magic = ONESIDED_MAGIC, .version = ONESIDED_VERSION, .kind = kind, .source = d->source, .target = d->target,
				     .window = window, .length = length, .key = d->key, .number = d->next, .offset = offset};
	size_t more = kind == WIRE_REMOTE_GET ? 0 : length;
	if (!d->buffer && !(d->buffer = malloc((size_t)ONESIDED_OUTSTANDING * ONESIDED_MOST)))
		return 0;
	char *b = d->buffer + d->next % ONESIDED_OUTSTANDING * ONESIDED_MOST;
	memcpy(b, &q, sizeof q);
	if (more)
		memcpy(b + sizeof q, data, more);
	*s = (struct direct_slot){.size = sizeof q + more, .kind = kind,
				  .length = kind == WIRE_REMOTE_GET ? length : direct_atomic(kind) ? sizeof(uint64_t) : 0};
	d->gets += kind == WIRE_REMOTE_GET;
	return d->next++;
}

/* direct_timeout is the retransmission time-out. */
static inline int64_t direct_timeout(const struct direct *d)
{
	struct trip_bounds bounds = {ONESIDED_FIRST_TIMEOUT, ONESIDED_LEAST_TIMEOUT, ONESIDED_MOST_TIMEOUT, 0};
	return d->kernel ? trip_timeout(&d->trip, bounds, d->timeouts) : ONESIDED_PATIENCE;
}

/* direct_repeat sends all that is not answered again. */
static inline void direct_repeat(struct direct *d, int64_t now)
{
	d->sent = d->first;
	d->deadline = now + direct_timeout(d);
}

/* direct_look decides which server to ask, and handles a time-out. */
static inline void direct_look(struct direct *d, int64_t now)
{
	if (d->first == d->sent) {
		d->kernel = d->pause > 0;
	} else if (!d->deadline || now < d->deadline) {
		return;
	} else if (d->kernel) {
		d->timeouts++;
		d->window = d->window > 1 ? d->window / 2 : 1;
		direct_repeat(d, now);
	} else { /* the rank computes, or this one did */
		d->kernel = 1;
		d->pause = ONESIDED_LEAST_PAUSE;
		d->again = now + d->pause;
		direct_repeat(d, now);
	}
}

/* direct_copy describes a copy of the first request for the rank. It is one datagram: what a rank
 * that computes gets is in the way of messages. */
static inline int direct_copy(struct direct *d, struct iovec *train, int64_t now)
{
	d->asked = now;
	d->pause = 2 * d->pause < ONESIDED_MOST_PAUSE ? 2 * d->pause : ONESIDED_MOST_PAUSE;
	d->again = now + d->pause;
	if (d->reach == d->first)
		d->reach++;
	train[0] = (struct iovec){d->buffer + d->first % ONESIDED_OUTSTANDING * ONESIDED_MOST, d->slots[d->first % ONESIDED_OUTSTANDING].size};
	return 1;
}

/* direct_to_kernel reports whether the datagrams that direct_emit has described go to the node
 * kernel, and not to the rank. */
static inline int direct_to_kernel(const struct direct *d) { return d->kernel && !d->copied; }

/* direct_due returns when direct_emit must be called if nothing arrives before; 0: never. */
static inline int64_t direct_due(const struct direct *d) { return d->deadline; }

/* direct_emit describes the datagrams that are due, at most ONESIDED_OUTSTANDING of one length, but
 * the last may be shorter, and returns their number. */
static inline int direct_emit(struct direct *d, struct iovec *train, int64_t now)
{
	int n = 0;
	size_t all = 0;
	direct_look(d, now);
	d->copied = d->kernel && d->pause && !direct_idle(d) && now >= d->again;
	if (d->copied)
		return direct_copy(d, train, now);
	for (; d->sent < d->next && d->sent - d->first < d->window; d->sent++) {
		struct direct_slot *s = &d->slots[d->sent % ONESIDED_OUTSTANDING];
		if (s->answered)
			continue;
		if (n > 0 && (s->size > train[0].iov_len || train[n - 1].iov_len < train[0].iov_len || all + s->size > ONESIDED_MOST_TRAIN))
			break;
		s->at = now;
		s->resent = d->sent < d->reach;
		train[n++] = (struct iovec){d->buffer + d->sent % ONESIDED_OUTSTANDING * ONESIDED_MOST, s->size};
		all += s->size;
	}
	if (d->reach < d->sent)
		d->reach = d->sent;
	if (n && !d->deadline)
		d->deadline = now + direct_timeout(d);
	return n;
}

/* direct_finish notes that a request is answered. */
static inline void direct_finish(struct direct *d, struct direct_slot *s, int64_t now)
{
	s->answered = 1;
	d->gets -= s->kind == WIRE_REMOTE_GET;
	if (d->window < ONESIDED_OUTSTANDING)
		d->window++;
	if (!s->resent)
		trip_sample(&d->trip, now - s->at);
}

/* direct_parse reads an answer, which may be anything, and reports whether it is one. */
static inline int direct_parse(struct onesided_answer *a, const char *b, size_t n)
{
	if (n < sizeof *a || n > ONESIDED_MOST)
		return 0;
	memcpy(a, b, sizeof *a);
	return a->magic == ONESIDED_MAGIC && a->version == ONESIDED_VERSION && a->kind == WIRE_REMOTE_REPLY && !(a->flags & ~ONESIDED_GAP) &&
	       a->zero == 0 && a->length == n - sizeof *a;
}

/* direct_arrive takes an answer of the rank or of its node kernel with its data, which may be late
 * or nonsense. */
static inline void direct_arrive(struct direct *d, const struct onesided_answer *a, const char *data, int by_rank, int64_t now,
				 direct_takes takes)
{
	uint64_t before = d->first;
	if (a->done >= d->reach)
		return; /* it answers what was not asked */
	if (by_rank && now - d->asked < ONESIDED_PATIENCE)
		d->pause = 0;
	for (uint64_t n = d->first; n <= a->done; n++) {
		struct direct_slot *s = &d->slots[n % ONESIDED_OUTSTANDING];
		uint64_t bit = (uint64_t)1 << n % 64;
		int status = a->no_window & bit ? WIRE_REMOTE_NO_WINDOW : a->outside & bit ? WIRE_REMOTE_OUTSIDE : WIRE_REMOTE_OK;
		if (s->answered || (status == WIRE_REMOTE_OK && s->kind != WIRE_REMOTE_PUT))
			continue;
		direct_finish(d, s, now);
		takes(d, n, status, NULL);
	}
	if (a->number >= d->first && a->number <= a->done) {
		struct direct_slot *s = &d->slots[a->number % ONESIDED_OUTSTANDING];
		if (!s->answered && s->kind != WIRE_REMOTE_PUT && a->length == s->length) {
			direct_finish(d, s, now);
			takes(d, a->number, WIRE_REMOTE_OK, data);
		}
	}
	while (d->first < d->next && d->slots[d->first % ONESIDED_OUTSTANDING].answered)
		d->first++;
	if (d->sent < d->first)
		d->sent = d->first;
	if (d->first != before) {
		d->timeouts = 0;
		d->deadline = d->first < d->sent ? now + direct_timeout(d) : 0;
	} else if (a->flags & ONESIDED_GAP && a->done + 1 == d->first && d->back != d->first) {
		d->back = d->sent = d->first;
	}
}

#endif
