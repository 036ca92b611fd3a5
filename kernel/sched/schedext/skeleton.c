//go:build ignore

/* The skeleton that gives application cores to tasks inside Linux (package schedext). It keeps the queues, the clock and the floor;
 * who runs is decided by the chain of policies of the core, which is spliced into `policy` before that is loaded and reached by a
 * tail call, or by turns where there is none.
 *
 * A task of the node kernel is a process, those of sched_ext are threads. Each place of a core has a queue of the threads of its
 * process that could run and do not. Threads of a process take turns within the time of the process.
 *
 * Nothing here is locked. What is called for a core (all but init_task, exit_task, init, exit and kick) is called with the lock of that
 * core's run queue held, and touches nothing of other cores: a thread that is not on the core of its task, which happens when it
 * changes its own affinity, is a stranger where it is. kick sets `again` and no more. The node kernel writes `given` and nothing else,
 * the skeleton all the rest; of `given` it only clears bits of signals, and atomically. */
#include "sched_ext.h"

#define MILLISECOND 1000000ull
#define TURN (10 * MILLISECOND)         /* of a task where nobody has an opinion, and of one that was rescued */
#define SHORTEST (MILLISECOND / 10)     /* quantum */
#define LONGEST (3600000 * MILLISECOND) /* quantum that is not infinite */
#define SLACK (MILLISECOND / 2)         /* a quantum is over so long before its end: the next tick is further away */
#define SHARE (4 * MILLISECOND)         /* of a thread while others of its process wait */
#define STOPPING MILLISECOND            /* what a thread is given to stop in */
#define WORK (MILLISECOND / 2)          /* what a policy may take for an answer */
#define PATIENCE 4                      /* answers in a row for which it took longer are a fault: one may be a host's pause */

#define MAX_CPUS 512
#define NONE 0xffu
#define STRANGERS MARGAY_TASKS /* the place of threads that are nobody's */
#define QUEUES (MARGAY_TASKS + 1)
#define NOBODY 0xffffffffu /* who decided: the turns */
#define THE_FLOOR 0xfffffffeu

const volatile __u32 cpus = 1;

/* Bits of signals. The first two have one for each place. */
#define ARRIVED 0
#define THAWED 8
#define ENDED (1ull << 16)
#define CHANGED (1ull << 17)

struct given_place {
	__u32 serial; /* of the task, never given twice; 0: none */
	__u32 job;
	__u32 rank;
	__u32 messages;
};

/* What the node kernel says about a core. */
struct given {
	__u64 order; /* the place of each task in the order in which they came, a byte each; the first that is no place ends it */
	__u64 signals;
	__u64 frozen; /* places whose processes have been told to stop */
	__u64 floor;  /* for so long a task can be kept waiting that is ready and not held */
	__u32 core;
	__u32 watched; /* somebody wants to know who gets it */
	struct given_place places[MARGAY_TASKS];
};

struct place {
	__u32 serial; /* of the task that this is about */
	__u32 state;
	__u64 ran;
	__u64 since;
	__u64 spent; /* what the core had spent on tasks then */
	__u64 end;   /* what it is to have run when its quantum is over, MARGAY_INFINITE if that is */
	__s64 owes;  /* by how much quanta of its turns were too long */
};

/* What the skeleton knows about a core. Masks have a bit for each place. */
struct core {
	__u64 order;   /* as it was when the policy was asked */
	__u64 ready;   /* has threads that could run */
	__u64 hold;    /* is kept off the core */
	__u64 woken;   /* nobody has been asked about that yet */
	__u64 blocked; /* nor about that */
	__u64 now;
	__u64 until;  /* the end of the quantum */
	__u64 mark;   /* until then processor time has been counted */
	__u64 spent;  /* all that was counted */
	__u64 served; /* when a stranger was */
	__u64 switches;
	__u64 asked;
	__u64 rescues;
	__u64 lost;    /* events that found no room */
	__u32 current; /* the place that has the core, or NONE */
	__u32 runner;  /* the place whose thread runs, or NONE */
	__u32 alone;   /* that thread has all the time of its process */
	__u32 decider; /* in the chain, or NOBODY, or THE_FLOOR */
	__u32 epoch;   /* of its chain */
	__u32 guest;   /* what runs is no business of policies, and they are not asked before it is over */
	__u32 again;   /* something happened while no thread of ours ran, for which the core is to decide anew */
	__u32 told;    /* serial of the task that had the core last */
	__s64 late;    /* by how much the quantum that is over was too long, should the core change hands */
	struct place places[MARGAY_TASKS];
};

