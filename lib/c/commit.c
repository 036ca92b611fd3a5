/* Operations that change a window of all ranks of a group, or of none. The Go package lib/commit
 * has the same state machine and explains it; wire.Commit in kernel/abi/wire describes the
 * messages. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "internal.h"
#include "wire.h"

#define NOWHERE (-1)
#define NO_OFFSET UINT64_MAX

/* How long a rank waits for another before it probes whether that has ended, in milliseconds. It
 * doubles the time with each probe. */
#define FIRST_PATIENCE 250
#define MOST_PATIENCE 3600000

#define MOST_LETTERS 1024 /* answers for groups that this rank does not have */
#define LOOKS 256	  /* looks at operations after which time is taken to probe */

/* A message, as lib/commit has it. */
struct message {
	int place, kind, status;
	uint64_t number;
};

/* An operation that this rank has started. */
struct commit {
	struct commit *next;
	struct wire_commit_op op;
	const char *data;
	uint64_t local;		/* offset of the caller's event; NO_OFFSET: none */
	margay_request request; /* 0: the caller waits */
	int over, status, rank; /* rank: where it was not possible */
	int failed;		/* to send: margay_error says why */
};

/* A rank below in the operation under way. */
struct child {
	int place;
	int begun; /* it knows the operation */
	uint64_t sent; /* bytes of data */
	int voted;
	int told; /* it knows that nothing happens */
	int done;
};

/* The part of this rank in the operation under way. */
struct run {
	uint64_t number;
	int root, parent; /* places; NOWHERE: this rank is the root */
	int count;
	struct child children[32];
	struct wire_commit_op op;
	struct commit *commit; /* of the root; NULL: it is abandoned */
	const char *data;
	char *kept; /* data that this rank has allocated */
	uint64_t got;
	int status, place;
	int voted, decided, commits;
	int told; /* places before this one know that it is carried out */
	int applied;
};

/* The part of this rank in the operations of a group. */
struct part {
	struct team team;
	struct part *next; /* with operations under way */
	int listed;
	int holder, *waiting, waiters; /* of the leader */
	uint64_t granted;
	struct commit *first, *last; /* of this rank that are not over */
	int asked;
	uint64_t vain;
	int runs; /* run is under way */
	struct run run;
	uint64_t number; /* of the last one */
	int is_broken;
	char broken[512];
	int patience;
	int64_t due;
};

static struct {
	struct part *busy;
	struct letter {
		int rank;
		uint64_t args[2];
	} *letters; /* answers for groups that this rank does not have */
	int letter_count;
	unsigned looks;
	int news; /* a message has come since the parts have advanced, or they wait for room */
} state;

static const char *const reasons[] = {"", "there is no such window", "that is outside the window, or not aligned", "it has no memory for the data",
				      "it has freed the group"};

static void fill_args(const struct part *p, const struct message *m, uint64_t args[2])
{
	args[0] = p->team.id | (uint64_t)m->place << 40;
	args[1] = m->number | (uint64_t)m->kind << 48 | (uint64_t)m->status << 56;
}

static int rank_of(const struct part *p, int place) { return p->team.ranks ? p->team.ranks[place] : place; }

/* deliver sends a message and returns 1, 0 if there is no room, or -1. */
static int deliver(int rank, const uint64_t args[2], const void *data, size_t length)
{
	for (;;) {
		int sent = margay_in_post(rank, WIRE_HANDLER_COMMIT, args[0], args[1], data, length);
		if (sent || !margay_in_room(rank, WIRE_HANDLER_COMMIT, length)) {
			state.news |= !sent;
			return sent;
		}
	}
}

/* post is deliver to a place. */
static int post(const struct part *p, int place, struct message m, const void *data, size_t length)
{
	uint64_t args[2];
	fill_args(p, &m, args);
	return deliver(rank_of(p, place), args, data, length);
}

/* ---- Windows of this rank ---- */

