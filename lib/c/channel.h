/* channel.h: one end of a channel between two ranks of a node, in C (kernel/abi/wire,
 * "Channels"). The rank at the other end may write anything at any time: each number of its is
 * read once and checked. */
#ifndef MARGAY_CHANNEL_H
#define MARGAY_CHANNEL_H

#include <stdatomic.h>
#include <string.h>

#include "margay.h"
#include "wire.h"

struct channel {
	char *memory;
	int rank, local;   /* of the other end */
	size_t limit;      /* bytes of the longest payload of a producer's record */
	uint64_t position; /* this side's own */
	/* Of a producer. */
	uint64_t room;   /* the position up to which there was room when the consumer's was last read */
	uint64_t count;  /* messages */
	uint64_t kernel; /* position of the send ring behind the last message to that rank */
	int through;     /* that message may not be settled */
	int hasty;       /* messages that do not wait for that */
	/* Of a consumer. */
	uint64_t returned; /* position that the producer knows */
};

static inline _Atomic uint32_t *channel_word(const struct channel *c, size_t offset) { return (_Atomic uint32_t *)(c->memory + offset); }

static inline _Atomic uint64_t *channel_word64(const struct channel *c, size_t offset)
{
	return (_Atomic uint64_t *)(c->memory + offset);
}

/* channel_head is the head of the record at a position. */
static inline _Atomic uint64_t *channel_head(const struct channel *c, uint64_t position)
{
	return channel_word64(c, WIRE_CHANNEL_DATA + (position & (WIRE_CHANNEL_RING - 1)));
}

static inline size_t channel_length(size_t payload) { return (WIRE_CHANNEL_HEADER + payload + 7) & ~(size_t)7; }

static inline uint64_t channel_new_head(uint32_t kind, uint32_t handler, uint32_t size)
{
	return (uint64_t)handler << 48 | (uint64_t)kind << 32 | size;
}

/* channel_later reports whether a message is a piece of a long one, and not its first. */
static inline int channel_later(int handler, uint64_t arg0) { return handler == WIRE_HANDLER_PIECE && arg0 >> 32; }

/* channel_mark packs this side's position, never to 0. */
static inline uint32_t channel_mark(const struct channel *c) { return (c->position / 8 & WIRE_MARK_MASK) | WIRE_MARK_VALID; }

/* channel_look reads the consumer's position and reports whether there is room up to a position.
 * It returns -1 if the consumer has written nonsense. */
static inline int channel_look(struct channel *c, uint64_t end)
{
	uint64_t taken = atomic_load_explicit(channel_word64(c, WIRE_CHANNEL_TAKEN), memory_order_acquire);
	if (taken > c->position || c->position - taken > WIRE_CHANNEL_RING)
		return -1;
	c->room = taken + WIRE_CHANNEL_RING;
	return end <= c->room;
}

/* channel_put writes a message and reports whether there was room, or returns -1 as channel_look
 * does. */
static inline int channel_put(struct channel *c, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	size_t at = c->position & (WIRE_CHANNEL_RING - 1), need = channel_length(length), pad = 0;
	if (at + need > WIRE_CHANNEL_RING)
		pad = WIRE_CHANNEL_RING - at;
	uint64_t start = c->position + pad, end = start + need;
	if (end + 8 > c->room) {
		int room = channel_look(c, end + 8);
		if (room <= 0)
			return room;
	}
	char *record = (char *)channel_head(c, start);
	uint64_t args[2] = {arg0, arg1};
	memcpy(record + 8, args, sizeof args);
	if (length)
		memcpy(record + WIRE_CHANNEL_HEADER, payload, length);
	atomic_store_explicit(channel_head(c, end), 0, memory_order_relaxed);
	uint64_t head = channel_new_head(WIRE_MESSAGE, handler, length);
	if (pad) {
		atomic_store_explicit(channel_head(c, start), head, memory_order_relaxed);
		head = channel_new_head(WIRE_PAD, 0, 0);
		start = c->position;
	}
	if (!channel_later(handler, arg0))
		atomic_store_explicit(channel_word64(c, WIRE_CHANNEL_COUNT), ++c->count, memory_order_relaxed);
	c->position = end;
	atomic_store(channel_head(c, start), head); /* before the caller reads whether the consumer sleeps */
	atomic_store_explicit(channel_word64(c, WIRE_CHANNEL_POSITION), end, memory_order_release);
	return 1;
}

/* channel_wait announces that this side waits for room for a message, and reports whether there
 * is room. */
static inline int channel_wait(struct channel *c, size_t length)
{
	_Atomic uint32_t *blocked = channel_word(c, WIRE_CHANNEL_BLOCKED);
	if (!atomic_load(blocked)) /* or the consumer has not looked since, and will */
		atomic_store(blocked, 1);
	if (channel_look(c, c->position + 2 * channel_length(length) + 8) == 0) /* with the largest pad that may come before it */
		return 0;
	atomic_store(blocked, 0);
	return 1;
}

static inline int channel_ready(const struct channel *c)
{
	return atomic_load(channel_head(c, c->position)) != 0; /* in order with the words of boards and rings */
}

/* channel_before reports whether messages that the producer had written at a mark are not
 * handled. */
static inline int channel_before(const struct channel *c, uint32_t after)
{
	uint32_t ahead = (after - channel_mark(c)) & WIRE_MARK_MASK;
	return ahead != 0 && ahead <= WIRE_CHANNEL_RING / 8;
}

/* channel_next reports whether there is a message, or returns -1 if the producer has written
 * nonsense. The payload stays in the channel until channel_done. */
static inline int channel_next(struct channel *c, struct margay_am *message)
{
	size_t at = c->position & (WIRE_CHANNEL_RING - 1);
	uint64_t head = atomic_load_explicit(channel_head(c, at), memory_order_acquire);
	if ((uint16_t)(head >> 32) == WIRE_PAD && at != 0) {
		c->position += WIRE_CHANNEL_RING - at;
		at = 0;
		head = atomic_load_explicit(channel_head(c, at), memory_order_acquire);
	}
	if (head == 0)
		return 0;
	uint32_t size = (uint32_t)head;
	if ((uint16_t)(head >> 32) != WIRE_MESSAGE || size > WIRE_CHANNEL_PAYLOAD || at + channel_length(size) > WIRE_CHANNEL_RING)
		return -1;
	const char *record = (const char *)channel_head(c, at);
	message->source = c->rank;
	message->handler = head >> 48;
	memcpy(message->args, record + 8, sizeof message->args);
	message->payload = record + WIRE_CHANNEL_HEADER;
	message->length = size;
	return 1;
}

/* channel_done gives back the room of a message of that length, each quarter of the ring, so
 * that the line moves rarely. It reports whether it has, and sets *wake if the producer waits
 * for room. */
static inline int channel_done(struct channel *c, size_t length, int *wake)
{
	_Atomic uint32_t *blocked = channel_word(c, WIRE_CHANNEL_BLOCKED);
	c->position += channel_length(length);
	if (c->position - c->returned < WIRE_CHANNEL_RING / 4) /* the producer has three quarters */
		return 0;
	c->returned = c->position;
	atomic_store(channel_word64(c, WIRE_CHANNEL_TAKEN), c->position);
	*wake = atomic_load(blocked) && atomic_exchange(blocked, 0);
	return 1;
}

#endif
