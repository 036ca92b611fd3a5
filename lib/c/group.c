/* Groups of ranks and their collective operations under way. The Go package lib/collective has the
 * same state machines and explains them; wire.Call in kernel/abi/wire describes the chunks. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "steps.h"
#include "wire.h"

/* How long a rank waits for another before it probes whether that has ended, in milliseconds. It
 * doubles the time with each probe. */
#define FIRST_PATIENCE 250
#define MOST_PATIENCE 3600000

#define LOOKS 256 /* looks at calls after which time is taken to probe */

/* The parts of a handle: index + 1 in the table, and a number of its use. */
#define HANDLE_BITS 9
#define MOST_USES ((1u << (32 - HANDLE_BITS)) - 2)

struct chunk {
	uint64_t args[2];
	size_t length;
	char bytes[MARGAY_MAX_PAYLOAD];
};

/* Another rank of a group. */
struct peer {
	uint32_t flying; /* chunks sent to it and not returned */
	uint32_t taken;  /* chunks that came from it, were taken and not returned */
	uint32_t first;  /* of the chunks that were not taken */
	uint32_t count;  /* of them */
	size_t used;     /* bytes of the first one that were taken */
	int asks;        /* the call in which it awaits this rank, and has got no answer; 0: none */
	struct chunk chunks[WIRE_COLLECTIVE_WINDOW];
};

/* Where another rank is: in a call, or in a barrier of the job if its number is 0 (wire.Where). */
struct where {
	int rank;
	uint64_t args[2];
};

/* A group, and this rank's part in it. */
struct group {
	uint64_t id;
	margay_group handle;
	int size, own; /* own: place of this rank */
	int near;      /* it is on one node */
	int *ranks;    /* by place; NULL: as in the job */
	int *places;   /* by rank, -1: it is not in the group */
	struct peer **peers; /* by place; NULL: nothing was sent to it or came from it */
	uint32_t number;     /* of the last call */
	struct call *first, *last; /* calls that are not over, in the order of starting */
	uint64_t finished[2];      /* the last call that is over */
	struct group *next;        /* with calls that are not over */
	struct part *part;         /* of commit.c */
	int is_broken;
	char broken[512]; /* why no call is possible any more */
	int patience;     /* ms; 0: the first call has done a step since margay_in_probe looked */
	int64_t due;      /* when the rank that it awaits is probed */

	/* For the errors of calls that do not match. Each where holds if its flag is set. */
	int asked;                 /* a peer asks */
	int clashes, parts, early; /* flags */
	struct where clash;        /* whose call differs from this rank's, and has broken the group */
	uint64_t clash_own[2];     /* this rank's call of the clash */
	struct where apart;        /* the rank that the first call awaits, in a barrier of the job */
	struct where ahead;        /* a rank in a call that this one has not started */
};

static struct {
	struct group world;
	struct group *table[MARGAY_MAX_GROUPS];
	struct group *busy; /* groups with calls that are not over */
	uint32_t uses;      /* of entries of the table */
	uint16_t drawn;     /* number that was drawn last for a new group */
	int advancing;      /* a function of the application may run */
	int asked;          /* a rank wants to know where this one is */
	int news;           /* a message has come since the groups have advanced, or they wait for room */
	unsigned looks;     /* at calls */
	char *spare;        /* scratch memory of SPARE bytes; NULL: it is in use, or there is none */
} state;

#define SPARE (WIRE_MOST_SMALL * MARGAY_MAX_PAYLOAD)

static const char *const kinds[] = {"", "broadcast", "reduce", "all-reduce", "gather", "all-gather", "all-to-all", "scan", "barrier", "split"};
static const char *const types[] = {"bytes", "int32", "int64", "uint32", "uint64", "float32", "float64"};
static const char *const ops[] = {"", "sum", "min", "max", "and", "or", "xor", "a function"};

const char *margay_in_kind(int kind) { return kinds[kind]; }
const char *margay_in_type(int type) { return types[type]; }
const char *margay_in_op(int op) { return ops[op]; }

static uint64_t group_of(const uint64_t args[2]) { return args[0] & ((UINT64_C(1) << 40) - 1); }
static int kind_of(const uint64_t args[2]) { return args[1] >> 52 & 15; }
static int type_of(const uint64_t args[2]) { return args[1] >> 56 & 15; }
static int op_of(const uint64_t args[2]) { return args[1] >> 60; }
static uint64_t length_of(const uint64_t args[2]) { return args[1] & WIRE_MAX_CALL_LENGTH; }
static int number_of(const uint64_t args[2]) { return args[1] >> 40 & WIRE_MAX_CALL_NUMBER; }