static int within(const struct wire_commit_op *op, size_t size)
{
	uint64_t length = op->compare ? 8 : op->value;
	if (op->offset > size || length > size - op->offset || (op->compare && op->offset % 8))
		return 0;
	return op->second == NO_OFFSET || (op->second <= size && size - op->second >= 8 && op->second % 8 == 0);
}

static int holds(uint32_t compare, uint64_t word, uint64_t value)
{
	switch (compare) {
	case MARGAY_EQ:
		return word == value;
	case MARGAY_NE:
		return word != value;
	case MARGAY_LT:
		return word < value;
	case MARGAY_LE:
		return word <= value;
	case MARGAY_GT:
		return word > value;
	}
	return word >= value;
}

static _Atomic uint64_t *word_at(int window, uint64_t offset)
{
	size_t size;
	return (_Atomic uint64_t *)(margay_in_window(window, &size) + offset);
}

/* prepare returns whether an operation is possible, or WIRE_COMMIT_FALSE. */
static int prepare(const struct wire_commit_op *op)
{
	size_t size;
	if (!margay_in_window(op->window, &size))
		return WIRE_COMMIT_NO_WINDOW;
	if (!within(op, size))
		return WIRE_COMMIT_BEYOND;
	return op->compare && !holds(op->compare, atomic_load(word_at(op->window, op->offset)), op->value) ? WIRE_COMMIT_FALSE : WIRE_COMMIT_OK;
}

static void apply_op(const struct wire_commit_op *op, const char *data)
{
	size_t size;
	if (!op->compare && op->value)
		memcpy(margay_in_window(op->window, &size) + op->offset, data, op->value);
	if (op->second == NO_OFFSET)
		return;
	if (op->compare)
		atomic_store(word_at(op->window, op->second), op->word);
	else
		atomic_fetch_add(word_at(op->window, op->second), 1);
}

/* ---- The operation under way ---- */

static uint64_t length_of(const struct wire_commit_op *op) { return op->compare ? 0 : op->value; }

static int reads_only(const struct wire_commit_op *op) { return op->compare && op->second == NO_OFFSET; }

static void end_run(struct part *p)
{
	free(p->run.kept);
	memset(&p->run, 0, sizeof p->run);
	p->runs = 0;
}

/* begin_run prepares an operation at this rank. */
static void begin_run(struct part *p, uint64_t number, int root, const struct wire_commit_op *op)
{
	struct run *r = &p->run;
	int size = p->team.size, own = (p->team.own - root + size) % size; /* places are counted from the root */
	*r = (struct run){.number = number, .root = root, .parent = NOWHERE, .op = *op, .place = p->team.own};
	p->runs = 1;
	p->number = number;
	if (own)
		r->parent = ((own & (own - 1)) + root) % size;
	r->status = prepare(op);
	for (int bit = 1; !r->status && !(own & bit) && bit < size - own; bit *= 2)
		r->children[r->count++].place = (own + bit + root) % size;
}

/* all_children reports whether all children that know the operation have a flag, which is at an
 * offset of struct child. */
static int all_children(const struct run *r, size_t flag)
{
	for (int i = 0; i < r->count; i++)
		if (r->children[i].begun && !*(const int *)((const char *)&r->children[i] + flag))
			return 0;
	return 1;
}

#define ALL(r, flag) all_children(r, offsetof(struct child, flag))

/* feed sends the operation, and the data that are there, to a child, and returns 1 if there was
 * room for something, 0, or -1. */
static int feed(struct part *p, struct child *c)
{
	struct run *r = &p->run;
	int some = 0, sent = 1;
	while (sent > 0 && (!c->begun || c->sent < r->got)) {
		uint64_t n = r->got - c->sent;
		if (n > MARGAY_MAX_PAYLOAD)
			n = MARGAY_MAX_PAYLOAD;
		if (!c->begun)
			sent = post(p, c->place, (struct message){r->root, WIRE_COMMIT_BEGIN, 0, r->number}, &r->op, sizeof r->op);
		else
			sent = post(p, c->place, (struct message){0, WIRE_COMMIT_DATA, 0, r->number}, r->data + c->sent, n);
		if (sent > 0 && c->begun)
			c->sent += n;
		if (sent > 0)
			some = c->begun = 1;
	}
	return sent < 0 ? -1 : some;
}

