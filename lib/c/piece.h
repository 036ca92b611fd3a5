/* piece.h: messages of more than MARGAY_MAX_PAYLOAD bytes, which travel in pieces, in C
 * (kernel/abi/wire, Piece, Long and Assembler). Pieces that come may be anything: each number in
 * them is checked. */
#ifndef MARGAY_PIECE_H
#define MARGAY_PIECE_H

#include <stdlib.h>
#include <string.h>

#include "margay.h"
#include "wire.h"

/* A long message that is being sent. */
struct long_message {
	int rank, handler;
	uint16_t number; /* of the long messages of this rank, wrapping */
	uint64_t args[2];
	const char *payload;
	size_t length;
	size_t sent;
	int passes; /* a piece has passed a node kernel, which may have decided about the message */
};

/* A piece of one, as it is sent. */
struct piece {
	uint64_t args[2];
	const void *payload;
	size_t length; /* of that */
	size_t data;   /* bytes of the message */
};

/* piece_next returns the next piece, with a payload of at most limit bytes. A first piece is built
 * in first, of that size. */
static inline struct piece piece_next(const struct long_message *m, size_t limit, char *first)
{
	struct piece p = {.args = {m->length | (uint64_t)m->sent << 32, (uint32_t)m->rank | (uint64_t)m->handler << 32 | (uint64_t)m->number << 48}};
	size_t before = m->sent ? 0 : WIRE_PIECE_ARGS, rest = m->length - m->sent;
	p.data = limit - before < rest ? limit - before : rest;
	p.length = before + p.data;
	p.payload = m->payload + m->sent;
	if (before) {
		memcpy(first, m->args, before);
		memcpy(first + before, m->payload, p.data);
		p.payload = first;
	}
	return p;
}

/* A message that has come in part, or a buffer for one. */
struct assembly {
	struct assembly *next;
	int source;
	uint32_t target; /* the rank that the source has sent it to */
	int handler;
	uint16_t number;
	uint64_t args[2];
	size_t length, arrived;
	size_t size; /* of the buffer */
	char buffer[];
};

#define PIECE_IDLE 8 /* buffers that are kept for later messages */

/* Results of taking a piece. */
enum piece_result { PIECE_NONSENSE, PIECE_NO_MEMORY, PIECE_TAKEN, PIECE_WHOLE };

struct assembler {
	struct assembly *unfinished; /* at most one for each source and target */
	struct assembly *idle;
	int idle_count;
};

/* assembler_release keeps the buffer of a message that is not in a list for another one. */
static inline void assembler_release(struct assembler *a, struct assembly *m)
{
	m->next = a->idle;
	a->idle = m;
	if (++a->idle_count <= PIECE_IDLE)
		return;
	struct assembly **last = &a->idle; /* the oldest, which may be too small */
	while ((*last)->next)
		last = &(*last)->next;
	free(*last);
	*last = NULL;
	a->idle_count--;
}

/* assembler_buffer returns a buffer for a message of a length, NULL if there is no memory. */
static inline struct assembly *assembler_buffer(struct assembler *a, size_t length)
{
	for (struct assembly **at = &a->idle; *at; at = &(*at)->next) {
		struct assembly *m = *at;
		if (m->size < length)
			continue;
		*at = m->next;
		a->idle_count--;
		return m;
	}
	struct assembly *m = malloc(sizeof *m + length);
	if (m)
		m->size = length;
	return m;
}

/* assembler_arrive takes a piece in a job of size ranks. If it completes a message, it stores that
 * message, whose payload is valid until the next call, in *whole. It ignores pieces of a message
 * that did not begin: an extension may have stopped the first one on the interface, before the
 * others took another way. The sender may have written anything. */
static inline enum piece_result assembler_arrive(struct assembler *a, const struct margay_am *piece, uint32_t size, struct margay_am *whole)
{
	const char *data = piece->payload;
	size_t total = (uint32_t)piece->args[0], offset = piece->args[0] >> 32, n = piece->length;
	uint32_t target = (uint32_t)piece->args[1], handler = (uint16_t)(piece->args[1] >> 32);
	uint16_t number = (uint16_t)(piece->args[1] >> 48);
	struct assembly **at = &a->unfinished, *m;
	if (offset == 0) {
		data += WIRE_PIECE_ARGS;
		n = n > WIRE_PIECE_ARGS ? n - WIRE_PIECE_ARGS : 0;
	}
	if (target >= size || handler >= MARGAY_MAX_HANDLERS || total <= MARGAY_MAX_PAYLOAD || total > MARGAY_MAX_MESSAGE ||
	    n == 0 || offset + n > total)
		return PIECE_NONSENSE;
	while ((m = *at) && (m->source != piece->source || m->target != target))
		at = &m->next;
	if (offset == 0) {
		if (m) { /* its source has given it up */
			*at = m->next;
			assembler_release(a, m);
		}
		if (!(m = assembler_buffer(a, total)))
			return PIECE_NO_MEMORY;
		m->source = piece->source;
		m->target = target;
		m->handler = handler;
		m->number = number;
		m->length = total;
		m->arrived = 0;
		memcpy(m->args, piece->payload, sizeof m->args);
		m->next = a->unfinished;
		a->unfinished = m;
		at = &a->unfinished;
	} else if (!m || m->number != number) {
		return PIECE_TAKEN;
	} else if (m->arrived != offset || m->length != total || (uint32_t)m->handler != handler) {
		return PIECE_NONSENSE;
	}
	memcpy(m->buffer + offset, data, n);
	m->arrived += n;
	if (m->arrived < total)
		return PIECE_TAKEN;
	*at = m->next;
	assembler_release(a, m);
	*whole = (struct margay_am){.source = piece->source, .node = piece->node, .handler = handler, .args = {m->args[0], m->args[1]},
				    .payload = m->buffer, .length = total};
	return PIECE_WHOLE;
}

#endif