static uint64_t args0(uint64_t group, int root) { return group | (uint64_t)root << 40; }

static uint64_t args1(uint32_t number, int kind, int type, int op, uint64_t length)
{
	return length | (uint64_t)number << 40 | (uint64_t)kind << 52 | (uint64_t)type << 56 | (uint64_t)op << 60;
}

static int is_rooted(int kind) { return kind == WIRE_CALL_BROADCAST || kind == WIRE_CALL_REDUCE || kind == WIRE_CALL_GATHER; }

/* describe describes a call for an error. */
static void describe(const uint64_t args[2], char *text, size_t size)
{
	int n = snprintf(text, size, "call %d, %s", number_of(args), kinds[kind_of(args)]);
	if (kind_of(args) < WIRE_CALL_BARRIER)
		n += snprintf(text + n, size - n, " of %llu bytes", (unsigned long long)length_of(args));
	if (op_of(args))
		n += snprintf(text + n, size - n, " by %s of %s", ops[op_of(args)], types[type_of(args)]);
	if (is_rooted(kind_of(args)))
		snprintf(text + n, size - n, " with root %u", (uint32_t)(args[0] >> 40));
}

/* is_sound reports whether the arguments of a message with so much payload make sense. */
static int is_sound(const uint64_t args[2], size_t payload)
{
	int kind = kind_of(args), data = kind >= WIRE_CALL_BROADCAST && kind <= WIRE_CALL_SPLIT;
	if (kind == WIRE_CALL_WHERE)
		return payload > 0 && payload <= WIRE_MAX_WHERES * WIRE_WHERE_SIZE && payload % WIRE_WHERE_SIZE == 0 && !(args[0] >> 40);
	if (kind < WIRE_CALL_BROADCAST || kind > WIRE_CALL_PROBE || type_of(args) > MARGAY_FLOAT64 || op_of(args) > WIRE_OP_USER)
		return 0;
	if (args[0] >> 40 >= (uint64_t)margay_size())
		return 0;
	return data == (payload > 0) && payload <= MARGAY_MAX_PAYLOAD && (!data || length_of(args) > 0);
}

/* world returns the group of all ranks, NULL without memory. */
static struct group *world(void)
{
	struct group *g = &state.world;
	if (!g->peers) {
		g->size = margay_size();
		g->own = margay_rank();
		g->near = margay_nodes() == 1;
		g->peers = calloc(g->size, sizeof *g->peers);
	}
	return g->peers ? g : NULL;
}

static int rank_at(const struct group *g, int place) { return g->ranks ? g->ranks[place] : place; }

/* peer_at returns the state of another rank, NULL without memory. */
static struct peer *peer_at(struct group *g, int place)
{
	if (!g->peers[place])
		g->peers[place] = calloc(1, sizeof *g->peers[place]);
	return g->peers[place];
}

/* with_id returns this rank's group of a number, NULL if it has freed it. */
static struct group *with_id(uint64_t id)
{
	if (!id)
		return world();
	for (int i = 0; i < MARGAY_MAX_GROUPS; i++)
		if (state.table[i] && state.table[i]->id == id)
			return state.table[i];
	return NULL;
}

/* ---- Calls that do not match (lib/collective/whereabouts.go) ---- */

/* describe_where describes where a rank is, for an error. */
static void describe_where(const struct where *w, char *text, size_t size)
{
	if (!number_of(w->args)) {
		snprintf(text, size, "rank %d is in a barrier of the job", w->rank);
		return;
	}
	int n = snprintf(text, size, "rank %d is in ", w->rank);
	describe(w->args, text + n, size - n);
}

/* own_call returns this rank's call of a number, NULL if it has not started it or has forgotten
 * it. */
static const uint64_t *own_call(const struct group *g, int number)
{
	for (const struct call *c = g->first; c; c = c->next)
		if (number_of(c->args) == number)
			return c->args;
	return number_of(g->finished) == number ? g->finished : NULL;
}

/* is_ahead reports whether this rank has not started the call of a number. */
static int is_ahead(const struct group *g, int number)
{
	int ahead = (number - (int)g->number + WIRE_MAX_CALL_NUMBER) % WIRE_MAX_CALL_NUMBER;
	return ahead > 0 && ahead <= WIRE_MAX_CALL_NUMBER / 2;
}

/* mismatch fails because of the calls of another rank and of this one. */
static int mismatch(const struct where *w, const uint64_t args[2])
{
	char theirs[192], ours[160];
	describe_where(w, theirs, sizeof theirs);
	describe(args, ours, sizeof ours);
	return margay_in_fail("the ranks of the job call different collective operations: %s; this rank is in %s", theirs, ours);
}

