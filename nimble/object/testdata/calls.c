/* Functions that call others, and begin with what is relocated. */
#include "bpf.h"

struct context {
	u64 value[8];
};

extern u64 notify(u64) __ksym;

u64 total;

static __noinline u64 add(u64 amount)
{
	total += amount;
	return total;
}

static __noinline u64 tell(u64 amount)
{
	return notify(amount) + add(amount);
}

__noinline u64 twice(u64 amount)
{
	return add(amount) + tell(amount + 1);
}

SEC("message/first")
int first(struct context *c)
{
	return twice(c->value[0]);
}

SEC("message/second")
int second(struct context *c)
{
	return add(c->value[1]);
}

/* In the section of another program. */
SEC("message/second")
int third(struct context *c)
{
	return notify(c->value[2]);
}