/* spread feeds all children, the largest subtree first. */
static int spread(struct part *p)
{
	int some = 0;
	for (int i = p->run.count - 1; i >= 0; i--) {
		int fed = feed(p, &p->run.children[i]);
		if (fed < 0)
			return -1;
		some |= fed;
	}
	return some;
}

/* is_known reports whether the vote of this rank and those below it is known. */
static int is_known(const struct run *r)
{
	int voted = ALL(r, voted);
	if (r->status)
		return voted || !reads_only(&r->op); /* the decision reaches the others */
	for (int i = 0; i < r->count; i++)
		voted &= r->children[i].begun;
	return voted && r->got == length_of(&r->op);
}

/* vote votes, or decides at the root, and returns 1, 0 if there is no room, or -1. */
static int vote(struct part *p)
{
	struct run *r = &p->run;
	if (r->parent == NOWHERE) {
		r->voted = r->decided = 1;
		r->commits = !r->status;
		r->applied = reads_only(&r->op);
		return 1;
	}
	int sent = post(p, r->parent, (struct message){r->place, WIRE_COMMIT_VOTE, r->status, r->number}, NULL, 0);
	if (sent <= 0)
		return sent;
	r->voted = 1;
	if (reads_only(&r->op))
		end_run(p);
	return 1;
}

/* pass sends the decision, and returns 1 when all have it that this rank sends it to, 0, or -1. */
static int pass(struct part *p)
{
	struct run *r = &p->run;
	int all = 1;
	for (; r->commits && r->parent == NOWHERE && r->told < p->team.size; r->told++) {
		int sent = r->told == p->team.own ? 1 : post(p, r->told, (struct message){0, WIRE_COMMIT_DECIDE, 0, r->number}, NULL, 0);
		if (sent <= 0)
			return sent;
	}
	for (int i = r->count - 1; !r->commits && i >= 0; i--) {
		struct child *c = &r->children[i];
		if (!c->begun || c->told)
			continue;
		c->told = post(p, c->place, (struct message){0, WIRE_COMMIT_DECIDE, WIRE_COMMIT_ABANDONED, r->number}, NULL, 0);
		if (c->told < 0)
			return -1;
		all &= c->told;
	}
	return all;
}

static void apply(struct run *r)
{
	if (r->commits)
		apply_op(&r->op, r->data);
	r->applied = 1;
	r->data = NULL;
}

/* complete ends an operation of this rank, which is in no queue. */
static void complete(struct commit *o, int status, int rank)
{
	o->over = 1;
	o->status = status;
	o->rank = rank;
	if (!o->request)
		return;
	char why[320];
	if (status == WIRE_COMMIT_FREED || status == WIRE_COMMIT_NO_MEMORY)
		snprintf(why, sizeof why, "rank %d: %s", rank, reasons[status]);
	else if (status && !o->failed)
		snprintf(why, sizeof why, "window %u of rank %d at %llu: %s", o->op.window, rank, (unsigned long long)o->op.offset,
			 reasons[status]);
	else
		snprintf(why, sizeof why, "%s", margay_error());
	margay_in_close_commit(o->request, status || o->failed ? why : NULL);
	free(o);
}

/* release gives a turn back, and returns 1, 0 if there is no room, or -1. */
static int release(struct part *p, uint64_t number)
{
	int sent = 1;
	if (p->team.own == 0)
		p->holder = NOWHERE;
	else
		sent = post(p, 0, (struct message){0, WIRE_COMMIT_RELEASE, 0, number}, NULL, 0);
	if (sent > 0)
		p->asked = p->vain = 0;
	return sent;
}

