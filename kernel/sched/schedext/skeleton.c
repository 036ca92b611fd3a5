//go:build ignore

/* The skeleton schedules tasks on application cores inside Linux (package schedext). It keeps the
 * queues, the time and the starvation limit. The core's chain of policies selects the task that
 * runs; it is spliced into `policy` before that program is loaded, and called by a tail call.
 * Without a chain, tasks take turns.
 *
 * A task of the node kernel is a process; a task of sched_ext is a thread. Each place of a core has
 * a queue of its process's threads that are ready. Threads of a process take turns within the time
 * of the process.
 *
 * There are no locks. Linux holds the lock of a core's run queue during all callbacks for that
 * core (all programs except init_task, exit_task, forked, init, exit and kick), and they touch no
 * other core: a thread that has changed its affinity, and so is not on the core of its task, is a
 * stranger there. kick only sets `again`, and forked only counts lost events. The node kernel
 * writes only `given`. The skeleton writes the rest, and atomically clears bits of given.signals.
 */
#include "sched_ext.h"

#define MILLISECOND 1000000ull
#define TURN (10 * MILLISECOND)         /* quantum without a policy, and of a rescued task */
#define SHORTEST (MILLISECOND / 10)     /* shortest quantum */
#define LONGEST (3600000 * MILLISECOND) /* longest finite quantum */
#define SLACK (MILLISECOND / 2)         /* a quantum may end this early: ticks are further apart */
#define SHARE (4 * MILLISECOND)         /* slice of a thread while others of its process wait */
#define STOPPING MILLISECOND            /* slice of a thread that must run to be stopped */
#define WORK (MILLISECOND / 2)          /* longest run of a policy */
#define STILL (100 * MILLISECOND)       /* a decision that is so late was impossible before */
#define PATIENCE 4                      /* longer runs in a row that are a fault: the host may pause */
#define SLOW 3                          /* shorter runs that outweigh a longer one */

#define MAX_CPUS 512
#define NONE 0xffu
#define STRANGERS MARGAY_TASKS /* the place of threads without a task on this core */
#define QUEUES (MARGAY_TASKS + 1)
#define NOBODY 0xffffffffu    /* decider: turns */
#define STARVED 0xfffffffeu /* decider: the starvation limit */

const volatile __u32 cpus = 1;

/* Bits of signals. ARRIVED and THAWED are the first of one bit per place. */
#define ARRIVED 0
#define THAWED 8
#define ENDED (1ull << 16)
#define CHANGED (1ull << 17)

struct given_place {
	__u32 serial; /* of the task, never reused; 0: none */
	__u32 job;
	__u32 rank;
	__u32 messages;
};

/* The node kernel's data about a core. Times are in nanoseconds. */
struct given {
	__u64 order; /* places of tasks, one per byte, oldest task first; ended by an invalid place */
	__u64 signals;
	__u64 frozen; /* places whose processes are being stopped */
	__u64 starvation_limit; /* longest wait of a task that is ready and not held */
	__u32 core;
	__u32 watched; /* switches must be reported */
	struct given_place places[MARGAY_TASKS];
};

struct place {
	__u32 serial; /* of the task that this describes */
	__u32 state;
	__u64 ran;
	__u64 since;   /* start of state */
	__u64 spent;   /* core.spent at that time */
	__u64 stood;   /* core.stood at that time */
	__u64 end;     /* value of ran at the end of its quantum, or MARGAY_INFINITE */
	__s64 overrun; /* of its turns, deducted from later quanta */
};

/* The skeleton's data about a core. Masks have a bit for each place. */
struct core {
	__u64 order;   /* copy for the current decision */
	__u64 ready;   /* mask: has threads that could run */
	__u64 hold;    /* mask: is kept off the core */
	__u64 woken;   /* mask: woke up, and no policy was asked yet */
	__u64 blocked; /* mask: blocked, and no policy was asked yet */
	__u64 now;
	__u64 until;  /* the end of the quantum */
	__u64 mark;   /* time up to which processor time is counted */
	__u64 spent;  /* processor time of all tasks */
	__u64 served; /* last time a stranger ran */
	__u64 due;    /* the end of the slice, when the core must decide again; or MARGAY_INFINITE */
	__u64 stood;  /* time in which it could not decide, because the machine stood still */
	__u64 switches;
	__u64 asked;
	__u64 rescues;
	__u64 lost;    /* events that did not fit into the ring */
	/* The best so far of a loop over the places. On the stack, Linux would follow each place that
	 * it may be; it assumes nothing about the contents of a map. */
	volatile __u64 best;
	volatile __u64 found; /* its place, or NONE */
	__u32 current; /* the place that has the core, or NONE */
	__u32 runner;  /* the place whose thread runs, STRANGERS, or NONE */
	__u32 alone;   /* the running thread has all the time of its process */
	__u32 decider; /* index in the chain, or a value above */
	__u32 epoch;   /* of the decider's chain */
	__u32 guest;   /* a stopping thread, a stranger or a rescued task runs: ask no policy until it ends */
	__u32 again;   /* the core must decide again, after an event while none of our threads ran */
	__u32 told;    /* serial of the last reported task */
	__s64 late;    /* overrun of the quantum that has just ended */
	struct place places[MARGAY_TASKS];
};

