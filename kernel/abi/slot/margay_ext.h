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

/* The message slot. Changes made here are seen by the following extensions only, except
 * target_rank, the destination of MARGAY_FORWARD, and what message_change takes. A message of more
 * than MARGAY_MESSAGE_MAX bytes is seen once, by its beginning, and cannot be changed. */
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

#define MARGAY_MAX_HOPS 8

/* Messages of an extension. They are sent when the run has ended without a fault. Their source is
 * the rank that the handled message came to, with a mark that an extension has sent it, which no
 * rank can set. A message that was sent for another one has been forwarded once more than that.
 * Nothing waits: a call returns 0, or
 *
 *	-EAGAIN   too many messages to that rank wait for credits on this node
 *	-EDQUOT   MARGAY_MAX_SENDS were sent for this message, or all that it may cause: one of a
 *	          rank may cause MARGAY_MAX_CAUSED, and those that are sent for it share the rest,
 *	          except for the last ones
 *	-ELOOP    the handled message has been forwarded MARGAY_MAX_HOPS times
 *	-EMSGSIZE the payload has more than MARGAY_MESSAGE_MAX bytes
 *	-EINVAL   no such rank, handler or window, or the size of the structure is wrong
 *
 * The mark is margay_am.extension in C and Message.Extension in Go. */
#define MARGAY_MAX_SENDS 128
#define MARGAY_MAX_CAUSED 32767
#define MARGAY_SEND_FUEL 500 /* instructions, and one more for each byte of payload */

#define MARGAY_EAGAIN 11
#define MARGAY_EINVAL 22
#define MARGAY_ELOOP 40
#define MARGAY_EMSGSIZE 90
#define MARGAY_EDQUOT 122

#define SERVICE __attribute__((section(".ksyms")))

struct margay_send {
	__u32 rank; /* ignored in a reply */
	__u32 handler;
	__u64 args[2];
	__u64 last; /* not 0: no extension sends a message for this one */
};

/* message_send sends a message to a rank of the job, and message_reply to the rank that the system
 * knows as the source of the handled message. The target's node runs its extensions for it. */
extern long message_send(const struct margay_send *to, __u64 size, const void *payload, __u64 length) SERVICE;
extern long message_reply(const struct margay_send *to, __u64 size, const void *payload, __u64 length) SERVICE;

struct margay_put {
	__u32 rank;   /* whose window it is */
	__u32 window; /* its number */
	__u64 offset; /* bytes */
};

/* message_put starts a put into a window of a rank. The window's node kernel carries it out, after
 * what this run has sent to that rank before, and wakes no process. If there is no such memory, the
 * job ends with an error. */
extern long message_put(const struct margay_put *to, __u64 size, const void *data, __u64 length) SERVICE;

/* message_change makes the args of the handled message, and length bytes of its data, what they are
 * in the context when the run ends. A message can become shorter and not longer, and one of more
 * than MARGAY_MESSAGE_MAX bytes cannot change (-EMSGSIZE). */
extern long message_change(__u64 length) SERVICE;

/* message_room returns how many messages this run may still send to a rank, or a negative error. A
 * run that finds room for a message has room for all that it may send. */
extern long message_room(__u32 rank) SERVICE;

/* message_sender returns whether a rank or an extension has sent the handled message. */
extern long message_sender(void) SERVICE;

#define MARGAY_FROM_RANK 0
#define MARGAY_FROM_EXTENSION 1

/* job_rank and job_node describe a rank and a node of the job, which is named by its place among
 * the job's nodes. They return 0 or -EINVAL. */
struct margay_job_rank {
	__u32 ranks; /* of the job */
	__u32 nodes; /* of the job */
	__u32 node;  /* place of the rank's node */
	__u32 next;  /* the next rank on that node, or MARGAY_NO_RANK */
};

struct margay_job_node {
	__u32 number; /* in the machine */
	__u32 first;  /* its lowest rank, or MARGAY_NO_RANK */
	__u32 ranks;  /* number of its ranks */
	__u32 unused;
};

#define MARGAY_NO_RANK 0xffffffffu

extern long job_rank(__u32 rank, struct margay_job_rank *out, __u64 size) SERVICE;
extern long job_node(__u32 place, struct margay_job_node *out, __u64 size) SERVICE;

/* send sends a message with payload to a rank. */
static inline_always long send(__u32 rank, __u32 handler, __u64 arg0, __u64 arg1, const void *payload, __u64 length)
{
	struct margay_send to = {.rank = rank, .handler = handler, .args = {arg0, arg1}};

	return message_send(&to, sizeof to, payload, length);
}

/* reply sends a message to the source of the handled one. */
static inline_always long reply(__u32 handler, __u64 arg0, __u64 arg1, const void *payload, __u64 length)
{
	struct margay_send to = {.handler = handler, .args = {arg0, arg1}};

	return message_reply(&to, sizeof to, payload, length);
}

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

/* The packet slot: a message has come from another node. The verdicts are MARGAY_PASS, for it to go
 * on, MARGAY_CONSUME and MARGAY_DROP. Messages of the libraries are seen here, too, with handlers
 * from MARGAY_HANDLERS on. They can only pass, and services that send or change return -ENOTSUP for
 * them. Changes made here are seen by the following extensions in this slot only, except those that
 * message_change takes. */
#define MARGAY_HANDLERS 256
#define MARGAY_ENOTSUP 95

struct margay_packet {
	struct margay_message message;
	__u32 from_node; /* that has sent it: not message.source_node if it was forwarded */
	__u32 hops;      /* times that it was forwarded */
};

/* The place slot chooses the nodes of a job. It runs in margay serve, once for each node that has
 * room for a part of the job, in the order of their numbers. The verdict is a score below
 * MARGAY_UNSCORED, and the node with the lowest one is first; equal scores leave the order of
 * numbers. MARGAY_UNSCORED leaves the job to the next extension, finally to the allocator. */
struct margay_place {
	__u32 node;
	__u32 index;       /* place of the node among the candidates, from 0 */
	__u32 candidates;
	__u32 cores;       /* its application cores; for a step, the cores of its allocation */
	__u32 free;        /* cores of these that the job can get */
	__u32 room;        /* ranks of the job that it has room for, at least 1 */
	__u32 turn;        /* in and out: ranks that it takes at its turn, at least 1; room when it comes in */
	__u32 ranks;       /* of the job */
	__u32 each;        /* cores of each rank; 0: one, which ranks may share */
	__u32 user;        /* number of the job's user */
	__u64 memory;      /* bytes for jobs */
	__u64 free_memory; /* bytes, as the node has last reported */
};

#define MARGAY_UNSCORED 1048576

#endif