/* finish ends the operation at the root. No message of it is left then, so the rank may end. */
static int finish(struct part *p)
{
	int sent = release(p, p->run.number), status = p->run.status, rank = rank_of(p, p->run.place), commits = p->run.commits;
	struct commit *o = p->run.commit;
	if (sent <= 0)
		return sent;
	end_run(p);
	if (!o)
		return 1;
	if (commits && o->local != NO_OFFSET)
		atomic_fetch_add(word_at(o->op.window, o->local), 1);
	if (!(p->first = o->next))
		p->last = NULL;
	complete(o, status, rank);
	return 1;
}

/* close_run carries the decision out when it is passed on, and ends the operation when all below
 * have. */
static int close_run(struct part *p)
{
	struct run *r = &p->run;
	if (!r->applied) {
		int told = pass(p);
		if (told <= 0)
			return told;
		apply(r);
	}
	if (!reads_only(&r->op) && !ALL(r, done))
		return 0;
	if (r->parent == NOWHERE)
		return finish(p);
	int sent = post(p, r->parent, (struct message){0, WIRE_COMMIT_DONE, 0, r->number}, NULL, 0);
	if (sent > 0)
		end_run(p);
	return sent;
}

/* step_run makes the next steps, and returns 1 if there were any, 0, or -1. */
static int step_run(struct part *p)
{
	struct run *r = &p->run;
	int some = !r->status && !r->decided ? spread(p) : 0;
	if (some < 0)
		return -1;
	if (!r->voted && is_known(r)) {
		int voted = vote(p);
		if (voted <= 0)
			return voted < 0 ? -1 : some;
		some = 1;
	}
	if (!p->runs || !r->decided)
		return some;
	int closed = close_run(p);
	return closed ? closed : some;
}

/* ---- Turns ---- */

/* take begins the first operation with a turn. */
static void take(struct part *p, uint64_t number)
{
	struct commit *o = p->first;
	p->number = number;
	if (!o) {
		p->vain = number;
		return;
	}
	begin_run(p, number, p->team.own, &o->op);
	p->run.commit = o;
	p->run.data = o->data;
	p->run.got = length_of(&o->op);
}

/* ask asks for a turn, and returns 1 if it has, 0, or -1. */
static int ask(struct part *p)
{
	int sent = 1;
	if (!p->first || p->asked)
		return 0;
	if (p->team.own == 0)
		p->waiting[p->waiters++] = 0;
	else
		sent = post(p, 0, (struct message){0, WIRE_COMMIT_ASK, 0, 0}, NULL, 0);
	p->asked = sent > 0;
	return sent;
}

/* grant_next grants the next turn, and returns 1 if it has, 0, or -1. */
static int grant_next(struct part *p)
{
	if (p->holder != NOWHERE || !p->waiters)
		return 0;
	int place = p->waiting[0], sent = 1;
	if (place)
		sent = post(p, place, (struct message){0, WIRE_COMMIT_GRANT, 0, p->granted + 1}, NULL, 0);
	if (sent <= 0)
		return sent;
	p->holder = place;
	p->granted++;
	memmove(p->waiting, p->waiting + 1, --p->waiters * sizeof *p->waiting);
	if (!place)
		take(p, p->granted);
	return 1;
}

/* step makes the next steps, and returns 1 if there were any, 0, or -1. */
static int step(struct part *p)
{
	int gave = p->vain ? release(p, p->vain) : 0, asked = gave < 0 ? -1 : ask(p), granted = asked < 0 ? -1 : grant_next(p);
	int ran = granted < 0 ? -1 : p->runs ? step_run(p) : 0;
	return ran < 0 ? -1 : gave | asked | granted | ran;
}

/* fail ends all operations of a group with the last error. Later ones fail, too. */
static void fail(struct part *p)
{
	snprintf(p->broken, sizeof p->broken, "%s", margay_error());
	p->is_broken = 1;
	end_run(p);
	p->holder = NOWHERE;
	p->asked = p->vain = p->waiters = 0;
	for (struct commit *o = p->first, *next; o; o = next) {
		next = o->next;
		o->failed = 1;
		complete(o, 0, 0);
	}
	p->first = p->last = NULL;
}