struct thread {
	__u32 serial;
	__u16 cpu;
	__u16 place;
};

/* A policy's data about the task at a place. */
struct kept {
	__u32 serial;
	__u32 unused;
	__u64 data;
};

/* Events for the node kernel. */
#define EVENT_HOLD 0   /* core.hold has changed: stop or resume processes */
#define EVENT_FAULT 1  /* invalid answer of the policy */
#define EVENT_RESCUE 2 /* the policy let the task starve */
#define EVENT_EXIT 3   /* the skeleton is no longer in force */
#define EVENT_SLOW 4   /* the policy runs for too long: answer has the nanoseconds */
#define EVENT_SWITCH 5 /* the decider gave the core to the task (serial 0: idle); answer has the time */
#define EVENT_LEFT 6   /* the thread in answer, of the task, has left sched_ext */
#define EVENT_BORN 7   /* the thread in answer, of the task, began outside sched_ext */

struct event {
	__u32 kind;
	__u32 cpu;
	__u32 epoch;
	__u32 who; /* the policy or decider, as in core.decider */
	__u64 answer;
	__u64 hold;
	__u32 count;
	__u32 serial; /* of the task concerned */
};

struct ending {
	__u32 kind;
	__u32 unused;
	__s64 code;
	char reason[128];
	char message[1024];
};

struct { MAP_ARRAY; MAP_VALUE(struct given); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } given SEC(".maps");
struct { MAP_ARRAY; MAP_VALUE(struct core); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } cores SEC(".maps");
struct { MAP_ARRAY; MAP_VALUE(struct margay_sched); MAP_ENTRIES(1); } contexts SEC(".maps");
/* A policy has a map with one keep for each core. The map here is a placeholder. */
struct keep {
	struct kept places[MARGAY_TASKS];
	__u64 runs;
	__u64 time;  /* of all runs */
	__u64 begun; /* start of the last run */
	__u64 slow;  /* SLOW for each run that took too long, less one for each other run */
};
struct { MAP_ARRAY; MAP_VALUE(struct keep); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } keeps SEC(".maps");
struct { MAP_PROGRAMS; MAP_VALUE(__u32); __u32 *key; MAP_ENTRIES(1); } policies SEC(".maps");
/* By thread id. BPF task storage would be shorter, but needs processors with cmpxchg16b. */
struct { MAP_HASH; MAP_VALUE(struct thread); MAP_ENTRIES(32768); } threads SEC(".maps");
struct { MAP_RING; MAP_ENTRIES(65536); } events SEC(".maps");
struct { MAP_ARRAY; MAP_VALUE(struct ending); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } endings SEC(".maps");

/* part marks global functions: Linux verifies each of them once, not on every path to a call. So
 * their arguments and results are mostly numbers. */
#define part noinline

/* A core during a callback. */
struct here {
	struct core *c;
	struct given *g;
	__u32 cpu;
};

static inline_always bool find(struct here *h, __u32 cpu)
{
	h->cpu = cpu;
	h->c = map_lookup(&cores, &cpu);
	h->g = map_lookup(&given, &cpu);
	return h->c && h->g;
}

/* place, given_place and kept_at return the entry of a place. The asm keeps the compiler from
 * removing the mask, which the verifier needs as a bound of the index. */
static inline_always struct place *place(struct here *h, __u32 at)
{
	asm volatile("" : "+r"(at));
	return &h->c->places[at & (MARGAY_TASKS - 1)];
}

static inline_always struct given_place *given_place(struct here *h, __u32 at)
{
	asm volatile("" : "+r"(at));
	return &h->g->places[at & (MARGAY_TASKS - 1)];
}

static inline_always struct kept *kept_at(struct keep *k, __u32 at)
{
	asm volatile("" : "+r"(at));
	return &k->places[at & (MARGAY_TASKS - 1)];
}

static inline_always __u64 queue(__u32 cpu, __u32 place)
{
	return ((__u64)cpu << 4 | place) + 1;
}

