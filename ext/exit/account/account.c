//go:build ignore

/* account accounts for the processes of a node: their number, their run time and how they ended. */
#include "margay_ext.h"

struct account {
	__u64 processes;
	__u64 nanoseconds; /* run time of all */
	__u64 failed;      /* those with an exit status that is not 0 */
	__u64 killed;      /* those that a signal ended */
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct account);
	MAP_ENTRIES(1);
} account SEC(".maps");

SEC("exit") int count(struct margay_exit *e)
{
	__u32 zero = 0;
	struct account *a = map_lookup(&account, &zero);

	if (!a)
		return MARGAY_PASS;
	a->processes++;
	a->nanoseconds += e->time;
	if (e->signal)
		a->killed++;
	else if (e->code)
		a->failed++;
	return MARGAY_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
