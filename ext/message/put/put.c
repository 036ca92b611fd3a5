//go:build ignore

/* put writes into this node's memory: the payload of a message goes to an offset, and no process is
 * woken. A message that names a rank writes into a window of that rank instead, on whatever node it
 * is. */
#include "margay_ext.h"

const volatile __u32 handler = 0; /* of the messages; answers have the next one */
const volatile __u64 size = 1024; /* bytes of memory */
const volatile __u32 window = 0;  /* number of the windows */

/* Memory of this node, which its ranks map as a region. It may have more entries. */
struct block {
	__u8 bytes[1024];
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct block);
	MAP_ENTRIES(1);
} memory SEC(".maps");

#define OTHER (1ull << 63) /* of the second argument: the low half is a rank */
#define ANSWER (1ull << 62) /* an answer is wanted */

/* answered sends an answer with the number of bytes that were written, if one is wanted. */
static inline_always int answered(const struct margay_message *m, __u64 length)
{
	if ((m->args[1] & ANSWER) && reply(handler + 1, m->args[0], length, 0, 0) != 0)
		return MARGAY_DELIVER;
	return MARGAY_CONSUME;
}

SEC("message") int put(struct margay_message *m)
{
	if (m->handler != handler)
		return MARGAY_DELIVER;
	__u64 offset = m->args[0];
	__u32 length = m->length, zero = 0;

	if (m->args[1] & OTHER) {
		struct margay_put to = {.rank = (__u32)m->args[1], .window = window, .offset = offset};

		return message_put(&to, sizeof to, m->data, length) == 0 ? MARGAY_CONSUME : MARGAY_DELIVER;
	}
	struct block *b = map_lookup(&memory, &zero);

	if (!b || offset > size || length > size - offset)
		return answered(m, 0);
	for (__u32 i = 0; i < length && i < MARGAY_MESSAGE_MAX; i++)
		b->bytes[offset + i] = m->data[i];
	return answered(m, length);
}

char _license[] SEC("license") = "Dual BSD/GPL";