/* place_of returns the place of a thread on a core, or STRANGERS. */
static inline_always __u32 place_of(struct here *h, struct task_struct *p)
{
	__s32 tid = p->pid;
	struct thread *t = map_lookup(&threads, &tid);

	if (!t || t->cpu != h->cpu || t->place >= MARGAY_TASKS || given_place(h, t->place)->serial != t->serial)
		return STRANGERS;
	return t->place;
}

part int tell(__u32 cpu, struct event *e)
{
	struct here h;

	if (!e)
		return 0;
	e->cpu = cpu;
	if (ring_output(&events, e, sizeof *e, 0) && find(&h, cpu))
		__sync_fetch_and_add(&h.c->lost, 1);
	return 0;
}

/* charge counts the time of the running thread. */
static inline_always void charge(struct here *h, __u64 now)
{
	__u32 runner = h->c->runner;

	if (runner < MARGAY_TASKS) {
		place(h, runner)->ran += now - h->c->mark;
		h->c->spent += now - h->c->mark;
	}
	h->c->mark = now;
}

static inline_always void become(struct core *c, struct place *p, __u32 state)
{
	if (p->state != state) {
		p->state = state;
		p->since = c->now;
		p->spent = c->spent;
		p->stood = c->stood;
	}
}

/* stand measures for how long the core could not decide although a decision was due. The host of a
 * virtual machine may stop it. No task waits because of a policy in that time. */
static inline_always void stand(struct core *c)
{
	if (c->due && c->now > c->due && c->now - c->due > STILL)
		c->stood += c->now - c->due;
	c->due = MARGAY_INFINITE;
}

/* patience returns the time until which a ready task of the core may be kept waiting. */
static inline_always __u64 patience(struct here *h, struct place *p)
{
	return p->since + h->g->starvation_limit + h->c->stood - p->stood;
}

/* switched reports the task that has the core, if it has changed and switches are watched. */
part int switched(__u32 cpu)
{
	struct here h;

	if (!find(&h, cpu))
		return 0;
	__u32 serial = h.c->current < MARGAY_TASKS ? place(&h, h.c->current)->serial : 0;

	if (serial == h.c->told)
		return 0;
	h.c->told = serial;
	if (!h.g->watched)
		return 0;
	struct event e = { .kind = EVENT_SWITCH, .who = h.c->decider, .epoch = h.c->epoch, .answer = h.c->now, .serial = serial };

	return tell(cpu, &e);
}

/* ask_again makes the core decide again if there is an event about which no policy was asked. The
 * node kernel does not kick a core about a signal for the task that has it. So ask_again reads the
 * signals after `current` was written. */
static inline_always void ask_again(struct here *h)
{
	__u64 signals = __sync_fetch_and_or(&h->g->signals, 0);

	if (!h->c->guest && (h->c->again | h->c->woken | h->c->blocked | signals))
		scx_bpf_kick_cpu(h->cpu, SCX_KICK_PREEMPT);
}

/* look updates the states of tasks. prev is the place of the current thread if it could
 * continue, or NONE. */
part int look(__u32 cpu, __u32 prev)
{
	struct here h;

	if (!find(&h, cpu))
		return 0;
	struct core *c = h.c;
	__u64 order = h.g->order, ready = 0, known = 0;
	__u64 kept_off = c->hold | h.g->frozen;

	c->order = order;
	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		__u32 at = order >> (8 * i) & 0xff;
		if (at >= MARGAY_TASKS)
			break;
		struct place *p = place(&h, at);
		__u64 bit = 1ull << at;

		known |= bit;
		if (p->serial != given_place(&h, at)->serial) {
			__builtin_memset(p, 0, sizeof *p);
			p->serial = given_place(&h, at)->serial;
			p->state = MARGAY_BLOCKED;
			p->since = c->now;
			p->spent = c->spent;
			p->stood = c->stood;
			c->hold &= ~bit;
			c->woken |= bit;
		}
		bool could = at == prev || scx_bpf_dsq_nr_queued(queue(cpu, at)) > 0;
		if (could)
			ready |= bit;
		if (kept_off & bit)
			become(c, p, MARGAY_HELD);
		else if (!could)
			become(c, p, MARGAY_BLOCKED);
		else if (p->state != MARGAY_RUNNING)
			become(c, p, MARGAY_READY);
		if (at == c->current && !could) {
			c->current = NONE;
			c->blocked |= bit;
		}
	}
	if (c->current < MARGAY_TASKS && !(known >> c->current & 1)) {
		c->current = NONE;
		c->until = 0;
	}
	c->hold &= known;
	c->ready = ready;
	c->woken &= ready & ~kept_off;
	c->blocked &= known & ~ready & ~kept_off;
	return 0;
}