static void break_group(struct group *g);

/* ask notes that another rank wants to know where this one is. */
static void ask(struct group *g, struct peer *p, int number)
{
	if (!number)
		return;
	p->asks = number;
	state.asked = g->asked = 1;
}

/* clash notes the calls of another rank and of this one, which differ. */
static void clash(struct group *g, const struct where *w, const uint64_t own[2])
{
	g->clashes = 1;
	g->clash = *w;
	memcpy(g->clash_own, own, sizeof g->clash_own);
}

/* differ breaks the group because of the calls of another rank and of this one. The peer gets this
 * rank's. */
static void differ(struct group *g, struct peer *p, const struct where *w, const uint64_t own[2])
{
	clash(g, w, own);
	ask(g, p, number_of(g->clash_own));
	mismatch(w, g->clash_own);
	break_group(g);
}

/* awaits reports whether the first call awaits a rank. */
static int awaits(const struct group *g, int rank) { return g->first && rank_at(g, g->first->step.place) == rank; }

/* compare compares where a rank is with where this one is. The peer has said it, and gets this
 * rank's call if the two differ. */
static void compare(struct group *g, struct peer *p, const struct where *w)
{
	const uint64_t *own = own_call(g, number_of(w->args));
	if (!number_of(w->args)) {
		if (!awaits(g, w->rank) || g->parts)
			return;
		g->parts = 1;
		g->apart = *w;
		ask(g, p, number_of(g->first->args));
	} else if (!own && is_ahead(g, number_of(w->args))) {
		g->early = 1;
		g->ahead = *w;
		/* What it sent in earlier calls came before this message, and is used. */
		if (g->peers[g->places ? g->places[w->rank] : w->rank] == p && awaits(g, w->rank) && !p->count)
			differ(g, p, w, g->first->args);
	} else if (own && memcmp(own, w->args, sizeof w->args) != 0 && !g->clashes) {
		differ(g, p, w, own);
	}
}

/* learn takes a payload about where ranks are, from the one at a place. */
static int learn(struct group *g, int place, const char *payload, size_t length)
{
	struct peer *p = g->peers[place];
	int broken = length > WIRE_WHERE_SIZE; /* at the sender */
	struct where first = {0};
	for (; length > 0; payload += WIRE_WHERE_SIZE, length -= WIRE_WHERE_SIZE) {
		uint64_t rank;
		struct where w;
		memcpy(&rank, payload, sizeof rank);
		memcpy(w.args, payload + sizeof rank, sizeof w.args);
		int kind = kind_of(w.args);
		if (rank >= (uint64_t)margay_size() || (g->places && g->places[rank] < 0) || group_of(w.args) != g->id)
			return -1;
		if (kind < WIRE_CALL_BROADCAST || kind > WIRE_CALL_SPLIT || type_of(w.args) > MARGAY_FLOAT64 || op_of(w.args) > WIRE_OP_USER)
			return -1;
		if (w.args[0] >> 40 >= (uint64_t)g->size)
			return -1;
		w.rank = rank;
		if (!number_of(first.args))
			first = w;
		compare(g, p, &w);
	}
	if (broken && !g->clashes && awaits(g, rank_at(g, place)) && !p->count)
		differ(g, p, &first, g->first->args);
	return 0;
}

static char *append_where(char *at, int rank, const uint64_t args[2])
{
	uint64_t words[] = {rank, args[0], args[1]};
	memcpy(at, words, sizeof words);
	return at + sizeof words;
}

/* whereabouts stores what a rank wants to know that awaits this one in the call of a number, and
 * returns its length. */
static size_t whereabouts(const struct group *g, int number, char *payload)
{
	const uint64_t *own = own_call(g, number);
	uint64_t barrier[] = {args0(g->id, 0), args1(0, WIRE_CALL_BARRIER, 0, 0, 0)};
	char *at = payload;
	if (g->clashes) { /* the calls that differ, which the rank may have left behind */
		at = append_where(at, margay_rank(), g->clash_own);
		at = append_where(at, g->clash.rank, g->clash.args);
	} else if (own) {
		at = append_where(at, margay_rank(), own);
	} else if (!is_ahead(g, number)) { /* the call is over here, and another one, too */
		at = append_where(at, margay_rank(), g->first ? g->first->args : g->finished);
	} else if (margay_in_meets()) {
		at = append_where(at, margay_rank(), barrier);
	}
	return at - payload;
}

static int post(int rank, uint64_t arg0, uint64_t arg1, const void *data, size_t length);

