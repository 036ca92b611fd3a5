//go:build ignore

/* firewall counts messages of other nodes, by node, and drops those that its settings describe, or
 * refuses them by an answer. Messages of the libraries pass. */
#include "margay_ext.h"

/* A message is dropped if it fits all of these that are set, and at least one is. */
const volatile __u32 handler = 0xffffffff; /* for this handler; 0xffffffff: any */
const volatile __u32 source = 0xffffffff;  /* from this rank; 0xffffffff: any */
const volatile __u32 node = 0xffffffff;    /* of a rank of this node; 0xffffffff: any */

const volatile __u32 refuse = 0xffffffff; /* handler of the answers to dropped messages; 0xffffffff: there are none */

#define ANY 0xffffffffu

struct count {
	__u64 messages;
	__u64 bytes;   /* of their payloads */
	__u64 dropped; /* messages */
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct count);
	MAP_ENTRIES(64);
} counts SEC(".maps"); /* by number of the source's node; messages of nodes without an entry are not counted */

static inline_always int fits(const struct margay_message *m)
{
	if (m->handler >= MARGAY_HANDLERS || (handler == ANY && source == ANY && node == ANY))
		return 0;
	return (handler == ANY || handler == m->handler) && (source == ANY || source == m->source_rank) && (node == ANY || node == m->source_node);
}

SEC("packet") int firewall(struct margay_packet *p)
{
	const struct margay_message *m = &p->message;
	__u32 key = m->source_node;
	struct count *c = map_lookup(&counts, &key);
	int drop = fits(m);

	if (c) {
		c->messages += 1;
		c->bytes += m->total;
		c->dropped += drop;
	}
	if (!drop)
		return MARGAY_PASS;
	if (refuse != ANY)
		reply(refuse, m->args[0], m->args[1], m->data, 0); /* none is sent where there is no room */
	return MARGAY_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