struct thread {
	__u32 serial;
	__u16 cpu;
	__u16 place;
};

/* What a policy has left in the context about whoever is at a place. */
struct kept {
	__u32 serial;
	__u32 unused;
	__u64 data;
};

/* What the node kernel is told. */
#define EVENT_HOLD 0   /* whom to stop or let go on has changed */
#define EVENT_FAULT 1  /* the policy's answer makes no sense */
#define EVENT_RESCUE 2 /* the policy has let somebody wait for too long */
#define EVENT_EXIT 3   /* the skeleton is no longer in force */
#define EVENT_SLOW 4   /* the policy works for too long: answer has the nanoseconds */
#define EVENT_SWITCH 5 /* the core goes to the task serial, or to nobody, and who has decided so; answer has the time */
#define EVENT_LEFT 6   /* the thread answer of the task serial is none of sched_ext's any more */

struct event {
	__u32 kind;
	__u32 cpu;
	__u32 epoch;
	__u32 who; /* in the chain */
	__u64 answer;
	__u64 hold;
	__u32 count;
	__u32 serial; /* of the task that it is about */
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
/* A policy has one for each core, of which one element is used. This one is none's. */
struct keep {
	struct kept places[MARGAY_TASKS];
	__u64 runs;
	__u64 time;  /* that they took */
	__u64 begun; /* when the last was */
	__u64 slow;  /* runs in a row that took too long */
};
struct { MAP_ARRAY; MAP_VALUE(struct keep); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } keeps SEC(".maps");
struct { MAP_PROGRAMS; MAP_VALUE(__u32); __u32 *key; MAP_ENTRIES(1); } policies SEC(".maps");
/* By thread id. Linux's storage that belongs to a task would be shorter, but has no memory on processors without cmpxchg16b. */
struct { MAP_HASH; MAP_VALUE(struct thread); MAP_ENTRIES(32768); } threads SEC(".maps");
struct { MAP_RING; MAP_ENTRIES(65536); } events SEC(".maps");
struct { MAP_ARRAY; MAP_VALUE(struct ending); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } endings SEC(".maps");

/* part marks functions that Linux verifies once and for themselves, not on every way that leads to them. What they know of each other
 * are numbers. */
#define part noinline

/* A core while something happens on it. */
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

/* place and given_place return what is known of a place. The verifier is to see that the index is good, which the compiler would
 * not do twice. */
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

/* place_of returns the place of a thread on a core. */
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
		h.c->lost++;
	return 0;
}

/* charge counts the time of the thread that runs. */
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
	}
}

/* switched tells who has the core, if that is new and somebody wants to know. */
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

/* ask_again has the core decide anew if there is something that nobody has been asked about. Whoever gives a signal leaves the core
 * alone when the task that it is about has the core: so signals are looked at after that was written. */
static inline_always void ask_again(struct here *h)
{
	__u64 signals = __sync_fetch_and_or(&h->g->signals, 0);

	if (!h->c->guest && (h->c->again | h->c->woken | h->c->blocked | signals))
		scx_bpf_kick_cpu(h->cpu, SCX_KICK_PREEMPT);
}

/* look finds out what has become of the tasks. prev is the place of the thread that has the core and could go on, or NONE. */
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

/* over reports whether the quantum is. */
static inline_always bool over(struct core *c)
{
	return c->until != MARGAY_INFINITE && c->until <= c->now + SLACK;
}

static inline_always __s64 within(__s64 value, __s64 least, __s64 most)
{
	return value < least ? least : value > most ? most : value;
}

/* measure finds out by how much the quantum of the task that has the core was too long, if it is over. Quanta end when Linux's clock
 * ticks, and how long after their end that is depends on when they began: it may be the same task that has more every time. So
 * what a turn was too long is taken from the next one of that task. It may have been too short by SLACK. */
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

