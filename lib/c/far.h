/* far.h: one end of a pair of mirrored channels with a rank of another node, in C
 * (kernel/abi/mirror, End). The rank at the other end may send anything at any time: each number
 * of its is checked. Times are in nanoseconds. */
#ifndef MARGAY_FAR_H
#define MARGAY_FAR_H

#include <netinet/in.h>
#include <sys/uio.h>

#include "channel.h"
#include "direct.h"
#include "mirror.h"
#include "trip.h"

/* flight is a datagram with data that is on its way. */
struct flight {
	uint64_t end; /* position behind its data */
	int64_t at;
	int resent; /* some of it was sent before */
};

struct far {
	struct sockaddr_in address; /* of the other end */
	uint32_t number;            /* of the other end, in datagrams to it */
	uint64_t key;               /* the same */
	uint64_t own_key;           /* of this end */
	size_t most;                /* bytes of data in a datagram */
	struct channel out, in;
	struct direct direct;       /* to the windows of the rank at the other end */
	struct onesided_journal *journal; /* of the other rank's requests about windows of this one */
	uint64_t spoken; /* position of out behind the last message but notes of barriers */

	/* Of the ring to the other end. */
	uint64_t sent;  /* the data before are on their way, or acknowledged */
	uint64_t reach; /* the data before were sent at least once */
	uint64_t acked;
	struct flight flights[MIRROR_MOST_WINDOW]; /* a ring */
	unsigned first, flying, window;
	int timeouts;     /* since a round trip was measured last (RFC 6298, 3 and 5) */
	int equal;        /* acknowledgements since that have brought nothing */
	int64_t deadline; /* of the next time-out; 0: there is none */
	int ask;
	struct trip trip;

	/* Of the ring from the other end. */
	uint64_t arrived;
	uint64_t told;  /* position of the consumer that the other end knows */
	int owed;       /* datagrams with data that were not acknowledged */
	int64_t ack_at; /* the acknowledgement must be sent then */
	int hurry;      /* or at once */
	int rides;      /* the last ones have travelled with data */
};

static inline uint64_t far_load(const struct channel *c, size_t offset)
{
	return atomic_load_explicit(channel_word64(c, offset), memory_order_relaxed);
}

static inline void far_store(const struct channel *c, size_t offset, uint64_t v)
{
	atomic_store_explicit(channel_word64(c, offset), v, memory_order_release);
}

static inline int far_blocked(const struct far *f)
{
	return atomic_load_explicit(channel_word(&f->out, WIRE_CHANNEL_BLOCKED), memory_order_relaxed) != 0;
}

static inline int far_credit_due(const struct far *f) { return far_load(&f->in, WIRE_CHANNEL_TAKEN) - f->told >= WIRE_CHANNEL_RING / 4; }

/* far_quiet reports whether all that was written has arrived at the other end. */
static inline int far_quiet(const struct far *f) { return f->out.position == f->acked; }

/* far_busy reports whether far_emit may return something, now or when time has passed. */
static inline int far_busy(const struct far *f)
{
	return f->hurry || f->owed > 0 || !far_quiet(f) || far_credit_due(f) || far_blocked(f);
}

/* far_late reports whether an acknowledgement should have left. */
static inline int far_late(const struct far *f, int64_t now) { return f->owed > 0 && now >= f->ack_at; }

/* far_timeout is the retransmission time-out. */
static inline int64_t far_timeout(const struct far *f)
{
	struct trip_bounds bounds = {MIRROR_FIRST_TIMEOUT, MIRROR_LEAST_TIMEOUT, MIRROR_MOST_TIMEOUT, MIRROR_ACK_DELAY};
	return trip_timeout(&f->trip, bounds, f->timeouts);
}

/* far_back sends again from the acknowledged position. */
static inline void far_back(struct far *f)
{
	f->sent = f->acked;
	f->flying = 0;
	f->window = f->window > 1 ? f->window / 2 : 1;
}

