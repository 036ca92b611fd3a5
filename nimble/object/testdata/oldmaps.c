/* A map as a structure, which libbpf took before 1.0. */
#include "bpf.h"

struct {
	u32 type, key_size, value_size, entries;
} counts SEC("maps") = {MAP_ARRAY, 4, 8, 1};

SEC("message")
int lookup(void *c)
{
	return map_lookup_elem(&counts, c) != 0;
}
