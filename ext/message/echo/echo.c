//go:build ignore

/* echo sends messages back: a message for a handler is answered with its arguments and payload,
 * once or several times, and no process is woken. It is for measuring, and for testing the limits
 * of what extensions send. */
#include "margay_ext.h"

const volatile __u32 handler = 0; /* of the messages that are sent back */
const volatile __u32 answer = 1;  /* handler of the answers */
const volatile __u32 copies = 1;  /* answers to a message */

/* Answers that were refused, and the last error. */
struct refused {
	__u64 number;
	__s64 error;
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct refused);
	MAP_ENTRIES(1);
} refused SEC(".maps");

SEC("message") int echo(struct margay_message *m)
{
	__u32 zero = 0;
	struct refused *r = map_lookup(&refused, &zero);

	if (m->handler != handler || !r)
		return MARGAY_DELIVER;
	for (__u32 i = 0; i < copies && i < 2 * MARGAY_MAX_SENDS; i++) {
		long err = reply(answer, m->args[0], m->args[1], m->data, m->length);

		if (err) {
			r->number++;
			r->error = err;
		}
	}
	return MARGAY_CONSUME;
}

char _license[] SEC("license") = "Dual BSD/GPL";
