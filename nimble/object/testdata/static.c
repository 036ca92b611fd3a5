/* A map that is static. */
#include "bpf.h"

static struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

SEC("message")
int lookup(void *c)
{
	u32 key = 0;

	return map_lookup_elem(&counts, &key) != 0;
}