static int is_busy(const struct part *p) { return p->runs || p->asked || p->first || p->vain || p->holder != NOWHERE || p->waiters; }

static void enlist(struct part *p)
{
	p->patience = 0;
	state.news = 1;
	if (p->listed)
		return;
	p->listed = 1;
	p->next = state.busy;
	state.busy = p;
}

static void advance(struct part *p)
{
	for (int some = 1; some > 0;) {
		some = step(p);
		if (some < 0)
			fail(p);
		if (some)
			p->patience = 0;
	}
}

/* answer sends the answers for groups that this rank does not have. */
static void answer(void)
{
	int sent = 0;
	while (sent < state.letter_count && deliver(state.letters[sent].rank, state.letters[sent].args, NULL, 0) != 0)
		sent++;
	state.letter_count -= sent;
	memmove(state.letters, state.letters + sent, state.letter_count * sizeof *state.letters);
}

void margay_in_commit(void)
{
	if (!state.busy && !state.letter_count)
		return;
	if (++state.looks % LOOKS == 0)
		margay_in_probe_commits();
	if (!state.news)
		return;
	state.news = 0;
	if (state.letter_count)
		answer();
	for (struct part **at = &state.busy; *at;) {
		struct part *p = *at;
		advance(p);
		if (is_busy(p)) {
			at = &p->next;
			continue;
		}
		p->listed = 0;
		*at = p->next;
	}
}

/* probe probes a place. */
static int probe(const struct part *p, int place)
{
	return margay_in_post(rank_of(p, place), WIRE_HANDLER_COLLECTIVE, 0, (uint64_t)WIRE_CALL_PROBE << 52, NULL, 0);
}

/* probe_awaited probes the places that a rank awaits, and returns -1 if that fails. */
static int probe_awaited(const struct part *p)
{
	int sent = 0;
	for (int i = 0; p->runs && i < p->run.count; i++) {
		const struct child *c = &p->run.children[i];
		if (!c->begun || !((!c->voted && !p->run.voted) || (p->run.decided && !reads_only(&p->run.op) && !c->done)))
			continue;
		sent = probe(p, c->place);
		break;
	}
	if (sent >= 0 && p->runs && p->first && p->run.parent != NOWHERE)
		sent = probe(p, p->run.root); /* it may have ended */
	if (sent >= 0 && !p->runs && p->asked && p->team.own)
		sent = probe(p, 0);
	if (sent >= 0 && p->holder > 0 && p->waiters)
		sent = probe(p, p->holder);
	return sent;
}

int64_t margay_in_probe_commits(void)
{
	int64_t now = state.busy ? margay_in_now() : 0, next = -1;
	for (struct part *p = state.busy; p; p = p->next) {
		if (!p->patience) {
			p->patience = FIRST_PATIENCE;
			p->due = now + p->patience * INT64_C(1000000);
		} else if (now >= p->due) {
			p->patience = p->patience < MOST_PATIENCE / 2 ? 2 * p->patience : MOST_PATIENCE;
			p->due = now + p->patience * INT64_C(1000000);
			if (probe_awaited(p) < 0)
				fail(p);
		}
		if (next < 0 || p->due < next)
			next = p->due;
	}
	return next;
}

/* ---- Messages that come ---- */

/* part_of returns this rank's part in a group, NULL without memory. */
static struct part *part_of(const struct team *t)
{
	struct part *p = *t->part;
	if (p)
		return p;
	p = calloc(1, sizeof *p);
	int *waiting = calloc(t->size, sizeof *waiting);
	if (!p || !waiting) {
		free(p);
		free(waiting);
		return NULL;
	}
	p->team = *t;
	p->holder = NOWHERE;
	p->waiting = waiting;
	return *t->part = p;
}

int margay_in_part_is_busy(const struct part *p) { return p && is_busy(p); }

void margay_in_free_part(struct part *p)
{
	if (!p)
		return;
	for (struct part **at = &state.busy; p->listed; at = &(*at)->next) {
		if (*at != p)
			continue;
		*at = p->next;
		break;
	}
	free(p->waiting);
	free(p);
}

