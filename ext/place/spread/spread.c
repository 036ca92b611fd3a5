//go:build ignore

/* spread gives the ranks of a job to as many nodes as have room: one to each node in turn, the node
 * with the most free cores first. */
#include "margay_ext.h"

SEC("place") int spread(struct margay_place *p)
{
	p->turn = 1;
	return p->free < MARGAY_UNSCORED ? MARGAY_UNSCORED - 1 - p->free : 0;
}

char _license[] SEC("license") = "Dual BSD/GPL";
