//go:build ignore

/* get answers reads of this node's memory: a message with an offset and a number of bytes is
 * answered with these bytes, and no process is woken. Without room for the answer, the message is
 * delivered to its rank, which may answer it. */
#include "margay_ext.h"

const volatile __u32 handler = 0; /* of the requests; the answers have the next one */
const volatile __u64 size = 1024; /* bytes of memory */

/* Memory of this node, which its ranks map as a region. It may have more entries. */
struct block {
	__u8 bytes[1024];
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct block);
	MAP_ENTRIES(1);
} memory SEC(".maps");

SEC("message") int get(struct margay_message *m)
{
	if (m->handler != handler)
		return MARGAY_DELIVER;
	__u32 zero = 0, length = m->args[1] & 0xffff;
	__u64 offset = m->args[0], token = m->args[1] & ~0xffffull;
	const struct block *b = map_lookup(&memory, &zero);

	if (!b)
		return MARGAY_DROP;
	if (length > MARGAY_MESSAGE_MAX || offset > size || length > size - offset)
		length = 0;
	if (reply(handler + 1, offset, token | length, b->bytes + (length ? offset : 0), length) != 0)
		return MARGAY_DELIVER;
	return MARGAY_CONSUME;
}

char _license[] SEC("license") = "Dual BSD/GPL";
