//go:build ignore

/* stamp records when messages arrive at their node, for measuring delays from there. A message for
 * a handler at or above a given number interrupts its rank; the others are delivered. */
#include "margay_ext.h"

#define STAMPS 1024

const volatile __u32 first = 128; /* of the handlers whose messages interrupt */

/* Nanoseconds of CLOCK_MONOTONIC, indexed by the message's first argument modulo the number of
 * entries. */
struct {
	MAP_ARRAY;
	MAP_VALUE(__u64);
	MAP_ENTRIES(STAMPS);
} stamps SEC(".maps");

SEC("message") int stamp(struct margay_message *m)
{
	__u32 at = m->args[0] % STAMPS;
	__u64 *s = map_lookup(&stamps, &at);

	if (s)
		*s = time_ns();
	return m->handler >= first ? MARGAY_UPCALL : MARGAY_DELIVER;
}

char _license[] SEC("license") = "Dual BSD/GPL";