/* decline answers a message for a group that this rank has freed. */
static int decline(const struct margay_am *m, int kind)
{
	int answer = kind == WIRE_COMMIT_ASK ? WIRE_COMMIT_GRANT : kind == WIRE_COMMIT_BEGIN ? WIRE_COMMIT_VOTE : WIRE_COMMIT_DONE;
	if (kind != WIRE_COMMIT_ASK && kind != WIRE_COMMIT_BEGIN && kind != WIRE_COMMIT_DECIDE)
		return 0;
	struct letter *all = state.letter_count < MOST_LETTERS ? realloc(state.letters, (state.letter_count + 1) * sizeof *all) : NULL;
	if (!all)
		return 0;
	state.letters = all;
	state.news = 1;
	all[state.letter_count++] = (struct letter){m->source,
						    {(m->args[0] & ((UINT64_C(1) << 40) - 1)) | (uint64_t)WIRE_NO_PLACE << 40,
						     (m->args[1] & WIRE_MAX_COMMIT_NUMBER) | (uint64_t)answer << 48 | (uint64_t)WIRE_COMMIT_FREED << 56}};
	return 0;
}

/* take_grant takes a turn. */
static int take_grant(struct part *p, int place, const struct message *m)
{
	if (place || !p->asked || p->runs || p->vain)
		return -1;
	if (m->status == WIRE_COMMIT_FREED) {
		p->asked = 0;
		for (struct commit *o = p->first, *next; o; o = next) {
			next = o->next;
			complete(o, WIRE_COMMIT_FREED, rank_of(p, 0));
		}
		p->first = p->last = NULL;
		return 0;
	}
	if (m->number <= p->number)
		return -1;
	take(p, m->number);
	return 0;
}

/* take_begin takes an operation of another rank. */
static int take_begin(struct part *p, int place, const struct message *m, const void *payload)
{
	struct wire_commit_op op;
	memcpy(&op, payload, sizeof op);
	if (op.compare > MARGAY_GE || op.window >= MARGAY_MAX_WINDOWS || p->runs || m->number <= p->number)
		return -1;
	if (m->place >= p->team.size || m->place == p->team.own)
		return -1;
	begin_run(p, m->number, m->place, &op);
	if (p->run.parent != place)
		return -1;
	if (!p->run.status && length_of(&op) && !(p->run.data = p->run.kept = malloc(length_of(&op)))) {
		p->run.status = WIRE_COMMIT_NO_MEMORY;
		p->run.count = 0;
	}
	return 0;
}

/* take_data takes data of a transfer. */
static int take_data(struct run *r, int place, const void *payload, size_t length)
{
	if (place != r->parent || r->decided || length > length_of(&r->op) - r->got)
		return -1;
	if (r->kept)
		memcpy(r->kept + r->got, payload, length);
	r->got += length;
	return 0;
}

/* take_decision takes the decision: from the root, or that nothing happens from the rank above. */
static int take_decision(struct run *r, int place, int commits)
{
	if (place != (commits ? r->root : r->parent) || r->parent == NOWHERE || r->decided || reads_only(&r->op))
		return -1;
	if (commits && (!r->voted || r->status))
		return -1;
	r->decided = 1;
	r->commits = commits;
	return 0;
}

/* take_of_child takes a vote or a confirmation. */
static int take_of_child(struct part *p, int place, const struct message *m)
{
	struct run *r = &p->run;
	int i = 0;
	while (i < r->count && !(r->children[i].begun && r->children[i].place == place))
		i++;
	if (i == r->count)
		return -1;
	struct child *c = &r->children[i];
	if (m->kind == WIRE_COMMIT_DONE) {
		if (c->done || (!c->told && (!c->voted || !r->voted || reads_only(&r->op))))
			return -1;
		c->done = 1;
		return 0;
	}
	int where = m->place == WIRE_NO_PLACE ? place : m->place;
	if (c->voted || where >= p->team.size || m->status == WIRE_COMMIT_ABANDONED || (m->status == WIRE_COMMIT_FALSE && !r->op.compare))
		return -1;
	c->voted = 1;
	if (!r->status && m->status && !r->decided) {
		r->status = m->status;
		r->place = where;
	}
	return 0;
}