/* answer sends the answers of a group to ranks that have asked where this one is, while there is
 * room. */
static void answer(struct group *g)
{
	char payload[WIRE_MAX_WHERES * WIRE_WHERE_SIZE];
	g->asked = 0;
	for (int place = 0; place < g->size; place++) {
		struct peer *p = g->peers[place];
		size_t length = p && p->asks ? whereabouts(g, p->asks, payload) : 0;
		/* A rank that has ended needs no answer. */
		if (length && !post(rank_at(g, place), args0(g->id, 0), args1(0, WIRE_CALL_WHERE, 0, 0, 0), payload, length))
			g->asked = state.asked = 1;
		else if (p)
			p->asks = 0;
	}
}

static void answer_all(void)
{
	state.asked = 0;
	if (state.world.asked)
		answer(&state.world);
	for (int i = 0; i < MARGAY_MAX_GROUPS; i++)
		if (state.table[i] && state.table[i]->asked)
			answer(state.table[i]);
}

/* early describes a rank in a call of a group that this rank has not started, and returns 0 if none
 * is known. */
static int early(const struct group *g, char *text, size_t size)
{
	if (g->early && is_ahead(g, number_of(g->ahead.args))) {
		describe_where(&g->ahead, text, size);
		return 1;
	}
	for (int place = 0; g->peers && place < g->size; place++) {
		const struct peer *p = g->peers[place];
		if (!p || !p->count || !is_ahead(g, number_of(p->chunks[p->first].args)))
			continue;
		struct where w = {rank_at(g, place), {p->chunks[p->first].args[0], p->chunks[p->first].args[1]}};
		describe_where(&w, text, size);
		return 1;
	}
	return 0;
}

int margay_in_early(char *text, size_t size)
{
	int known = early(&state.world, text, size);
	for (int i = 0; !known && i < MARGAY_MAX_GROUPS; i++)
		known = state.table[i] && early(state.table[i], text, size);
	return known;
}

int margay_in_arrive(const struct margay_am *m)
{
	if (m->source < 0 || m->source >= margay_size() || !is_sound(m->args, m->length))
		return -1;
	struct group *g = with_id(group_of(m->args));
	state.news = 1;
	if (!g)
		return 0;
	int place = g->places ? g->places[m->source] : m->source;
	struct peer *p = place < 0 ? NULL : peer_at(g, place);
	if (!p)
		return -1;
	if (kind_of(m->args) == WIRE_CALL_PROBE) {
		ask(g, p, number_of(m->args));
		return 0;
	}
	if (kind_of(m->args) == WIRE_CALL_WHERE)
		return learn(g, place, m->payload, m->length);
	if (kind_of(m->args) == WIRE_CALL_CREDIT) {
		if (length_of(m->args) > p->flying)
			return -1;
		p->flying -= length_of(m->args);
		return 0;
	}
	if (p->count + p->taken >= WIRE_COLLECTIVE_WINDOW)
		return -1;
	struct chunk *c = &p->chunks[(p->first + p->count++) % WIRE_COLLECTIVE_WINDOW];
	memcpy(c->args, m->args, sizeof c->args);
	memcpy(c->bytes, m->payload, m->length);
	c->length = m->length;
	return 0;
}

/* ---- Steps ---- */

/* post sends a message and returns 1, 0 if there is no room, or -1. */
static int post(int rank, uint64_t arg0, uint64_t arg1, const void *data, size_t length)
{
	for (;;) {
		int sent = margay_in_post(rank, WIRE_HANDLER_COLLECTIVE, arg0, arg1, data, length);
		if (sent || !margay_in_room(rank, WIRE_HANDLER_COLLECTIVE, length)) {
			state.news |= !sent;
			return sent;
		}
	}
}

/* send sends for a step and returns 1 when it is done, 0 if it has to wait, or -1. */
static int send(struct group *g, struct call *c, struct peer *p, int rank)
{
	struct step *s = &c->step;
	while (s->length > 0) {
		size_t n = steps_least(s->length, MARGAY_MAX_PAYLOAD);
		int sent = p->flying < WIRE_COLLECTIVE_WINDOW ? post(rank, c->args[0], c->args[1], s->data, n) : 0;
		if (sent <= 0)
			return sent;
		p->flying++;
		s->data += n;
		s->length -= n;
		g->patience = 0;
	}
	return 1;
}

/* take moves data of the first chunk of a rank to the room of a step, or fails if it is of another
 * call. */