/* far_rest makes an acknowledgement that waits due before the rank sleeps, unless the last ones
 * have travelled with data. */
static inline void far_rest(struct far *f) { f->hurry |= f->owed > 0 && !f->rides; }

/* far_look handles a time-out. */
static inline void far_look(struct far *f, int64_t now)
{
	if (far_quiet(f) && !far_blocked(f)) {
		f->deadline = 0;
	} else if (!f->deadline) {
		f->deadline = now + far_timeout(f);
	} else if (now >= f->deadline) {
		f->timeouts++;
		if (f->acked < f->sent)
			far_back(f);
		else
			f->ask = 1;
		f->deadline = now + far_timeout(f);
	}
}

/* far_due returns when far_emit must be called if nothing arrives and nothing is written before; 0:
 * never. far_emit must have returned 0. */
static inline int64_t far_due(const struct far *f)
{
	return f->owed > 0 && (!f->deadline || f->ack_at < f->deadline) ? f->ack_at : f->deadline;
}

/* far_cut returns how many bytes of at most n go into a datagram, from a place in the ring: whole
 * records. */
static inline size_t far_cut(const struct far *f, size_t at, size_t n)
{
	size_t whole = 0;
	if (n > WIRE_CHANNEL_RING - at)
		n = WIRE_CHANNEL_RING - at;
	if (n <= f->most)
		return n;
	for (;;) {
		uint64_t head = atomic_load_explicit(channel_head(&f->out, at + whole), memory_order_relaxed);
		size_t length = (uint16_t)(head >> 32) == WIRE_PAD ? WIRE_CHANNEL_RING - at - whole : channel_length((uint32_t)head);
		if (whole + length > f->most)
			return whole;
		whole += length;
	}
}

/* far_gathers reports whether new data may wait for more of them, which the program probably writes
 * next: the other rank has enough to do. The caller then calls far_emit when the program polls or
 * waits. */
static inline int far_gathers(const struct far *f)
{
	return f->out.position - f->sent < MIRROR_GATHER &&
	       (f->flying >= MIRROR_FEW || f->out.position - far_load(&f->out, WIRE_CHANNEL_TAKEN) >= WIRE_CHANNEL_RING / 2);
}

/* far_emit writes the header of the next datagram that is due, says where its data are in the ring,
 * and returns 1; 0 if there is none. */
static inline int far_emit(struct far *f, struct mirror_header *h, struct iovec *data, int64_t now)
{
	size_t n = 0, at;
	far_look(f, now);
	at = f->sent & (WIRE_CHANNEL_RING - 1);
	if (f->sent < f->out.position && f->flying < f->window)
		n = far_cut(f, at, f->out.position - f->sent);
	else if (!f->ask && !f->hurry && !far_credit_due(f) && !far_late(f, now))
		return 0;
	f->rides = (n || f->rides) && now < f->ack_at;
	f->told = far_load(&f->in, WIRE_CHANNEL_TAKEN);
	far_store(&f->in, WIRE_CHANNEL_ACKNOWLEDGED, f->arrived);
	*h = (struct mirror_header){.magic = MIRROR_MAGIC, .version = MIRROR_VERSION, .flags = f->ask ? MIRROR_ASK : 0, .number = f->number,
				    .key = f->key, .offset = f->sent, .arrived = f->arrived, .taken = f->told};
	*data = (struct iovec){f->out.memory + WIRE_CHANNEL_DATA + at, n};
	f->owed = f->hurry = f->ask = 0;
	if (n) {
		struct flight *flight = &f->flights[(f->first + f->flying++) % MIRROR_MOST_WINDOW];
		*flight = (struct flight){.end = f->sent + n, .at = now, .resent = f->sent < f->reach};
		f->sent += n;
		if (f->reach < f->sent)
			f->reach = f->sent;
	}
	return 1;
}