/* arrive takes a message of a place. */
static int arrive(struct part *p, int place, const struct message *m, const struct margay_am *am)
{
	switch (m->kind) {
	case WIRE_COMMIT_ASK:
		if (p->team.own || place == p->holder)
			return -1;
		for (int i = 0; i < p->waiters; i++)
			if (p->waiting[i] == place)
				return -1;
		p->waiting[p->waiters++] = place;
		return 0;
	case WIRE_COMMIT_RELEASE:
		if (place != p->holder || m->number != p->granted)
			return -1;
		p->holder = NOWHERE;
		return 0;
	case WIRE_COMMIT_GRANT:
		return take_grant(p, place, m);
	case WIRE_COMMIT_BEGIN:
		return take_begin(p, place, m, am->payload);
	}
	if (!p->runs || p->run.number != m->number)
		return -1;
	if (m->kind == WIRE_COMMIT_DATA)
		return take_data(&p->run, place, am->payload, am->length);
	if (m->kind == WIRE_COMMIT_DECIDE)
		return take_decision(&p->run, place, m->status == WIRE_COMMIT_OK);
	return take_of_child(p, place, m);
}

int margay_in_take_commit(const struct margay_am *am)
{
	struct message m = {am->args[0] >> 40, am->args[1] >> 48 & 255, am->args[1] >> 56, am->args[1] & WIRE_MAX_COMMIT_NUMBER};
	size_t least = m.kind == WIRE_COMMIT_BEGIN ? sizeof(struct wire_commit_op) : m.kind == WIRE_COMMIT_DATA;
	size_t most = m.kind == WIRE_COMMIT_DATA ? MARGAY_MAX_PAYLOAD : least;
	struct team team;
	if (m.kind < WIRE_COMMIT_ASK || m.kind > WIRE_COMMIT_DONE || m.status > WIRE_COMMIT_ABANDONED || am->length < least || am->length > most)
		return -1;
	if (am->source < 0 || am->source >= margay_size())
		return -1;
	if (!margay_in_team_of(am->args[0] & ((UINT64_C(1) << 40) - 1), &team))
		return decline(am, m.kind);
	int place = team.places ? team.places[am->source] : am->source;
	struct part *p = place < 0 ? NULL : part_of(&team);
	if (!p)
		return -1;
	enlist(p);
	return arrive(p, place, &m, am);
}

/* ---- Calls ---- */

/* check fails if a call must not be made. */
static struct part *check(const char *name, margay_group group, int window)
{
	struct team team;
	struct part *p = NULL;
	if (margay_in_team(group, &team) != 0)
		return NULL;
	if (margay_in_handler())
		margay_in_fail("%s: a handler must not call it", name);
	else if (window < 0 || window >= MARGAY_MAX_WINDOWS)
		margay_in_fail("%s: there is no window %d, but windows 0 to %d", name, window, MARGAY_MAX_WINDOWS - 1);
	else if (!(p = part_of(&team)))
		margay_in_fail("%s: no memory", name);
	else if (p->is_broken)
		margay_in_fail("%s: %s", name, p->broken);
	return p && !p->is_broken ? p : NULL;
}

/* start starts an operation. */
static void start(struct part *p, struct commit *o)
{
	o->next = NULL;
	if (p->last)
		p->last->next = o;
	else
		p->first = o;
	p->last = o;
	int was = margay_in_mask(); /* an upcall must not see half a block */
	enlist(p);
	margay_in_commit();
	margay_in_unmask(was);
}

/* keep copies the data of a run that the other ranks have yet to carry out. Without memory it is
 * carried out here while the data are there. */
static void keep(struct run *r)
{
	if ((r->kept = malloc(r->op.value))) {
		r->data = memcpy(r->kept, r->data, r->op.value);
		return;
	}
	apply_op(&r->op, r->data);
	r->op.value = 0;
	r->op.second = NO_OFFSET;
	r->data = NULL;
}

