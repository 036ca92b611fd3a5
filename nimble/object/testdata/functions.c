/* Global data that holds addresses of functions. */
#include "bpf.h"

static __attribute__((noinline)) int one(void *c) { return 1; }
static __attribute__((noinline)) int two(void *c) { return 2; }
int (*volatile table[])(void *) = {one, two};

SEC("message")
int functions(void *c)
{
	return table[1] == table[0];
}