/* over reports whether the quantum has ended. */
static inline_always bool over(struct core *c)
{
	return c->until != MARGAY_INFINITE && c->until <= c->now + SLACK;
}

static inline_always __s64 within(__s64 value, __s64 least, __s64 most)
{
	return value < least ? least : value > most ? most : value;
}

/* measure computes the overrun of the current task's quantum if it has ended. Quanta end at
 * Linux's clock ticks. The delay depends on when a quantum began, and so may always favour the
 * same task. The overrun of a turn is therefore deducted from the task's next one. A turn may
 * also be too short by SLACK. */
static inline_always void measure(struct here *h)
{
	struct core *c = h->c;

	c->late = 0;
	if (c->current >= MARGAY_TASKS || !over(c))
		return;
	struct place *p = place(h, c->current);
	if (p->end != MARGAY_INFINITE)
		c->late = p->ran - p->end;
}

/* run_thread gives the core to a thread of a place for a slice: to the thread that has waited
 * longest, or to the current one if no other is ready. */
static inline_always bool run_thread(struct here *h, __u32 at, struct task_struct *prev, __u32 prev_at, __u64 slice)
{
	__u64 from = queue(h->cpu, at);
	struct task_struct *first = scx_bpf_dsq_peek(from);

	if (first) {
		bool others = prev_at == at || scx_bpf_dsq_nr_queued(from) > 1;

		if (others && slice > SHARE)
			slice = SHARE;
		h->c->alone = !others;
		scx_bpf_task_set_slice(first, slice);
		return scx_bpf_dsq_move_to_local___v2(from, 0);
	}
	if (prev_at != at || !prev)
		return false;
	h->c->alone = 1;
	scx_bpf_task_set_slice(prev, slice);
	return true;
}

/* give gives the core to a task. It returns the slice of its threads: the rest of its quantum,
 * or the time until another task reaches the starvation limit; 0 if the task cannot
 * run. */
part __u64 give(__u32 cpu, __u32 at)
{
	struct here h;

	if (!find(&h, cpu))
		return 0;
	struct core *c = h.c;
	__u64 others = c->ready & ~(1ull << (at & 63));

	c->best = c->until == MARGAY_INFINITE ? SCX_SLICE_INF : c->until > c->now ? c->until - c->now : 0;
	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		struct place *p = place(&h, i);
		if (!(others >> i & 1) || p->state != MARGAY_READY)
			continue;
		__u64 end = patience(&h, p);
		__u64 left = end > c->now ? end - c->now : 0;
		if (left < c->best)
			c->best = left;
	}
	__u64 slice = c->best;

	if (slice < SHORTEST)
		slice = SHORTEST;
	if (slice != SCX_SLICE_INF)
		c->due = c->now + slice;
	if (at != c->current) {
		if (c->current < MARGAY_TASKS) {
			struct place *p = place(&h, c->current);
			if (p->state == MARGAY_RUNNING)
				become(c, p, MARGAY_READY);
			p->overrun = within(p->overrun + c->late, -(__s64)SLACK, TURN);
		}
		c->current = NONE;
		if (at < MARGAY_TASKS && c->ready >> at & 1) {
			c->current = at;
			c->switches++;
		}
	}
	if (c->current >= MARGAY_TASKS)
		return 0;
	become(c, place(&h, c->current), MARGAY_RUNNING);
	return slice;
}

/* run gives the core to a task and to one of its threads. */
static inline_always void run(struct here *h, __u32 at, struct task_struct *prev, __u32 prev_at)
{
	__u64 slice = give(h->cpu, at);

	if (slice)
		run_thread(h, h->c->current, prev, prev_at, slice);
}

/* set_quantum sets the end of the quantum of the task at a place. It deducts the task's overrun,
 * but at most half of the quantum. */
static inline_always void set_quantum(struct here *h, __u32 at, __u64 quantum)
{
	struct place *p = place(h, at);

	if (quantum > LONGEST) {
		h->c->until = MARGAY_INFINITE;
		p->end = MARGAY_INFINITE;
		return;
	}
	__s64 cut = within(p->overrun, -(__s64)SLACK, quantum / 2);

	p->overrun -= cut;
	quantum -= cut;
	h->c->until = h->c->now + quantum;
	p->end = p->ran + quantum;
}

/* guest returns a place that must run without asking policies, or NONE: threads that must run to be
 * stopped, and strangers, from time to time or if there is nothing else. */
