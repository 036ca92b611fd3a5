//go:build ignore

/* allreduce combines integers of all ranks of the job. A rank sends its own to itself; the
 * extension of each node combines the integers of its ranks with the outcomes of its children in a
 * tree of nodes, and sends its own outcome up. The first node sends the result down. No rank is
 * woken before it has the result. */
#include "margay_tree.h"

const volatile __u32 handler = 0; /* of contributions; outcomes have the next one, results the one after */

#define CALLS 16  /* that a rank may have started and not finished */
#define VALUES 32 /* of a contribution, at most */

enum { SUM = 1, MIN, MAX, AND, OR, XOR }; /* as in margay.h; of unsigned numbers */

/* A call at this node. The first argument of a message is its number, the second its operation. */
struct call {
	__u64 number;
	__u32 parts; /* that have come; 0: the call is not under way */
	__u32 length;
	__u32 operation;
	__u32 failed; /* the ranks do not agree about operation or length */
	__u64 values[VALUES];
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct call);
	MAP_ENTRIES(CALLS);
} calls SEC(".maps");

struct {
	MAP_ARRAY;
	MAP_VALUE(__u64);
	MAP_ENTRIES(1);
} lost SEC(".maps"); /* messages that were not sent, because there was no room, or that made no sense */

#define FAILED (1ull << 32) /* of the second argument: the ranks do not agree */

static inline_always int failure(void)
{
	__u32 zero = 0;
	__u64 *n = map_lookup(&lost, &zero);

	if (n)
		*n += 1;
	return MARGAY_DROP;
}

static inline_always __u64 combined(__u32 operation, __u64 a, __u64 b)
{
	switch (operation) {
	case MIN:
		return a < b ? a : b;
	case MAX:
		return a > b ? a : b;
	case AND:
		return a & b;
	case OR:
		return a | b;
	case XOR:
		return a ^ b;
	}
	return a + b;
}

/* add combines a part with a call, and reports whether it is complete. */
static inline_always int add(struct call *c, const struct tree *t, const struct margay_message *m)
{
	__u32 operation = (__u32)m->args[1];

	if (c->parts == 0) {
		c->number = m->args[0];
		c->length = m->length;
		c->operation = operation;
		c->failed = 0;
	}
	if (m->args[1] & FAILED || c->length != m->length || c->operation != operation)
		c->failed = 1;
	for (__u32 i = 0; i < VALUES && 8 * i < m->length; i++) {
		__u64 value = ((const __u64 *)m->data)[i];

		c->values[i] = c->parts == 0 ? value : combined(operation, c->values[i], value);
	}
	c->parts++;
	return c->parts == t->ranks + tree_children(t);
}

/* part handles a contribution of a rank, or of a child. */
static inline_always int part(struct margay_message *m)
{
	struct tree t;
	__u32 at = m->args[0] % CALLS, operation = (__u32)m->args[1];
	struct call *c = map_lookup(&calls, &at);

	if (!c || m->length % 8 || m->length > 8 * VALUES || operation < SUM || operation > XOR || tree_find(&t, m, 0) != 0)
		return failure();
	if (c->parts != 0 && c->number != m->args[0])
		return failure();
	if (!add(c, &t, m))
		return MARGAY_CONSUME;
	c->parts = 0;
	__u64 outcome = c->operation | (c->failed ? FAILED : 0);
	long err;

	if (t.at == 0)
		err = send(t.first, handler + 2, c->number, outcome, c->values, c->length);
	else
		err = tree_up(&t, handler + 1, c->number, outcome, c->values, c->length);
	if (err)
		failure();
	return MARGAY_CONSUME;
}

SEC("message") int allreduce(struct margay_message *m)
{
	struct tree t;

	if (m->handler == handler)
		return message_sender() == MARGAY_FROM_RANK && m->source_rank == m->target_rank ? part(m) : failure();
	if (message_sender() != MARGAY_FROM_EXTENSION)
		return m->handler == handler + 1 || m->handler == handler + 2 ? failure() : MARGAY_DELIVER;
	if (m->handler == handler + 1)
		return part(m);
	if (m->handler == handler + 2 && tree_find(&t, m, 0) == 0 && t.first == t.rank && tree_down(&t, m) != 0)
		failure();
	return MARGAY_DELIVER;
}

char _license[] SEC("license") = "Dual BSD/GPL";