static int take(struct group *g, struct call *c, struct peer *p, int rank)
{
	struct step *s = &c->step;
	struct chunk *first = &p->chunks[p->first];
	if (memcmp(first->args, c->args, sizeof first->args) != 0) {
		clash(g, &(struct where){rank, {first->args[0], first->args[1]}}, c->args);
		ask(g, p, number_of(c->args));
		return mismatch(&g->clash, c->args);
	}
	size_t n = steps_least(first->length - p->used, s->length);
	memcpy(s->data, first->bytes + p->used, n);
	s->data += n;
	s->length -= n;
	p->used += n;
	if (p->used == first->length) {
		p->used = 0;
		p->first = (p->first + 1) % WIRE_COLLECTIVE_WINDOW;
		p->count--;
		p->taken++;
	}
	return 0;
}

/* receive receives for a step, returns the credits that are owed, and returns as send does. */
static int receive(struct group *g, struct call *c, struct peer *p, int rank)
{
	for (;;) {
		if (p->taken >= WIRE_COLLECTIVE_WINDOW / 2) {
			int sent = post(rank, args0(g->id, 0), args1(0, WIRE_CALL_CREDIT, 0, 0, p->taken), NULL, 0);
			if (sent <= 0)
				return sent;
			p->taken = 0;
		}
		if (!c->step.length)
			return 1;
		if (!p->count)
			return 0;
		if (take(g, c, p, rank) != 0)
			return -1;
		g->patience = 0;
	}
}

/* perform makes a step, and returns as send does. */
static int perform(struct group *g, struct call *c)
{
	int rank = rank_at(g, c->step.place);
	struct peer *p = peer_at(g, c->step.place);
	if (!p)
		return margay_in_fail("no memory");
	int done = c->step.receives ? receive(g, c, p, rank) : send(g, c, p, rank);
	if (done > 0)
		c->step.open = 0;
	return done;
}

static char *take_scratch(size_t size)
{
	char *memory = size <= SPARE ? state.spare : NULL;
	if (!memory)
		return malloc(size < SPARE ? SPARE : size);
	state.spare = NULL;
	return memory;
}

static void give_scratch(struct call *c)
{
	/* One piece of memory of SPARE bytes is kept. */
	if (c->scratch && !state.spare && c->spare)
		state.spare = c->scratch;
	else
		free(c->scratch);
	c->scratch = NULL;
}

/* end ends a call. why is NULL unless it has failed. */
static void end(struct call *c, const char *why)
{
	give_scratch(c);
	c->over = 1;
	c->failed = why != NULL;
	if (!c->request)
		return;
	margay_in_close_request(c->request, c->kind, why);
	free(c);
}

/* break_group ends all calls of a group with the last error. Later ones fail, too. */
static void break_group(struct group *g)
{
	if (!g->is_broken)
		snprintf(g->broken, sizeof g->broken, "%s", margay_error());
	g->is_broken = 1;
	if (g->first)
		memcpy(g->finished, g->first->args, sizeof g->finished);
	for (struct call *c = g->first, *next; c; c = next) {
		next = c->next;
		end(c, g->broken);
	}
	g->first = g->last = NULL;
}

/* advance makes the steps of a group's calls that are possible. */
static void advance(struct group *g)
{
	for (struct call *c; (c = g->first);) {
		int done = 1;
		while (done > 0 && (c->step.open || steps_next(c)))
			done = perform(g, c);
		if (done < 0)
			break_group(g);
		if (done <= 0)
			return;
		g->first = c->next;
		if (!g->first)
			g->last = NULL;
		memcpy(g->finished, c->args, sizeof g->finished);
		g->parts = 0;
		end(c, NULL);
	}
}

void margay_in_collect(void)
{
	if (state.asked && !state.advancing)
		answer_all();
	if (!state.busy || state.advancing)
		return;
	if (++state.looks % LOOKS == 0)
		margay_in_probe();
	if (!state.news)
		return;
	state.news = 0;
	state.advancing = 1;
	for (struct group **at = &state.busy; *at;) {
		struct group *g = *at;
		advance(g);
		if (g->first)
			at = &g->next;
		else
			*at = g->next;
	}
	state.advancing = 0;
}

/* awaited returns the rank that the first call of a group awaits. */
static int awaited(const struct group *g) { return rank_at(g, g->first->step.place); }