part __u32 guest(__u32 cpu, __u32 prev)
{
	struct here h;

	if (!find(&h, cpu))
		return NONE;
	struct core *c = h.c;
	__u64 stopping = c->ready & h.g->frozen;
	bool due = !(c->ready & ~c->hold) || c->now - c->served > 25 * SHARE;

	for (__u32 i = 0; i < QUEUES; i++) {
		if (stopping >> i & 1)
			return i;
		if (i < MARGAY_TASKS && place(&h, i)->serial && place(&h, i)->serial == given_place(&h, i)->serial)
			continue;
		if (due && (i == prev || scx_bpf_dsq_nr_queued(queue(cpu, i)) > 0)) {
			c->served = c->now;
			return i;
		}
	}
	return NONE;
}

/* starved returns the place of a task that has waited longer than the starvation limit and gets a
 * turn now, or NONE. It blames the decider, unless tasks had little of the core during the wait:
 * then other work had it. */
part __u32 starved(__u32 cpu)
{
	struct here h;

	if (!find(&h, cpu))
		return NONE;
	struct core *c = h.c;
	c->found = NONE;
	c->best = c->now;
	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		__u64 end = patience(&h, place(&h, i));

		if (c->ready >> i & 1 && place(&h, i)->state == MARGAY_READY && (__s64)(end - c->best) <= 0) {
			c->found = i;
			c->best = end;
		}
	}
	__u32 found = c->found;

	if (found >= MARGAY_TASKS)
		return NONE;
	if (c->decider < STARVED && c->spent - place(&h, found)->spent >= h.g->starvation_limit / 2) {
		struct event e = { .kind = EVENT_RESCUE, .who = c->decider, .epoch = c->epoch, .serial = place(&h, found)->serial };
		tell(cpu, &e);
	}
	c->rescues++;
	c->decider = STARVED;
	set_quantum(&h, found, TURN);
	return found;
}

/* hold keeps places off the core, and makes the node kernel stop their processes. */
static inline_always void hold(struct here *h, __u64 places)
{
	if (h->c->hold == places)
		return;
	h->c->hold = places;

	struct event e = { .kind = EVENT_HOLD };

	tell(h->cpu, &e);
}

/* turns selects a task without a policy: the one that has waited longest. It returns the place, or
 * NONE. */
part __u32 turns(__u32 cpu)
{
	struct here h;

	if (!find(&h, cpu))
		return NONE;
	struct core *c = h.c;

	c->decider = NOBODY;
	hold(&h, 0);
	c->found = NONE;
	c->best = ~0ull;
	for (__u32 i = 0; i < MARGAY_TASKS; i++)
		if (c->ready >> i & 1 && place(&h, i)->state == MARGAY_READY && place(&h, i)->since < c->best) {
			c->found = i;
			c->best = place(&h, i)->since;
		}
	__u32 next = c->found;

	if (next == NONE) {
		if (c->current < MARGAY_TASKS)
			set_quantum(&h, c->current, MARGAY_INFINITE);
		return c->current;
	}
	if (c->current < MARGAY_TASKS) {
		__u64 end = place(&h, c->current)->since + TURN;

		if (c->until < end)
			end = c->until;
		if (end > c->now + SLACK) { /* its turn has not ended */
			c->until = end;
			return c->current;
		}
	}
	set_quantum(&h, next, TURN);
	return next;
}

static inline_always __u32 lowest(__u64 mask)
{
	for (__u32 i = 0; i < MARGAY_TASKS; i++)
		if (mask >> i & 1)
			return i;
	return NONE;
}

#define NO_REASON (~0ull)

/* reason returns why the policies must be asked, and in the upper half the place concerned. Other
 * reasons wait for the next decision. */
part __u64 reason(__u32 cpu)
{
	struct here h;

	if (!find(&h, cpu))
		return NO_REASON;
	struct core *c = h.c;
	__u64 signals = h.g->signals, known = 0;
	__u32 why = MARGAY_TICK, target = NONE;

	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		__u32 at = c->order >> (8 * i) & 0xff;
		if (at >= MARGAY_TASKS)
			break;
		known |= 1ull << at;
	}

	/* A resumed task that does not want the core has blocked while it was held, unnoticed. */
	c->blocked |= signals >> THAWED & 0xff & known & ~c->ready;

	__u64 arrived = signals >> ARRIVED & 0xff & known;
	__u64 done = 0xffull << THAWED | (0xffull << ARRIVED & ~(arrived << ARRIVED));

	if (c->blocked) {
		why = MARGAY_BLOCK;
		target = lowest(c->blocked);
		c->blocked &= ~(1ull << (target & 7));
	} else if (signals & CHANGED) {
		why = MARGAY_CHANGE;
		done |= CHANGED;
	} else if (signals & ENDED) {
		why = MARGAY_ENDING;
		done |= ENDED;
	} else if (arrived) {
		why = MARGAY_ARRIVAL;
		target = lowest(arrived);
		done |= 1ull << (ARRIVED + (target & 7));
	} else if (c->woken) {
		why = MARGAY_WAKE;
		target = lowest(c->woken);
		c->woken &= ~(1ull << (target & 7));
	}
	done &= signals; /* newer signals wait for the next decision */
	if (done)
		__sync_fetch_and_and(&h.g->signals, ~done);
	if (target == NONE && why == MARGAY_TICK && !over(c))
		return NO_REASON;
	return (__u64)target << 32 | why;
}

