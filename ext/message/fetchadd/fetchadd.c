//go:build ignore

/* fetchadd adds to words of this node's memory: a message with an index and a number is answered
 * with the word as it was before, and no process is woken. Its payload comes back with the answer.
 * Without room for the answer nothing is added, and the message is delivered to its rank. */
#include "margay_ext.h"

const volatile __u32 handler = 0; /* of the requests; the answers have the next one */
const volatile __u32 entries = 1; /* number of words */

/* Words of this node, which its ranks map as a region. */
struct {
	MAP_ARRAY;
	MAP_VALUE(__u64);
	MAP_ENTRIES(1);
} words SEC(".maps");

#define NO_WORD (1ull << 63) /* of the first argument of an answer: there is no such word */

SEC("message") int fetchadd(struct margay_message *m)
{
	if (m->handler != handler)
		return MARGAY_DELIVER;
	__u64 index = m->args[0], old = 0;
	__u32 at = index;

	if (message_room(m->source_rank) <= 0)
		return MARGAY_DELIVER;
	__u64 *word = index < entries ? map_lookup(&words, &at) : 0;

	if (word)
		old = __sync_fetch_and_add(word, m->args[1]);
	else
		index |= NO_WORD;
	reply(handler + 1, index, old, m->data, m->length);
	return MARGAY_CONSUME;
}

char _license[] SEC("license") = "Dual BSD/GPL";
