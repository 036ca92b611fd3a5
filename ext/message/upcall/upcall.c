//go:build ignore

/* upcall interrupts ranks: a message for a handler at or above a given number runs its handler at
 * once, whatever its rank does. All others are delivered. */
#include "margay_ext.h"

const volatile __u32 first = 128; /* of the handlers whose messages interrupt */

SEC("message") int upcall(struct margay_message *m)
{
	return m->handler >= first ? MARGAY_UPCALL : MARGAY_DELIVER;
}

char _license[] SEC("license") = "Dual BSD/GPL";