/* far_progress notes that the other end has the bytes before a position. */
static inline void far_progress(struct far *f, uint64_t arrived, int64_t now)
{
	uint64_t begin = f->acked; /* of the first flight */

	while (f->flying > 0 && f->flights[f->first].end <= arrived) {
		if (!f->flights[f->first].resent) {
			trip_sample(&f->trip, now - f->flights[f->first].at);
			f->timeouts = 0;
		}
		begin = f->flights[f->first].end;
		f->first = (f->first + 1) % MIRROR_MOST_WINDOW;
		f->flying--;
		if (f->window < MIRROR_MOST_WINDOW)
			f->window++;
	}
	f->acked = arrived;
	if (f->sent < arrived)
		f->sent = arrived;
	if (f->reach < arrived)
		f->reach = arrived;
	if (f->flying > 0 && arrived > begin) /* it was cut on its way */
		far_back(f);
	far_store(&f->out, WIRE_CHANNEL_ACKED, arrived);
	f->equal = 0;
	f->deadline = f->acked < f->sent ? now + far_timeout(f) : 0;
}

/* far_acknowledge takes what a datagram says about the ring to the other end. */
static inline void far_acknowledge(struct far *f, const struct mirror_header *h, int data, int64_t now)
{
	if (h->arrived < f->acked || h->arrived > f->out.position || h->arrived % 8)
		return; /* late, or nonsense; the node kernel may have sent more than this end */
	if (h->arrived > f->acked)
		far_progress(f, h->arrived, now);
	else if (!data && f->acked < f->sent && ++f->equal == MIRROR_EQUAL_ACKS)
		far_back(f);
	if (h->taken <= f->acked && h->taken > far_load(&f->out, WIRE_CHANNEL_TAKEN)) {
		far_store(&f->out, WIRE_CHANNEL_TAKEN, h->taken);
		atomic_store_explicit(channel_word(&f->out, WIRE_CHANNEL_BLOCKED), 0, memory_order_relaxed);
	}
}

/* far_take takes n bytes of data. */
static inline void far_take(struct far *f, uint64_t offset, const char *data, size_t n, int64_t now)
{
	if (f->owed++ == 0)
		f->ack_at = now + MIRROR_ACK_DELAY;
	if (offset % 8 || offset > f->arrived || f->arrived - offset >= n) {
		f->hurry = 1; /* behind a gap, or a duplicate */
		return;
	}
	data += f->arrived - offset;
	n -= f->arrived - offset;
	uint64_t end = f->arrived + n;
	size_t at = f->arrived & (WIRE_CHANNEL_RING - 1);
	if (end + 8 > far_load(&f->in, WIRE_CHANNEL_TAKEN) + WIRE_CHANNEL_RING || at + n > WIRE_CHANNEL_RING)
		return; /* the other end breaks the rules */
	atomic_store_explicit(channel_head(&f->in, end), 0, memory_order_relaxed);
	memcpy(f->in.memory + WIRE_CHANNEL_DATA + at, data, n);
	f->arrived = end;
	far_store(&f->in, WIRE_CHANNEL_ARRIVED, end);
	if (f->owed >= MIRROR_ACK_EACH)
		f->hurry = 1;
}

/* far_parse reads the header of a datagram, which may be anything, and reports whether it is
 * one. */
static inline int far_parse(struct mirror_header *h, const char *b, size_t n)
{
	if (n < sizeof *h || n % 8)
		return 0;
	memcpy(h, b, sizeof *h);
	return h->magic == MIRROR_MAGIC && h->version == MIRROR_VERSION && !(h->flags & ~MIRROR_ASK);
}

/* far_arrive takes a datagram of the other end: its header, and n bytes of data. */
static inline void far_arrive(struct far *f, const struct mirror_header *h, const char *data, size_t n, int64_t now)
{
	far_acknowledge(f, h, n > 0, now);
	if (h->flags & MIRROR_ASK)
		f->hurry = 1;
	if (n)
		far_take(f, h->offset, data, n, now);
}

#endif
