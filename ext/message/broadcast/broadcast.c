//go:build ignore

/* broadcast sends a message of one rank to all ranks of the job, down a tree of nodes: the
 * extension of each node sends it on. Beside the receiving ones, no process is woken. */
#include "margay_tree.h"

const volatile __u32 handler = 0; /* of messages to be broadcast; those to the ranks have the next one */

/* Messages that were not sent, because there was no room. */
struct {
	MAP_ARRAY;
	MAP_VALUE(__u64);
	MAP_ENTRIES(1);
} lost SEC(".maps");

static inline_always void check(long err)
{
	__u32 zero = 0;
	__u64 *n = map_lookup(&lost, &zero);

	if (err && n)
		*n += 1;
}

SEC("message") int broadcast(struct margay_message *m)
{
	struct tree t;

	if (m->handler == handler) { /* of the root: it goes to its own node first */
		if (tree_find(&t, m, m->target_rank) != 0)
			return MARGAY_DROP;
		check(send(t.first, handler + 1, m->args[0], m->target_rank, m->data, m->length));
		return MARGAY_CONSUME;
	}
	if (m->handler != handler + 1 || message_sender() != MARGAY_FROM_EXTENSION)
		return MARGAY_DELIVER;
	if (tree_find(&t, m, m->args[1]) == 0 && t.first == t.rank)
		check(tree_down(&t, m));
	return MARGAY_DELIVER;
}

char _license[] SEC("license") = "Dual BSD/GPL";
