//go:build ignore

/* accumulate counts: an active message whose payload is a word adds its first argument to the
 * word's entry in a hash table. The table is in the job's memory, where the node kernel or Linux
 * counts, and no process is asked. Messages for other handlers are delivered. */
#define HASH_KEY 64
#include "margay_hash.h"

HASH_TABLE(table, 1024);
const volatile __u32 capacity = 1024; /* entries of table, a power of two */
const volatile __u32 handler = 0;     /* of the messages that are counted */

/* Totals for readers of the table. A message that was not counted is in one of the last two. */
struct accumulate_totals {
	__u64 handled; /* messages counted */
	__u64 sum;     /* of the first arguments of those */
	__u64 full;    /* messages that found no room */
	__u64 refused; /* messages whose payload is not a word: empty, or longer than a key */
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct accumulate_totals);
	MAP_ENTRIES(1);
} totals SEC(".maps");

SEC("message/interface") int accumulate(struct margay_message *m)
{
	if (m->handler != handler)
		return MARGAY_DELIVER;
	__u32 zero = 0;
	struct accumulate_totals *t = map_lookup(&totals, &zero);
	if (!t)
		return MARGAY_DROP;
	if (m->length == 0 || m->length > HASH_KEY) {
		t->refused++;
		return MARGAY_DROP;
	}
	struct hash_slot *s = hash_find(&table, capacity, (const __u64 *)m->data, m->length);
	if (!s) {
		t->full++;
		return MARGAY_DROP;
	}
	s->value += m->args[0];
	t->sum += m->args[0];
	t->handled++;
	return MARGAY_CONSUME;
}

char _license[] SEC("license") = "Dual BSD/GPL";
