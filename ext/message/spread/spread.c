//go:build ignore

/* spread forwards messages to their owners: a message for a certain handler goes to the rank given
 * by its first argument modulo the number of ranks, whichever rank it was sent to. Senders need not
 * know the owners. All other messages are delivered. */
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
