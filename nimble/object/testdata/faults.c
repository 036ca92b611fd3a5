/* One program for each thing that an extension must not do. */
#include "bpf.h"

struct context {
	u64 value[8];
};

SEC("message/past-end")
int past_end(struct context *c)
{
	((volatile u64 *)c->value)[8] = 1;
	return 0;
}

SEC("message/null")
int null(struct context *c)
{
	return *(volatile u32 *)0;
}

SEC("message/endless")
int endless(struct context *c)
{
	for (;;)
		((volatile u64 *)c->value)[0]++;
}

static __noinline u64 sum(u64 n)
{
	volatile u64 keep = n;
	return n ? sum(n - 1) + keep : 0;
}

SEC("message/recurse")
int recurse(struct context *c)
{
	return sum(c->value[0]);
}

SEC("message/unknown-service")
int unknown_service(struct context *c)
{
	u64 (*const service)(u64) = (void *)4000;
	return service(c->value[0]);
}

extern u64 no_such_service(u64) __ksym;

SEC("message/unknown-name")
int unknown_name(struct context *c)
{
	return no_such_service(c->value[0]);
}
