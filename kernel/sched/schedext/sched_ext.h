/* The fields and functions of Linux's sched_ext that the skeleton uses. Their offsets are resolved
 * when it is loaded. Numbers are from include/linux/sched/ext.h and kernel/sched/ext_internal.h. */
#ifndef SCHED_EXT_H
#define SCHED_EXT_H

#include "margay_ext.h"

typedef _Bool bool;
#define true 1
#define false 0

#define noinline __attribute__((noinline))
#define ksym __attribute__((section(".ksyms")))

#define MAP_PROGRAMS MAP_TYPE(3)
#define MAP_RING MAP_TYPE(27)
#define MAP_HASH MAP_TYPE(1); __s32 *key
#define MAP_FLAGS(number) int (*map_flags)[number]
#define BPF_F_MMAPABLE 1024

static long (*const tail_call)(void *ctx, void *programs, __u32 index) = (void *)12;
static long (*const read_kernel_string)(void *to, __u32 size, const void *from) = (void *)115;
static long (*const ring_output)(void *ring, void *data, __u64 size, __u64 flags) = (void *)130;

enum scx_exit_kind { SCX_EXIT_NONE };

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sched_ext_entity {
	__u32 flags;
};

struct task_struct {
	unsigned int flags;
	unsigned int policy;
	int pid;
	struct sched_ext_entity scx;
};

struct scx_exit_info {
	enum scx_exit_kind kind;
	__s64 exit_code;
	const char *reason;
	char *msg;
};

#pragma clang attribute pop

static struct task_struct *(*const current_task)(void) = (void *)158;

struct sched_ext_ops {
	__s32 (*select_cpu)(struct task_struct *p, __s32 cpu, __u64 flags);
	void (*enqueue)(struct task_struct *p, __u64 flags);
	void (*dispatch)(__s32 cpu, struct task_struct *prev);
	void (*running)(struct task_struct *p);
	void (*stopping)(struct task_struct *p, bool runnable);
	void (*disable)(struct task_struct *p);
	__s32 (*init_task)(struct task_struct *p, void *args);
	void (*exit_task)(struct task_struct *p, void *args);
	__s32 (*init)(void);
	void (*exit)(struct scx_exit_info *info);
	__u64 flags;
	__u32 timeout_ms;
	char name[128];
};

#define SCX_OPS_ENQ_LAST (1ull << 1)
#define SCX_OPS_SWITCH_PARTIAL (1ull << 3)
#define SCX_OPS_ENQ_MIGRATION_DISABLED (1ull << 4)
#define SCX_TASK_QUEUED 1u
#define PF_EXITING 4u
#define SCHED_EXT 7u
#define SCX_KICK_PREEMPT 2ull
#define SCX_SLICE_INF (~0ull)

extern __s32 scx_bpf_create_dsq(__u64 queue, __s32 node) ksym;
extern __s32 scx_bpf_dsq_nr_queued(__u64 queue) ksym;
extern struct task_struct *scx_bpf_dsq_peek(__u64 queue) ksym;
/* These two have several versions; the number selects one for the loader. */
extern bool scx_bpf_dsq_insert___v2(struct task_struct *p, __u64 queue, __u64 slice, __u64 flags) ksym;
extern bool scx_bpf_dsq_move_to_local___v2(__u64 queue, __u64 flags) ksym;
extern bool scx_bpf_task_set_slice(struct task_struct *p, __u64 slice) ksym;
extern __s32 scx_bpf_task_cpu(const struct task_struct *p) ksym;
extern void scx_bpf_kick_cpu(__s32 cpu, __u64 flags) ksym;

#endif
