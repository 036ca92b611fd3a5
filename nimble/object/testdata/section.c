/* Global data in a section that is not for it. */
#include "bpf.h"

SEC(".bss.mine") u64 count;

SEC("message")
int zero(void *c)
{
	return 0;
}

SEC("message")
int section(void *c)
{
	u64 *value = c;

	*value = 1;
	return count++;
}
