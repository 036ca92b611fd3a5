/* Maps, global data, local functions, services by number and by name. */
#include "bpf.h"

struct {
	__uint(type, MAP_ARRAY);
	__uint(max_entries, 16);
	__uint(map_flags, F_MMAPABLE);
	__type(key, u32);
	__type(value, u64);
} counts SEC(".maps");

struct {
	__uint(type, MAP_PERCPU_ARRAY);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 12);
} percore SEC(".maps");

struct message {
	u32 word;
	u32 amount;
};

const volatile u32 limit = 100;
u64 total = 5;
u32 refused;

extern u64 notify(u64 what) __ksym;

static __noinline u64 bump(u32 key, u32 amount)
{
	u64 *value = map_lookup_elem(&counts, &key);
	if (!value)
		return 0;
	return __sync_fetch_and_add(value, amount) + amount;
}

SEC("message")
int accumulate(struct message *m)
{
	if (m->amount > limit) {
		refused++;
		return notify(m->amount);
	}
	total += m->amount;
	return bump(m->word, m->amount);
}

SEC("timer/every")
int tick(void *unused)
{
	u32 key = 1;
	u64 *value = map_lookup_elem(&percore, &key);
	if (!value)
		return -1;
	*value += 2;
	return *value;
}

char _license[] SEC("license") = "Dual BSD/GPL";
