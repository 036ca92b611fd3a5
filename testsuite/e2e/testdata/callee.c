//go:build ignore

/* What caller.c calls: it adds 5 to the second argument of a message that has one. */
#include "margay_ext.h"

SEC("message") int callee(struct margay_message *m)
{
	if (m->args[1])
		m->args[1] += 5;
	return MARGAY_DELIVER;
}

char _license[] SEC("license") = "Dual BSD/GPL";
