//go:build ignore

/* pack fills the nodes that have the fewest free cores first, so that other nodes stay empty. */
#include "margay_ext.h"

SEC("place") int pack(struct margay_place *p)
{
	return p->free < MARGAY_UNSCORED ? p->free : MARGAY_UNSCORED - 1;
}

char _license[] SEC("license") = "Dual BSD/GPL";
