/* What an extension sees of Margay: its slots' contexts and verdicts, and how it declares maps and variables.
 *
 * An extension is compiled with
 *
 *	clang-19 -target bpf -mcpu=v3 -O2 -g -c policy.c -o policy.o
 *
 * and is one function per program: int f(struct ctx *). The section names the slot:
 *
 *	SEC("message") int f(struct margay_message *m)
 *
 * The layouts here are those of kernel/slot. */
#ifndef MARGAY_EXT_H
#define MARGAY_EXT_H

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;

#define SEC(name) __attribute__((section(name), used))
#define inline_always inline __attribute__((always_inline))

/* Maps: struct { MAP_ARRAY; MAP_VALUE(struct thing); MAP_ENTRIES(64); } things SEC(".maps"); */
#define MAP_TYPE(number) int (*type)[number]
#define MAP_ARRAY MAP_TYPE(2); __u32 *key
#define MAP_PERCORE MAP_TYPE(6); __u32 *key
#define MAP_VALUE(kind) kind *value
#define MAP_ENTRIES(number) int (*max_entries)[number]

/* A constant that whoever inserts the extension may set: const volatile __u32 limit = 7; */

/* Services that Linux has too, under the numbers that they have there. */
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static __u64 (*const time_ns)(void) = (void *)5;
static long (*const trace_printk)(const char *format, __u32 size, ...) = (void *)6;
static __u32 (*const random_u32)(void) = (void *)7;
static __u32 (*const this_core)(void) = (void *)8;

/* print puts a line into the log of the node, at most ten a second: print("%u of %lu", a, b). It takes three values. */
#define print(format, ...)                                                     \
	({                                                                     \
		static const char line[] = format;                             \
		trace_printk(line, sizeof line, ##__VA_ARGS__);                \
	})

/* extension_call runs another extension of the job on memory of this one, at the cost of its fuel, and returns its answer or a
 * negative error. Its handle is what inserting it returned, before this one; the memory must be as long as its slot's context. */
extern long extension_call(__u64 handle, void *context, __u64 length) __attribute__((section(".ksyms")));

/* The message slot. */
#define MARGAY_MESSAGE_MAX 1024

struct margay_message {
	__u32 job;
	__u32 source_node;
	__u32 source_rank;
	__u32 target_rank;
	__u32 handler;
	__u32 length; /* of the payload, in bytes; data is zero behind it */
	__u64 args[2];
	__u8 data[MARGAY_MESSAGE_MAX];
};

#define MARGAY_DELIVER 0 /* queue the message for its target rank */
#define MARGAY_CONSUME 1 /* it has been handled */
#define MARGAY_DROP 2    /* throw it away */

#endif