/* fill writes the context for the policies. It returns the number of tasks. */
part __u32 fill(__u32 cpu, __u64 why)
{
	struct margay_sched *s = map_lookup(&contexts, &cpu);
	struct here h;

	if (!s || !find(&h, cpu))
		return 0;
	struct core *c = h.c;
	__u32 count = 0, target = why >> 32;

	s->core = h.g->core;
	s->why = why;
	s->target = MARGAY_NO_TASK;
	s->now = c->now;
	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		struct margay_task *t = &s->tasks[i];
		__u32 at = c->order >> (8 * i) & 0xff;

		if (at >= MARGAY_TASKS || count != i) {
			__builtin_memset(t, 0, sizeof *t);
			continue;
		}
		count++;
		struct place *p = place(&h, at);
		struct given_place *g = given_place(&h, at);
		t->job = g->job;
		t->rank = g->rank;
		t->messages = g->messages;
		t->state = p->state;
		t->ran = p->ran;
		t->since = p->since;
		if (at == target)
			s->target = i;
	}
	s->count = count;
	return count;
}

/* prepare returns the place of the current thread if it could continue, or NONE. */
static inline_always __u32 prepare(struct here *h, struct task_struct *prev)
{
	return prev && prev->scx.flags & SCX_TASK_QUEUED ? place_of(h, prev) : NONE;
}

/* finish ends a decision. */
static inline_always int finish(struct here *h)
{
	ask_again(h);
	return switched(h->cpu);
}

SEC("struct_ops/dispatch") int dispatch(__u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1];
	struct here h;
	__u32 cpu = ctx[0];

	if (!find(&h, cpu))
		return 0;
	__u32 prev_at = prepare(&h, prev);

	h.c->now = time_ns();
	stand(h.c);
	h.c->again = 0;
	charge(&h, h.c->now);
	look(cpu, prev_at);
	measure(&h);

	__u32 chosen = guest(cpu, prev_at);

	if (chosen != NONE) {
		h.c->guest = 1;
		if (run_thread(&h, chosen, prev, prev_at, chosen < MARGAY_TASKS && h.g->frozen >> chosen & 1 ? STOPPING : SHARE))
			return finish(&h);
	}
	chosen = starved(cpu);
	h.c->guest = chosen != NONE;
	if (chosen == NONE) {
		__u64 why = reason(cpu);

		if (why == NO_REASON) {
			chosen = h.c->current;
		} else {
			if (fill(cpu, why))
				tail_call(ctx, &policies, cpu); /* returns only without a chain */
			chosen = turns(cpu);
		}
	}
	if (chosen < MARGAY_TASKS)
		run(&h, chosen, prev, prev_at);
	return finish(&h);
}

/* ask prepares the context for the next policy of the chain, whose data is kept. */
part int ask(struct margay_sched *s, __u64 cpu, struct keep *kept)
{
	struct here h;

	if (!s || !kept || !find(&h, cpu))
		return 0;
	h.c->asked++;
	kept->begun = time_ns();
	s->quantum = MARGAY_INFINITE;
	s->hold = 0;
	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		__u32 at = h.c->order >> (8 * i) & 0xff;
		if (at >= MARGAY_TASKS)
			break;
		struct kept *k = kept_at(kept, at);
		s->tasks[i].data = k->serial == place(&h, at)->serial ? k->data : 0;
		if (h.c->hold >> at & 1)
			s->hold |= 1ull << i;
	}
	return 0;
}

/* slow counts the time of a run, and reports whether its policy runs for too long. */
static inline_always bool slow(struct here *h, struct keep *kept, __u64 who)
{
	__u64 took = time_ns() - kept->begun;

	kept->runs++;
	kept->time += took;
	if (took <= WORK) {
		if (kept->slow > 0)
			kept->slow--;
		return false;
	}
	kept->slow += SLOW;
	if (kept->slow < PATIENCE * SLOW)
		return false;
	kept->slow = 0;

	struct event e = { .kind = EVENT_SLOW, .epoch = who >> 32, .who = who, .answer = took };

	tell(h->cpu, &e);
	return true;
}

/* judge checks the answer of a policy. It returns the chosen place, or NONE. An invalid answer is a
 * fault and does not decide. The last argument has the epoch in its upper half and the index of the
 * policy in its lower. */
