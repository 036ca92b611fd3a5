//go:build ignore

/* minimum rejects nodes with fewer resources than required, for example after a failure of memory
 * or of a core. */
#include "margay_ext.h"

const volatile __u64 memory = 0; /* bytes for jobs */
const volatile __u32 cores = 1;  /* for applications */

SEC("boot") int minimum(struct margay_boot *b)
{
	if (b->memory < memory) {
		print("node%u has %lu bytes for jobs, the machine asks for %lu", b->node, b->memory, memory);
		return MARGAY_REFUSE;
	}
	if (b->cores < cores) {
		print("node%u has %u application cores, the machine asks for %u", b->node, b->cores, cores);
		return MARGAY_REFUSE;
	}
	return MARGAY_GO;
}

char _license[] SEC("license") = "Dual BSD/GPL";
