/* memory.h: memory in a few parts, of this process or of another one. */
#ifndef MARGAY_OFI_MEMORY_H
#define MARGAY_OFI_MEMORY_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

#define MEMORY_PARTS 4

struct memory {
	struct iovec parts[MEMORY_PARTS];
	size_t count, length;
};

/* A place is memory of another process of this node, which may be read in one copy, without its
 * help. The proof says which process, and that this still offers the place; the state machines pass
 * it on and do not look at it. */
#define PLACE_PROOF 3 /* words */
#define PLACE_MOST (PLACE_PROOF + 2 * MEMORY_PARTS)

struct place {
	uint64_t proof[PLACE_PROOF];
	struct memory memory;
};

/* memory_set sets a memory to parts that are not empty, and reports whether they are not too many,
 * and not more bytes than a size_t counts. */
static inline int memory_set(struct memory *m, const struct iovec *parts, size_t count)
{
	m->count = m->length = 0;
	if (count > MEMORY_PARTS)
		return 0;
	for (size_t i = 0; i < count; i++) {
		if (parts[i].iov_len == 0)
			continue;
		if (__builtin_add_overflow(m->length, parts[i].iov_len, &m->length))
			return 0;
		m->parts[m->count++] = parts[i];
	}
	return 1;
}

/* memory_range sets a memory to length bytes of another one from an offset on, and reports whether
 * they are in it. */
static inline int memory_range(struct memory *to, const struct memory *m, uint64_t offset, uint64_t length)
{
	to->count = to->length = 0;
	if (offset > m->length || length > m->length - offset)
		return 0;
	for (size_t i = 0; i < m->count && to->length < length; i++) {
		size_t size = m->parts[i].iov_len, left = length - to->length;
		if (offset >= size) {
			offset -= size;
			continue;
		}
		size_t n = size - offset < left ? size - offset : left;
		to->parts[to->count++] = (struct iovec){(char *)m->parts[i].iov_base + offset, n};
		to->length += n;
		offset = 0;
	}
	return 1;
}

/* memory_move copies length bytes between a buffer and a memory, from an offset on. */
static inline void memory_move(const struct memory *m, uint64_t offset, char *buffer, size_t length, int in)
{
	struct memory range;
	memory_range(&range, m, offset, length);
	for (size_t i = 0; i < range.count; i++) {
		const struct iovec *part = &range.parts[i];
		memcpy(in ? part->iov_base : buffer, in ? buffer : part->iov_base, part->iov_len);
		buffer += part->iov_len;
	}
}

static inline void memory_scatter(const struct memory *m, uint64_t offset, const char *from, size_t length)
{
	memory_move(m, offset, (char *)from, length, 1);
}

static inline void memory_gather(const struct memory *m, uint64_t offset, char *to, size_t length) { memory_move(m, offset, to, length, 0); }

/* memory_piece returns length bytes from an offset on: where they are if they are in one part,
 * otherwise in a buffer to which they are copied. */
static inline const void *memory_piece(const struct memory *m, uint64_t offset, char *buffer, size_t length)
{
	if (m->count == 1)
		return (const char *)m->parts[0].iov_base + offset;
	memory_gather(m, offset, buffer, length);
	return buffer;
}

/* place_write writes a place as words and returns their number. */
static inline size_t place_write(uint64_t words[PLACE_MOST], const struct place *p)
{
	size_t n = PLACE_PROOF;
	memcpy(words, p->proof, sizeof p->proof);
	for (size_t i = 0; i < p->memory.count; i++) {
		words[n++] = (uintptr_t)p->memory.parts[i].iov_base;
		words[n++] = p->memory.parts[i].iov_len;
	}
	return n;
}

/* place_read reads a place from bytes, which may be anything, and reports whether they are one of
 * length bytes. */
static inline int place_read(struct place *p, const char *bytes, size_t size, uint64_t length)
{
	uint64_t words[PLACE_MOST];
	struct iovec parts[MEMORY_PARTS];
	size_t n = size / sizeof words[0];
	if (size % sizeof words[0] || n <= PLACE_PROOF || n > PLACE_MOST || (n - PLACE_PROOF) % 2)
		return 0;
	memcpy(words, bytes, size);
	memcpy(p->proof, words, sizeof p->proof);
	for (size_t i = 0; i < (n - PLACE_PROOF) / 2; i++)
		parts[i] = (struct iovec){(void *)(uintptr_t)words[PLACE_PROOF + 2 * i], words[PLACE_PROOF + 2 * i + 1]};
	return memory_set(&p->memory, parts, (n - PLACE_PROOF) / 2) && p->memory.length == length;
}

#endif
