/* The interface of extensions: contexts and verdicts of the slots, and declarations of maps and
 * variables.
 *
 * An extension is compiled with
 *
 *	clang-19 -target bpf -mcpu=v3 -O2 -g -c policy.c -o policy.o
 *
 * and is one function per program: int f(struct ctx *). The section names the slot:
 *
 *	SEC("message") int f(struct margay_message *m)
 *
 * The layouts match kernel/abi/slot. */
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

/* A constant that can be set on insertion: const volatile __u32 limit = 7; */

/* Services that Linux also has, under Linux's numbers. */
static void *(*const map_lookup)(void *map, const void *key) = (void *)1;
static long (*const map_update)(void *map, const void *key, const void *value, __u64 flags) = (void *)2;
static long (*const map_delete)(void *map, const void *key) = (void *)3; /* fails: elements of arrays stay */
static __u64 (*const time_ns)(void) = (void *)5;
static long (*const trace_printk)(const char *format, __u32 size, ...) = (void *)6;
static __u32 (*const random_u32)(void) = (void *)7;
static __u32 (*const this_core)(void) = (void *)8;

/* print writes a line to the log of the node, at most ten a second: print("%u of %lu", a, b). It
 * takes up to three values. */
#define print(format, ...)                                                     \
	({                                                                     \
		static const char line[] = format;                             \
		trace_printk(line, sizeof line, ##__VA_ARGS__);                \
	})

/* extension_call runs another extension of the job on memory of this one, charges this one's fuel,
 * and returns the verdict or a negative error. The other extension must have been inserted earlier;
 * its handle is the result of that insertion. The memory must be as long as its slot's context. */
extern long extension_call(__u64 handle, void *context, __u64 length) __attribute__((section(".ksyms")));

/* The message slot. The message itself cannot be changed: only the following extensions see changes
 * made here, except target_rank, the destination of MARGAY_FORWARD. A message of more than
 * MARGAY_MESSAGE_MAX bytes is seen once, by its beginning. */
#define MARGAY_MESSAGE_MAX 1024

struct margay_message {
	__u32 job;
	__u32 source_node;
	__u32 source_rank;
	__u32 target_rank;
	__u32 handler;
	__u32 length; /* bytes in data, which is zero behind them */
	__u64 args[2];
	__u8 data[MARGAY_MESSAGE_MAX]; /* the payload, or its beginning */
	__u64 total; /* bytes of the payload */
};

#define MARGAY_DELIVER 0 /* queue the message for its target rank */
#define MARGAY_CONSUME 1 /* it has been handled */
#define MARGAY_DROP 2    /* throw it away */
#define MARGAY_FORWARD 3 /* send it on to the rank that is now in target_rank; at most MARGAY_MAX_HOPS times */
#define MARGAY_UPCALL 4  /* have its target rank handle it at once, whatever that does */

#define MARGAY_MAX_HOPS 4

/* The boot slot: whether a node becomes part of the machine. */
struct margay_boot {
	__u32 node;
	__u32 cores;      /* for applications */
	__u64 memory;     /* bytes for jobs */
	char machine[64]; /* its name; the rest is zero */
};

#define MARGAY_GO 0     /* the node registers */
#define MARGAY_REFUSE 1 /* it does not, and is turned off */

/* The timer slot: runs when the extension has been inserted, and then at intervals. */
struct margay_timer {
	__u32 node;
	__u32 job;      /* whose the extension is; 0: the machine's */
	__u64 now;      /* nanoseconds of a clock that never goes back */
	__u64 runs;     /* times that it was run before */
	__u64 missed;   /* times that it should have been run since the last time */
	__u64 interval; /* in and out: nanoseconds until the next time, at least a million; at first one second */
};

#define MARGAY_CONTINUE 0 /* run it again after its interval */
#define MARGAY_STOP 1     /* do not */

/* The slots fault and exit: a process has ended, in slot fault by its own fault. */
struct margay_exit {
	__u32 job;
	__u32 rank;
	__u32 node;
	__u32 core;
	__u32 code;   /* exit status, when signal is 0 */
	__u32 signal; /* that ended it */
	__u32 left;   /* ranks of the job that still run on this node */
	__u32 unused;
	__u64 time;   /* run time in nanoseconds */
};

#define MARGAY_PASS 0 /* it means what it would mean without extensions */
#define MARGAY_END 1  /* the job has failed: end the rest of it */

/* The sched slot selects the process that runs next on a shared core. The verdict is the index of a
 * task, or MARGAY_DEFAULT. */
#define MARGAY_TASKS 8

struct margay_task {
	__u32 job;
	__u32 rank;
	__u32 state;    /* MARGAY_READY, ... */
	__u32 messages; /* that wait for it */
	__u64 ran;      /* nanoseconds of processor time since it came to the core */
	__u64 since;    /* now when it came into its state */
	__u64 data;     /* yours: zero when the task comes, then what you left there */
};

struct margay_sched {
	__u32 core;
	__u32 why;     /* MARGAY_TICK, ... */
	__u32 count;   /* tasks, in order of arrival; the others are zero */
	__u32 target;  /* the task that why is about, or MARGAY_NO_TASK */
	__u64 now;     /* nanoseconds of a clock that never goes back */
	__u64 quantum; /* out: nanoseconds until the next tick; MARGAY_INFINITE when it comes in */
	__u64 hold;    /* in and out: bit i is set when task i is kept off the core on purpose */
	struct margay_task tasks[MARGAY_TASKS];
};

#define MARGAY_TICK 0    /* the quantum is over */
#define MARGAY_BLOCK 1   /* target, which was running, waits for something now */
#define MARGAY_WAKE 2    /* target has something to do again, or is new */
#define MARGAY_ARRIVAL 3 /* a message has come for target */
#define MARGAY_ENDING 4  /* a task has ended */
#define MARGAY_CHANGE 5  /* the extension is new */

#define MARGAY_READY 0   /* it has something to do and does not have the core */
#define MARGAY_RUNNING 1 /* it has the core */
#define MARGAY_BLOCKED 2 /* it waits for something */
#define MARGAY_HELD 3    /* it is kept off the core */

#define MARGAY_NO_TASK 0xffffffffu
#define MARGAY_INFINITE (~0ull)
#define MARGAY_DEFAULT 255 /* let the next extension decide, finally the node kernel */

#endif