int64_t margay_in_probe(void)
{
	int64_t now = state.busy ? margay_in_now() : 0, next = -1;
	for (struct group *g = state.busy; g; g = g->next) {
		if (!g->first)
			continue;
		if (!g->patience) {
			g->patience = FIRST_PATIENCE;
			g->due = now + g->patience * INT64_C(1000000);
		} else if (now >= g->due) {
			g->patience = g->patience < MOST_PATIENCE / 2 ? 2 * g->patience : MOST_PATIENCE;
			g->due = now + g->patience * INT64_C(1000000);
			if (margay_in_post(awaited(g), WIRE_HANDLER_COLLECTIVE, args0(g->id, 0), args1(number_of(g->first->args), WIRE_CALL_PROBE, 0, 0, 0), NULL, 0) < 0) {
				break_group(g);
				continue;
			}
		}
		if (next < 0 || g->due < next)
			next = g->due;
	}
	return next;
}

/* ---- Calls ---- */

/* with_handle returns a group, or fails. */
static struct group *with_handle(margay_group handle)
{
	unsigned index = (handle & ((1 << HANDLE_BITS) - 1)) - 1;
	if (margay_in_no_job() != 0)
		return NULL;
	struct group *g = handle == MARGAY_WORLD ? world() : index < MARGAY_MAX_GROUPS ? state.table[index] : NULL;
	if (g && g->handle == handle)
		return g;
	margay_in_fail(handle == MARGAY_NO_GROUP ? "this rank is not in the group" : "there is no group %u", handle);
	return NULL;
}

/* check returns the group of a call, or fails. */
static struct group *check(const struct call *c, margay_group handle)
{
	struct group *g = with_handle(handle);
	if (!g)
		return NULL;
	if (margay_in_handler() || state.advancing)
		margay_in_fail("%s: a handler must not call it", kinds[c->kind]);
	else if (c->root < 0 || c->root >= g->size)
		margay_in_fail("%s: there is no rank %d, but ranks 0 to %d", kinds[c->kind], c->root, g->size - 1);
	else if (c->length > WIRE_MAX_CALL_LENGTH)
		margay_in_fail("%s: %zu bytes are too many", kinds[c->kind], c->length);
	else if (g->is_broken)
		margay_in_fail("%s: a collective operation has failed before: %s", kinds[c->kind], g->broken);
	else
		return g;
	return NULL;
}

/* begin begins a call of a group. */
static int begin(struct group *g, struct call *c)
{
	size_t scratch = steps_begin(c, g->size, g->own, g->near);
	c->next = NULL;
	c->over = c->failed = 0;
	if (scratch && !(c->scratch = take_scratch(scratch)))
		return margay_in_fail("%s: no memory", kinds[c->kind]);
	c->spare = scratch <= SPARE;
	g->number = g->number % WIRE_MAX_CALL_NUMBER + 1;
	c->args[0] = args0(g->id, c->root);
	c->args[1] = args1(g->number, c->kind, c->type, c->op, c->length);
	if (g->last) {
		g->last = g->last->next = c;
		return 0;
	}
	g->first = g->last = c;
	state.advancing = 1;
	advance(g);
	state.advancing = 0;
	if (!g->first)
		return 0;
	struct group *busy = state.busy;
	while (busy && busy != g)
		busy = busy->next;
	if (!busy) {
		g->next = state.busy;
		state.busy = g;
	}
	return 0;
}

static int is_over(int n, uint64_t arg)
{
	(void)n;
	return ((const struct call *)(uintptr_t)arg)->over;
}

static void describe_team(struct group *g, struct team *t) { *t = (struct team){g->id, g->size, g->own, g->ranks, g->places, &g->part}; }

int margay_in_team(margay_group handle, struct team *team)
{
	struct group *g = with_handle(handle);
	if (g)
		describe_team(g, team);
	return g ? 0 : -1;
}

int margay_in_team_of(uint64_t id, struct team *team)
{
	struct group *g = with_id(id);
	if (g)
		describe_team(g, team);
	return g != NULL;
}

/* time_over fails the first call of a group. */
static int time_over(const struct group *g)
{
	char ours[160], theirs[192];
	if (!g->parts)
		return margay_in_fail("waiting for rank %d: the time is over", awaited(g));
	describe(g->first->args, ours, sizeof ours);
	describe_where(&g->apart, theirs, sizeof theirs);
	return margay_in_fail("waiting for rank %d in %s: %s: the time is over", awaited(g), ours, theirs);
}

int margay_in_call(struct call *c, margay_group handle, int timeout_ms)
{
	struct group *g = check(c, handle);
	c->request = 0;
	if (!g || begin(g, c) != 0)
		return -1;
	int n = c->over ? 0 : margay_in_wait(is_over, (uintptr_t)c, timeout_ms);
	if (n < 0 && !c->over) {
		if (n == -1)
			time_over(g);
		break_group(g);
	}
	return c->failed ? margay_in_fail("%s: %s", kinds[c->kind], g->broken) : 0;
}

