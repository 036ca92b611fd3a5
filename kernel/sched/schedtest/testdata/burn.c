//go:build ignore

/* burn uses up whatever fuel it gets. */
#include "margay.h"

SEC("sched") int burn(struct margay_sched *s)
{
	for (__u32 i = 0; i < 1000000; i++)
		asm volatile("" : "+r"(i));
	return 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