part __u64 judge(struct margay_sched *s, __u64 cpu, struct keep *kept, __u64 answer, __u64 who)
{
	struct here h;
	__u32 chosen = NONE, count = 0;
	__u64 held = 0;

	if (!s || !kept || !find(&h, cpu))
		return NONE;
	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		__u32 at = h.c->order >> (8 * i) & 0xff;
		if (at >= MARGAY_TASKS)
			break;
		struct kept *k = kept_at(kept, at);
		k->serial = place(&h, at)->serial;
		k->data = s->tasks[i].data;
		count++; /* s->count may be overwritten by the policy */
		if (s->hold >> i & 1)
			held |= 1ull << at;
		if (answer == i)
			chosen = at;
	}
	if (slow(&h, kept, who) || answer == MARGAY_DEFAULT)
		return NONE;
	if (chosen == NONE || held >> chosen & 1) {
		struct event e = {
			.kind = EVENT_FAULT, .epoch = who >> 32, .who = who, .answer = answer, .hold = s->hold, .count = count,
		};
		tell(cpu, &e);
		return NONE;
	}
	h.c->decider = who;
	h.c->epoch = who >> 32;
	hold(&h, held);
	return chosen;
}

/* chain asks the policies in turn until one decides, and returns the chosen place, or NONE. The
 * node kernel replaces its instructions by the code that does so (see splice in policy.go). */
static noinline __u64 chain(struct margay_sched *s, __u64 cpu)
{
	struct keep *kept = map_lookup(&keeps, &(__u32){0});
	__u64 answer = MARGAY_DEFAULT;

	asm volatile("" : "+r"(s), "+r"(cpu), "+r"(answer));
	ask(s, cpu, kept);
	return judge(s, cpu, kept, answer, answer);
}

/* obey carries out a policy's hold mask and sets the quantum of the chosen task. */
part int obey(__u32 cpu, __u32 chosen, __u64 quantum)
{
	struct here h;

	if (!find(&h, cpu))
		return 0;
	for (__u32 i = 0; i < MARGAY_TASKS; i++)
		if (h.c->hold >> i & 1)
			become(h.c, place(&h, i), MARGAY_HELD);
	set_quantum(&h, chosen, quantum);
	return 0;
}

/* policy asks the chain and gives the core to the chosen task. */
SEC("struct_ops/dispatch") int policy(__u64 *ctx)
{
	struct task_struct *prev = (void *)ctx[1];
	struct here h;
	__u32 cpu = ctx[0];
	struct margay_sched *s = map_lookup(&contexts, &cpu);

	if (!s || !find(&h, cpu))
		return 0;

	__u32 chosen = chain(s, cpu);

	if (chosen < MARGAY_TASKS)
		obey(cpu, chosen, s->quantum);
	else
		chosen = turns(cpu);
	if (chosen < MARGAY_TASKS)
		run(&h, chosen, prev, prepare(&h, prev));
	return finish(&h);
}

/* select_cpu leaves threads where they are. */
SEC("struct_ops/select_cpu") int select_cpu(__u64 *ctx)
{
	return ctx[1];
}

SEC("struct_ops/enqueue") int enqueue(__u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct here h;

	if (!find(&h, scx_bpf_task_cpu(p)))
		return 0;
	__u32 at = place_of(&h, p);

	scx_bpf_dsq_insert___v2(p, queue(h.cpu, at), SHARE, 0);
	if (at >= MARGAY_TASKS)
		return 0;

	struct place *known = place(&h, at);
	bool here = known->serial == given_place(&h, at)->serial;
	bool kick = h.c->current == at && h.c->alone;

	if (h.g->frozen >> at & 1) {
		kick = 1;
	} else if ((!here || known->state == MARGAY_BLOCKED || known->state == MARGAY_HELD) && !(h.c->hold >> at & 1)) {
		h.c->woken |= 1ull << at;
		kick = 1;
	}
	/* If none of our threads runs, either this is the thread that just did, and the core is
	 * about to decide; or another scheduling class has the core, and the thread that continues
	 * after it may have time left. The latter may also happen between a kick and its effect. */
	if (kick)
		h.c->again = 1;
	if (kick && h.c->runner != NONE)
		scx_bpf_kick_cpu(h.cpu, SCX_KICK_PREEMPT);
	return 0;
}

SEC("struct_ops/running") int running(__u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	struct here h;

	if (!find(&h, scx_bpf_task_cpu(p)))
		return 0;
	h.c->runner = place_of(&h, p);
	h.c->mark = time_ns();
	/* There may have been events while another scheduling class had the core, and this thread had
	 * time left. */
	ask_again(&h);
	return 0;
}

