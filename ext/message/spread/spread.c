//go:build ignore

/* spread sends messages to where they belong: one for a certain handler goes on to the rank that its first argument, modulo the
 * number of ranks, names, whichever rank it was sent to. So who sends need not know who owns what. All others are delivered. */
#include "margay_ext.h"

const volatile __u32 handler = 0; /* of the messages that are spread */
const volatile __u32 ranks = 1;   /* among which they are spread */

SEC("message") int spread(struct margay_message *m)
{
	if (m->handler != handler || ranks == 0)
		return MARGAY_DELIVER;
	__u32 owner = m->args[0] % ranks;
	if (owner == m->target_rank)
		return MARGAY_DELIVER;
	m->target_rank = owner;
	return MARGAY_FORWARD;
}

char _license[] SEC("license") = "Dual BSD/GPL";