int margay_in_start(const struct call *what, margay_group handle, margay_request *request)
{
	*request = 0;
	struct group *g = check(what, handle);
	if (!g)
		return -1;
	struct call *c = malloc(sizeof *c);
	if (!c)
		return margay_in_fail("%s: no memory", kinds[what->kind]);
	*c = *what;
	if (margay_in_open_request(c, request) != 0) {
		free(c);
		return -1;
	}
	c->request = *request;
	if (begin(g, c) == 0)
		return 0;
	c->request = 0; /* there is no scratch memory */
	margay_in_close_request(*request, what->kind, NULL);
	margay_request_abandon(request);
	free(c);
	return -1;
}

void margay_in_leave(struct call *c)
{
	margay_in_fail("%s: a request of a collective operation was abandoned", kinds[c->kind]);
	break_group(with_id(group_of(c->args)));
}

/* ---- Groups ---- */

/* What a rank wants of a new group (lib/collective, Wish). */
struct wish {
	int32_t colour, key;
	uint32_t drawn;
};

/* A rank of a new group. */
struct member {
	int place; /* in the group before */
	int32_t key;
};

static int in_order(const void *a, const void *b)
{
	const struct member *x = a, *y = b;
	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->place - y->place;
}

static uint64_t id_of(int rank, uint16_t drawn) { return (uint64_t)rank << 16 | drawn; }

/* draw draws a number for a group that has none of another group of this rank. */
static uint16_t draw(void)
{
	do
		state.drawn++;
	while (!state.drawn || with_id(id_of(margay_rank(), state.drawn)));
	return state.drawn;
}

static void discard(struct group *g)
{
	margay_in_free_part(g->part);
	for (int place = 0; g->peers && place < g->size; place++)
		free(g->peers[place]);
	free(g->peers);
	free(g->ranks);
	free(g->places);
	free(g);
}

/* fill makes the tables of a group of members of another one. */
static int fill(struct group *g, const struct group *parent, const struct member *members)
{
	g->peers = calloc(g->size, sizeof *g->peers);
	g->ranks = malloc(g->size * sizeof *g->ranks);
	g->places = malloc(margay_size() * sizeof *g->places);
	if (!g->peers || !g->ranks || !g->places)
		return -1;
	for (int rank = 0; rank < margay_size(); rank++)
		g->places[rank] = -1;
	g->near = 1;
	for (int place = 0; place < g->size; place++) {
		g->ranks[place] = rank_at(parent, members[place].place);
		g->places[g->ranks[place]] = place;
		g->near &= margay_node_of(g->ranks[place]) == margay_node();
	}
	g->own = g->places[margay_rank()];
	return 0;
}

/* join makes this rank's part in a group of members of another one, NULL if it cannot. The number
 * may be anything: a rank that has freed its group may draw that number again while this one is
 * still in the group. */
static struct group *join(const struct group *parent, const struct member *members, int count, uint64_t id)
{
	int index = 0;
	while (index < MARGAY_MAX_GROUPS && state.table[index])
		index++;
	struct group *g = index < MARGAY_MAX_GROUPS && !with_id(id) ? calloc(1, sizeof *g) : NULL;
	if (!g)
		return NULL;
	g->id = id;
	g->size = count;
	if (fill(g, parent, members) != 0) {
		discard(g);
		return NULL;
	}
	state.uses = state.uses % MOST_USES + 1;
	g->handle = state.uses << HANDLE_BITS | (uint32_t)(index + 1);
	return state.table[index] = g;
}

/* leave discards a group without calls. */
static void leave(struct group *g)
{
	struct group **at = &state.busy;
	while (*at && *at != g)
		at = &(*at)->next;
	if (*at)
		*at = g->next;
	state.table[(g->handle & ((1 << HANDLE_BITS) - 1)) - 1] = NULL;
	discard(g);
}

static void least(void *into, const void *from, size_t count, void *data)
{
	uint64_t *a = into;
	const uint64_t *b = from;
	(void)count;
	(void)data;
	if (*b < *a)
		*a = *b;
}

/* agree finds out whether all ranks of parent have their parts of new groups, and fails if not. g
 * is this rank's, NULL if it has none. A rank may send to a group when it has seen that all others
 * can receive. */
static int agree(margay_group parent, struct group *g, int made, margay_group *group, int64_t deadline)
{
	uint64_t all = made;
	struct call c = {.kind = WIRE_CALL_ALL_REDUCE, .type = MARGAY_UINT64, .op = MARGAY_MIN, .in = (char *)&all, .out = (char *)&all, .length = 8, .count = 1, .size = 8, .combine = least};
	int err = margay_in_call(&c, parent, margay_in_left(deadline));
	if (!err && !all)
		err = margay_in_fail("the group was not made: a rank has %d of them or no memory, or its number is in use, or the lists do not match", MARGAY_MAX_GROUPS);
	if (err && g)
		leave(g);
	else if (g)
		*group = g->handle;
	return err;
}

