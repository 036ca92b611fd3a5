//go:build ignore

/* barrier releases the ranks of a job when all have entered. A rank enters by a message to itself;
 * the extension of each node counts its ranks and its children in a tree of nodes, and then sends
 * one message up. The first node sends the release down. No rank is woken before. */
#include "margay_tree.h"

const volatile __u32 handler = 0; /* of entries; arrivals of nodes have the next one, releases the one after */

/* The barrier that is under way at this node. */
struct state {
	__u64 number; /* the first argument of its messages */
	__u64 came;   /* ranks and children */
	__u64 lost;   /* messages that were not sent, because there was no room, or that made no sense */
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct state);
	MAP_ENTRIES(1);
} state SEC(".maps");

static inline_always int enter(struct state *s, const struct margay_message *m)
{
	struct tree t;
	long err;

	if (tree_find(&t, m, 0) != 0 || (s->came != 0 && s->number != m->args[0])) {
		s->lost++;
		return MARGAY_DROP;
	}
	s->number = m->args[0];
	if (++s->came < t.ranks + tree_children(&t))
		return MARGAY_CONSUME;
	s->came = 0;
	if (t.at == 0)
		err = send(t.first, handler + 2, s->number, 0, 0, 0);
	else
		err = tree_up(&t, handler + 1, s->number, 0, 0, 0);
	if (err)
		s->lost++;
	return MARGAY_CONSUME;
}

SEC("message") int barrier(struct margay_message *m)
{
	struct tree t;
	__u32 zero = 0;
	struct state *s = map_lookup(&state, &zero);

	if (!s || m->handler < handler || m->handler > handler + 2)
		return MARGAY_DELIVER;
	int by_extension = message_sender() == MARGAY_FROM_EXTENSION;

	if (by_extension != (m->handler != handler) || (!by_extension && m->source_rank != m->target_rank)) {
		s->lost++;
		return MARGAY_DROP;
	}
	if (m->handler != handler + 2)
		return enter(s, m);
	if (tree_find(&t, m, 0) == 0 && t.first == t.rank && tree_down(&t, m) != 0)
		s->lost++;
	return MARGAY_DELIVER;
}

char _license[] SEC("license") = "Dual BSD/GPL";
