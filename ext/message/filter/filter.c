//go:build ignore

/* filter passes on news only: a message for a certain handler has a key and a number, and is
 * delivered if its number is larger than all before it with that key. The others are dropped. The
 * payload is cut short. */
#include "margay_ext.h"

const volatile __u32 handler = 0;                /* of the messages that are filtered */
const volatile __u32 keys = 64;                  /* entries of latest */
const volatile __u32 keep = MARGAY_MESSAGE_MAX;  /* bytes of payload that are delivered at most */

struct {
	MAP_ARRAY;
	MAP_VALUE(__u64);
	MAP_ENTRIES(64);
} latest SEC(".maps"); /* the largest number by key */

struct {
	MAP_ARRAY;
	MAP_VALUE(__u64);
	MAP_ENTRIES(1);
} dropped SEC(".maps");

SEC("message") int filter(struct margay_message *m)
{
	if (m->handler != handler || keys == 0)
		return MARGAY_DELIVER;
	__u32 key = m->args[0] % keys, zero = 0;
	__u64 *l = map_lookup(&latest, &key), *d = map_lookup(&dropped, &zero);

	if (!l || !d)
		return MARGAY_DELIVER;
	if (m->args[1] <= *l) {
		*d += 1;
		return MARGAY_DROP;
	}
	*l = m->args[1];
	if (m->length > keep)
		message_change(keep);
	return MARGAY_DELIVER;
}

char _license[] SEC("license") = "Dual BSD/GPL";
