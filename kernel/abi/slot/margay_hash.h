/* A hash table for extensions: open addressing over an array, in plain C, identical on every
 * engine.
 *
 * Keys are byte strings of 1 to HASH_KEY bytes, padded with zeroes to a multiple of 8. A slot holds
 * a key and one 64-bit value. A slot whose length is 0 is free; used slots are never freed. Before
 * this header is included, HASH_KEY is defined as a multiple of 8.
 *
 *	#define HASH_KEY 64
 *	#include "margay_hash.h"
 *	HASH_TABLE(table, 1024);
 *	const volatile __u32 capacity = 1024;
 *	...
 *	struct hash_slot *s = hash_find(&table, capacity, key, length);
 *	if (!s) ... the table is full
 *
 * The table can be made larger on insertion: set the number of the map's entries and the variable
 * capacity to the same power of two. */
#ifndef MARGAY_HASH_H
#define MARGAY_HASH_H

#include "margay_ext.h"

/* The greatest distance of a key from its home slot before the table counts as full. */
#define HASH_PROBES 512

#define HASH_WORDS (HASH_KEY / 8)

struct hash_slot {
	__u32 length; /* of the key, in bytes; 0: the slot is free */
	__u32 reserved;
	__u64 value;
	__u64 key[HASH_WORDS];
};

#define HASH_TABLE(name, entries)                                              \
	struct {                                                               \
		MAP_ARRAY;                                                     \
		MAP_VALUE(struct hash_slot);                                   \
		MAP_ENTRIES(entries);                                          \
	} name SEC(".maps")

/* hash_words mixes the words of a key (multiplicative, after Knuth, TAOCP 6.4). */
static inline_always __u32 hash_words(const __u64 *key, __u32 words)
{
	__u64 h = 0;
	for (__u32 i = 0; i < HASH_WORDS; i++) {
		if (i >= words)
			break;
		h = (h ^ key[i]) * 0x9e3779b97f4a7c15ULL;
		h ^= h >> 29;
	}
	return (__u32)(h ^ h >> 32);
}

static inline_always int hash_equal(const __u64 *a, const __u64 *b, __u32 words)
{
	for (__u32 i = 0; i < HASH_WORDS; i++) {
		if (i >= words)
			break;
		if (a[i] != b[i])
			return 0;
	}
	return 1;
}

/* hash_find returns the slot of a key, a new one with value 0 if the key is absent, or 0 if the
 * table is full. The key must be padded with zeroes to a multiple of 8 bytes, and 1 to HASH_KEY
 * bytes long. */
static inline_always struct hash_slot *hash_find(void *table, __u32 capacity, const __u64 *key, __u32 length)
{
	__u32 count = (length + 7) / 8;
	__u32 at = hash_words(key, count);
	/* A sum whose value Linux's verifier does not know: it would follow the loop for each number of
	 * words. */
	__u32 hidden = at + count;
	for (__u32 i = 0; i < HASH_PROBES; i++) {
		asm volatile("" : "+r"(hidden));
		__u32 words = hidden - at;
		__u32 index = (at + i) & (capacity - 1);
		struct hash_slot *s = map_lookup(table, &index);
		if (!s)
			return 0;
		if (s->length == 0) {
			for (__u32 j = 0; j < HASH_WORDS; j++)
				s->key[j] = j < words ? key[j] : 0;
			s->length = length;
			return s;
		}
		if (s->length == length && hash_equal(s->key, key, words))
			return s;
	}
	return 0;
}

#endif