SEC("struct_ops/stopping") int stopping(__u64 *ctx)
{
	struct here h;

	if (!find(&h, scx_bpf_task_cpu((void *)ctx[0])))
		return 0;
	charge(&h, time_ns());
	h.c->runner = NONE;
	return 0;
}

/* init_task assigns a new thread to the task of the thread that made it. */
SEC("struct_ops/init_task") int init_task(__u64 *ctx)
{
	__s32 tid = ((struct task_struct *)ctx[0])->pid, maker = current_task()->pid;
	struct thread *of = map_lookup(&threads, &maker);

	if (tid == maker)
		return 0;
	if (of) {
		struct thread t = *of;

		map_update(&threads, &tid, &t, 0);
	}
	return 0;
}

/* disable reports a thread that has got another Linux scheduling policy. The node kernel deletes a
 * thread from `threads` before it changes the policy. But any thread can change its own, and would
 * then run before all threads of sched_ext. */
SEC("struct_ops/disable") int disable(__u64 *ctx)
{
	struct task_struct *p = (void *)ctx[0];
	__s32 tid = p->pid;
	struct thread *t = map_lookup(&threads, &tid);

	if (!t || p->flags & PF_EXITING)
		return 0;

	struct event e = { .kind = EVENT_LEFT, .answer = tid, .serial = t->serial };

	return tell(t->cpu, &e);
}

/* forked reports a new thread of a task that is not in sched_ext, and so would run before all
 * threads that are: Linux copied the maker's scheduling policy before the node kernel changed that,
 * or while the maker had left. A thread that begins before its maker is in `threads` is not
 * reported, but Linux lists it by then, so the node kernel finds it when it lists the threads
 * again. */
SEC("tp_btf/sched_process_fork") int forked(__u64 *ctx)
{
	struct task_struct *p = (void *)ctx[1];
	__s32 tid = p->pid, maker = ((struct task_struct *)ctx[0])->pid;
	struct thread *of = map_lookup(&threads, &maker);

	if (!of)
		return 0;

	struct thread t = *of;

	map_update(&threads, &tid, &t, 0);
	if (p->policy == SCHED_EXT)
		return 0;

	struct event e = { .kind = EVENT_BORN, .answer = tid, .serial = t.serial };

	return tell(t.cpu, &e);
}

SEC("struct_ops/exit_task") int exit_task(__u64 *ctx)
{
	__s32 tid = ((struct task_struct *)ctx[0])->pid;

	map_delete(&threads, &tid);
	return 0;
}

SEC("struct_ops.s/init") int init(void)
{
	for (__u32 cpu = 0; cpu < MAX_CPUS && cpu < cpus; cpu++)
		for (__u32 place = 0; place < QUEUES; place++) {
			int err = scx_bpf_create_dsq(queue(cpu, place), -1);
			if (err)
				return err;
		}
	return 0;
}

SEC("struct_ops.s/exit") int ended(__u64 *ctx)
{
	struct scx_exit_info *info = (void *)ctx[0];
	__u32 zero = 0;
	struct ending *e = map_lookup(&endings, &zero);
	struct event event = { .kind = EVENT_EXIT };

	if (!e)
		return 0;
	e->code = info->exit_code;
	read_kernel_string(e->reason, sizeof e->reason, info->reason);
	read_kernel_string(e->message, sizeof e->message, info->msg);
	e->kind = info->kind; /* last: the node kernel reads the others when this is not 0 */
	return tell(MAX_CPUS, &event);
}

/* kick makes a core decide again. The node kernel calls it. Linux drops the kick if a thread of its
 * default scheduler has the core: then the next thread of ours asks again. */
SEC("syscall") int kick(__u32 *cpu)
{
	struct here h;

	if (find(&h, *cpu))
		h.c->again = 1;
	scx_bpf_kick_cpu(*cpu, SCX_KICK_PREEMPT);
	return 0;
}

SEC(".struct_ops.link") struct sched_ext_ops margay = {
	.select_cpu = (void *)select_cpu,
	.enqueue = (void *)enqueue,
	.dispatch = (void *)dispatch,
	.running = (void *)running,
	.stopping = (void *)stopping,
	.disable = (void *)disable,
	.init_task = (void *)init_task,
	.exit_task = (void *)exit_task,
	.init = (void *)init,
	.exit = (void *)ended,
	.flags = SCX_OPS_SWITCH_PARTIAL | SCX_OPS_ENQ_LAST | SCX_OPS_ENQ_MIGRATION_DISABLED,
	.timeout_ms = 30000,
	.name = "margay",
};

char _license[] SEC("license") = "Dual BSD/GPL";
