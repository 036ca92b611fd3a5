/* A map of a kind that Nimble leaves to the extension. */
#include "bpf.h"

struct {
	__uint(type, 1);
	__uint(max_entries, 16);
	__type(key, u32);
	__type(value, u64);
} table SEC(".maps");

SEC("message")
int program(void *c)
{
	u32 key = 0;
	return map_lookup_elem(&table, &key) != 0;
}