/* abandon ends an operation without waiting, and reports whether it takes effect nevertheless. */
static int abandon(struct part *p, struct commit *o)
{
	struct run *r = &p->run;
	struct commit *before = NULL;
	int decided = 0;
	if (p->runs && r->commit == o) {
		r->commit = NULL;
		decided = r->decided && r->commits;
		if (!r->decided)
			r->status = WIRE_COMMIT_ABANDONED;
		else if (!r->applied && decided && length_of(&r->op))
			keep(r);
	}
	for (struct commit *at = p->first; at; before = at, at = at->next) {
		if (at != o)
			continue;
		if (before)
			before->next = o->next;
		else
			p->first = o->next;
		if (p->last == o)
			p->last = before;
		break;
	}
	enlist(p);
	return decided;
}

void margay_in_abandon_commit(struct commit *o, margay_group group)
{
	struct team team;
	if (margay_in_team(group, &team) == 0 && *team.part)
		abandon(*team.part, o);
	free(o);
}

static int is_settled(int n, uint64_t arg)
{
	(void)n;
	(void)arg;
	for (const struct part *p = state.busy; p; p = p->next)
		if (p->asked || p->first)
			return 0;
	return 1;
}

int margay_in_settle_commits(int timeout_ms)
{
	return is_settled(0, 0) || margay_in_wait(is_settled, 0, timeout_ms) >= 0 ? 0 : -1;
}

int margay_xfer_and_signal(margay_group group, int window, size_t offset, const void *from, size_t length, size_t remote, size_t local,
			   margay_request *request)
{
	size_t size = 0;
	*request = 0;
	struct part *p = check("xfer and signal", group, window);
	if (!p)
		return -1;
	if (local != MARGAY_NO_EVENT && (!margay_in_window(window, &size) || local % 8 || local > size || size - local < 8))
		return margay_in_fail("xfer and signal: the local event: window %d at %zu: %s", window, local, reasons[size ? 2 : 1]);
	struct commit *o = calloc(1, sizeof *o);
	if (!o)
		return margay_in_fail("xfer and signal: no memory");
	o->op = (struct wire_commit_op){.window = window, .offset = offset, .value = length, .second = remote};
	o->data = from;
	o->local = local;
	if (margay_in_open_commit(o, group, request) != 0) {
		free(o);
		return -1;
	}
	o->request = *request;
	start(p, o);
	return 0;
}

static int is_over(int n, uint64_t arg)
{
	(void)n;
	return ((const struct commit *)(uintptr_t)arg)->over;
}

int margay_compare_and_write(margay_group group, int window, size_t offset, enum margay_comparison comparison, uint64_t value, size_t write,
			     uint64_t word, int timeout_ms)
{
	static const char name[] = "compare and write";
	struct part *p = check(name, group, window);
	if (!p)
		return -1;
	if (comparison < MARGAY_EQ || comparison > MARGAY_GE)
		return margay_in_fail("%s: there is no comparison %d", name, (int)comparison);
	struct commit o = {.op = {comparison, window, offset, value, write, word}, .local = NO_OFFSET};
	start(p, &o);
	if (!o.over && margay_in_wait(is_over, (uintptr_t)&o, timeout_ms) < 0 && !o.over) {
		char why[256];
		snprintf(why, sizeof why, "%s", margay_error());
		return margay_in_fail("%s: %s; it takes effect at %s", name, why, abandon(p, &o) ? "all ranks" : "no rank");
	}
	if (o.failed)
		return margay_in_fail("%s: %s", name, p->broken);
	if (o.status == WIRE_COMMIT_FALSE)
		return 0;
	if (o.status == WIRE_COMMIT_FREED)
		return margay_in_fail("%s: rank %d: %s", name, o.rank, reasons[o.status]);
	return o.status ? margay_in_fail("%s: window %d of rank %d at %zu: %s", name, window, o.rank, offset, reasons[o.status]) : 1;
}
