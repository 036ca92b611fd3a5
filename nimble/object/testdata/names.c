/* Global data that holds addresses of other global data. */
#include "bpf.h"

struct entry {
	const char *name;
	const struct entry *next;
	u64 *counter;
};

static u64 counters[2] = {100, 200};
static u64 zeros[4];

static const struct entry last = {"gamma", 0, &zeros[3]};
static const struct entry table[] = {
	{"alpha", &table[1], &counters[0]},
	{"beta", &last, &counters[1]},
};
const struct entry *volatile first = table;
const char *names[] = {"one", "two", "three"};

SEC("message")
int walk(u64 *c)
{
	u64 sum = 0;

	for (const struct entry *e = first; e; e = e->next) {
		*e->counter += 1;
		sum += *e->counter + e->name[0];
	}
	return sum;
}

/* The second letter of a name. */
SEC("exit")
int letter(u64 *c)
{
	return names[*c % 3][1];
}
