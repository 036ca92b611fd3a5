//go:build ignore

/* Has another extension work on every message with a 2 as its first argument, and prints what came of it. The
 * message is delivered if all is well. */
#include "margay_ext.h"

const volatile __u64 helper = 0; /* its handle */

SEC("message") int caller(struct margay_message *m)
{
	if (m->args[0] != 2)
		return MARGAY_DELIVER;
	m->args[1] = 100;
	long answer = extension_call(helper, m, sizeof *m);
	print("helper %lu answered %ld and left %lu", helper, answer, m->args[1]);
	return answer == 0 && m->args[1] == 105 ? MARGAY_DELIVER : MARGAY_DROP;
}

char _license[] SEC("license") = "Dual BSD/GPL";
