/* Global data that holds an address. */
#include "bpf.h"

static u64 count = 1;
u64 *volatile place = &count;

SEC("message")
int pointer(void *c)
{
	return *place;
}