/* gather_members stores the ranks of this rank's colour in their order, and returns how many. */
static int gather_members(const struct group *parent, const struct wish *wishes, struct member *members)
{
	int count = 0;
	for (int place = 0; place < parent->size; place++)
		if (wishes[place].colour == wishes[parent->own].colour)
			members[count++] = (struct member){place, wishes[place].key};
	qsort(members, count, sizeof *members, in_order);
	return count;
}

/* A wanted list of ranks; NULL: any. */
struct wanted {
	const int *ranks;
	int count;
};

static int are_wanted(const struct wanted *w, const struct member *members, int count)
{
	if (w->ranks && w->count != count)
		return 0;
	for (int place = 0; w->ranks && place < count; place++)
		if (w->ranks[place] != members[place].place)
			return 0;
	return 1;
}

/* split_with makes a group when this rank's wish is known. wishes and members have room for all
 * ranks. */
static int split_with(struct group *parent, struct wish own, struct wanted want, struct wish *wishes, struct member *members, margay_group *group,
		      int64_t deadline)
{
	struct call c = {.kind = WIRE_CALL_SPLIT, .in = (char *)&own, .out = (char *)wishes, .length = sizeof own};
	struct group *g = NULL;
	int made = 1;
	if (margay_in_call(&c, parent->handle, margay_in_left(deadline)) != 0)
		return -1;
	if (own.colour >= 0) {
		int count = gather_members(parent, wishes, members), leader = members[0].place;
		g = join(parent, members, count, id_of(rank_at(parent, leader), wishes[leader].drawn));
		made = g && are_wanted(&want, members, count);
	}
	return agree(parent->handle, g, made, group, deadline);
}

static int split(struct group *parent, int colour, int key, struct wanted want, margay_group *group, int timeout_ms)
{
	int64_t deadline = timeout_ms < 0 ? -1 : margay_in_now() + timeout_ms * 1000000LL;
	struct wish own = {colour < 0 ? -1 : colour, key, draw()};
	struct wish *wishes = malloc(parent->size * sizeof *wishes);
	struct member *members = malloc(parent->size * sizeof *members);
	int err = wishes && members ? split_with(parent, own, want, wishes, members, group, deadline) : margay_in_fail("split: no memory");
	free(wishes);
	free(members);
	return err;
}

int margay_group_split(margay_group parent, int colour, int key, margay_group *group, int timeout_ms)
{
	struct group *p = with_handle(parent);
	*group = MARGAY_NO_GROUP;
	return p ? split(p, colour, key, (struct wanted){NULL, 0}, group, timeout_ms) : -1;
}

int margay_group_create(margay_group parent, const int *ranks, int count, margay_group *group, int timeout_ms)
{
	struct group *p = with_handle(parent);
	int key = -1;
	*group = MARGAY_NO_GROUP;
	if (!p)
		return -1;
	for (int i = 0; i < count; i++) {
		int known = ranks[i] < 0 || ranks[i] >= p->size;
		for (int k = 0; k < i; k++)
			known |= ranks[k] == ranks[i];
		if (known)
			return margay_in_fail("create a group: rank %d is not one of %d, or is there twice", ranks[i], p->size);
		if (ranks[i] == p->own)
			key = i;
	}
	return split(p, key < 0 ? -1 : ranks[0], key, (struct wanted){ranks, count}, group, timeout_ms);
}

int margay_group_free(margay_group *group)
{
	struct group *g = with_handle(*group);
	if (!g)
		return -1;
	if (g == &state.world)
		return margay_in_fail("free a group: the group of all ranks stays");
	if (g->first || margay_in_part_is_busy(g->part))
		return margay_in_fail("free a group: a call of it is under way");
	leave(g);
	*group = MARGAY_NO_GROUP;
	return 0;
}

int margay_group_rank(margay_group group)
{
	struct group *g = with_handle(group);
	return g ? g->own : -1;
}

int margay_group_size(margay_group group)
{
	struct group *g = with_handle(group);
	return g ? g->size : -1;
}

int margay_group_job_rank(margay_group group, int rank)
{
	struct group *g = with_handle(group);
	if (!g)
		return -1;
	if (rank < 0 || rank >= g->size)
		return margay_in_fail("the group has no rank %d", rank);
	return rank_at(g, rank);
}