/* run_thread gives the core to a thread of a place for so long: to the one that has waited for the longest time, or to the one that
 * has the core if it is the only one. */
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

/* give makes the core a task's. It returns for how long its threads can run: for the rest of its quantum, or as long as nobody else has
 * waited for longer than the floor. When the task cannot run that is 0. */
part __u64 give(__u32 cpu, __u32 at)
{
	struct here h;

	if (!find(&h, cpu))
		return 0;
	struct core *c = h.c;
	__u64 slice = c->until == MARGAY_INFINITE ? SCX_SLICE_INF : c->until > c->now ? c->until - c->now : 0;

	for (__u32 i = 0; i < MARGAY_TASKS; i++) {
		struct place *p = place(&h, i);
		if (i == at || !(c->ready >> i & 1) || p->state != MARGAY_READY)
			continue;
		__u64 end = p->since + h.g->floor;
		__u64 left = end > c->now ? end - c->now : 0;
		if (left < slice)
			slice = left;
	}
	if (slice < SHORTEST)
		slice = SHORTEST;
	if (at != c->current) {
		if (c->current < MARGAY_TASKS) {
			struct place *p = place(&h, c->current);
			if (p->state == MARGAY_RUNNING)
				become(c, p, MARGAY_READY);
			p->owes = within(p->owes + c->late, -(__s64)SLACK, TURN);
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

/* run gives the core to a task, and to a thread of it. */
static inline_always void run(struct here *h, __u32 at, struct task_struct *prev, __u32 prev_at)
{
	__u64 slice = give(h->cpu, at);

	if (slice)
		run_thread(h, h->c->current, prev, prev_at, slice);
}

/* set_quantum says when the core is to change hands at the latest, which is to be the task's at a place. Half of the quantum is the
 * task's, whatever it owes. */
static inline_always void set_quantum(struct here *h, __u32 at, __u64 quantum)
{
	struct place *p = place(h, at);

	if (quantum > LONGEST) {
		h->c->until = MARGAY_INFINITE;
		p->end = MARGAY_INFINITE;
		return;
	}
	__s64 cut = within(p->owes, -(__s64)SLACK, quantum / 2);

	p->owes -= cut;
	quantum -= cut;
	h->c->until = h->c->now + quantum;
	p->end = p->ran + quantum;
}

/* guest returns the place of what is to run and is not the business of policies, or NONE: threads that have to run to be stopped, and
 * strangers, now and then or when there is nothing else. */
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

/* starved returns the place of whoever has waited for longer than the floor and is to have a turn now, or NONE. Who has decided answers
 * for it, unless no task had much of the core meanwhile: then it was somebody else who had it. */
part __u32 starved(__u32 cpu)
{
	struct here h;

	if (!find(&h, cpu))
		return NONE;
	struct core *c = h.c;
	__u32 found = NONE;
	__u64 since = c->now - h.g->floor;

	for (__u32 i = 0; i < MARGAY_TASKS; i++)
		if (c->ready >> i & 1 && place(&h, i)->state == MARGAY_READY && (__s64)(place(&h, i)->since - since) <= 0) {
			found = i;
			since = place(&h, i)->since;
		}
	if (found >= MARGAY_TASKS)
		return NONE;
	if (c->decider < THE_FLOOR && c->spent - place(&h, found)->spent >= h.g->floor / 2) {
		struct event e = { .kind = EVENT_RESCUE, .who = c->decider, .epoch = c->epoch, .serial = place(&h, found)->serial };
		tell(cpu, &e);
	}
	c->rescues++;
	c->decider = THE_FLOOR;
	set_quantum(&h, found, TURN);
	return found;
}

/* hold keeps places off the core, and has the node kernel stop their processes. */
static inline_always void hold(struct here *h, __u64 places)
{
	if (h->c->hold == places)
		return;
	h->c->hold = places;

	struct event e = { .kind = EVENT_HOLD };

	tell(h->cpu, &e);
}

/* turns is what happens where nobody has an opinion: whoever has waited for the longest time is next. It returns the place, or NONE. */
part __u32 turns(__u32 cpu)
{
	struct here h;

	if (!find(&h, cpu))
		return NONE;
	struct core *c = h.c;
	__u32 next = NONE;
	__u64 since = ~0ull;

	c->decider = NOBODY;
	hold(&h, 0);
	for (__u32 i = 0; i < MARGAY_TASKS; i++)
		if (c->ready >> i & 1 && place(&h, i)->state == MARGAY_READY && place(&h, i)->since < since) {
			next = i;
			since = place(&h, i)->since;
		}
	if (next == NONE) {
		if (c->current < MARGAY_TASKS)
			set_quantum(&h, c->current, MARGAY_INFINITE);
		return c->current;
	}
	if (c->current < MARGAY_TASKS) {
		__u64 end = place(&h, c->current)->since + TURN;

		if (c->until < end)
			end = c->until;
		if (end > c->now + SLACK) { /* it is in the middle of its turn */
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

/* reason finds out why the policy is to be asked, and, in the upper half, about whom. What else there is to ask about is for the next
 * time. */
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

	/* Whoever was let go on and does not want the core had been waiting for something while it was held, and nobody could see. */
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
	done &= signals; /* what has come meanwhile is for the next time */
	if (done)
		__sync_fetch_and_and(&h.g->signals, ~done);
	if (target == NONE && why == MARGAY_TICK && !over(c))
		return NO_REASON;
	return (__u64)target << 32 | why;
}

/* fill writes down what the policy is to know. It returns how many tasks there are. */
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

/* prepare finds out where everything stands. It returns the place of the thread that has the core and could go on, or NONE. */
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
				tail_call(ctx, &policies, cpu); /* goes on if there is none */
			chosen = turns(cpu);
		}
	}
	if (chosen < MARGAY_TASKS)
		run(&h, chosen, prev, prev_at);
	return finish(&h);
}

/* ask makes the context ready for the next of the chain, which has kept that. */
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

/* slow counts what a run took, and reports whether its policy works for too long. */
static inline_always bool slow(struct here *h, struct keep *kept, __u64 who)
{
	__u64 took = time_ns() - kept->begun;

	kept->runs++;
	kept->time += took;
	if (took <= WORK) {
		kept->slow = 0;
		return false;
	}
	if (++kept->slow < PATIENCE)
		return false;
	kept->slow = 0;

	struct event e = { .kind = EVENT_SLOW, .epoch = who >> 32, .who = who, .answer = took };

	tell(h->cpu, &e);
	return true;
}

/* judge looks at what one of the chain has answered. It returns the place that was chosen, or NONE. What makes no sense is a fault,
 * and no opinion. who has the epoch in its upper half. */
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
		count++; /* what the context says may be what the policy has written */
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

/* chain asks one policy after the other until one has an opinion, and returns the place that it has chosen, or NONE. Its
 * instructions are replaced by those that do that. */
static noinline __u64 chain(struct margay_sched *s, __u64 cpu)
{
	struct keep *kept = map_lookup(&keeps, &(__u32){0});
	__u64 answer = MARGAY_DEFAULT;

	asm volatile("" : "+r"(s), "+r"(cpu), "+r"(answer));
	ask(s, cpu, kept);
	return judge(s, cpu, kept, answer, answer);
}

/* obey notes who is held, and for how long the core is given to whom. */
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

/* policy does what the chain decides. */
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
	/* When no thread of ours runs, this may be the one that did, and the core decides right now; or the core is not ours for a
	 * while, and the thread that goes on after that may have any time left. That may also come between a kick and its effect. */
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
	/* Something may have happened while the core was not ours, and this thread had time left. */
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

/* init_task has a new thread, which its parent makes, belong to the same task. */
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

/* disable is told that a thread has another scheduling policy of Linux's. The node kernel has made the thread nobody's before it does
 * that; any thread may do it to itself, and would come before all that stay. */
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
	e->kind = info->kind;
	e->code = info->exit_code;
	read_kernel_string(e->reason, sizeof e->reason, info->reason);
	read_kernel_string(e->message, sizeof e->message, info->msg);
	return tell(MAX_CPUS, &event);
}

/* kick has a core decide anew. The node kernel calls it. Linux forgets the kick when a thread of its default scheduler has the core: then
 * the next one of ours asks again. */
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
