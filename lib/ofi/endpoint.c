/* endpoint.c: endpoints, and sending and receiving by them. */
#include "provider.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SPARE 64	/* operations that are kept for later ones */
#define INJECTED 4096	/* copies of injected messages at a time */
#define LINGER 10	/* seconds that closing waits for other ranks */

/* ---- Operations ---- */

static struct link spare;
static int spare_count;

struct op *op_make(struct endpoint *ep, void *context, size_t copy)
{
	struct op *op;
	if (copy == 0 && spare_count > 0) {
		op = list_of(spare.next, struct op, link);
		list_remove(&op->link);
		spare_count--;
	} else if (!(op = malloc(sizeof *op + (copy ? ENGINE_SHORT : 0)))) {
		return NULL;
	}
	op->endpoint = ep;
	op->context = context;
	op->quiet = op->injected = op->error = 0;
	op->event = -1;
	op->source = FI_ADDR_NOTAVAIL;
	op->length = op->excess = 0;
	op->buffer = NULL;
	op->data = op->tag = 0;
	list_open(&op->link);
	return op;
}

void op_copy(struct op *op, struct memory *m)
{
	size_t n = m->length;
	memory_gather(m, 0, op->copy, n);
	m->parts[0] = (struct iovec){op->copy, n};
	m->count = n > 0;
}

void op_free(struct op *op)
{
	if (op->event >= 0)
		rma_took(&port.rma, op->event);
	if (spare_count == 0)
		list_open(&spare);
	if (spare_count == SPARE) {
		free(op);
		return;
	}
	list_add(&spare, &op->link);
	spare_count++;
}

void endpoint_end(struct queue *q, struct op *op)
{
	if (op->endpoint->closing || (op->quiet && !op->error))
		op_free(op);
	else
		queue_add(q, op);
}

void endpoint_sent(void *io, struct engine_send *s)
{
	struct op *op = list_of(s, struct op, send);
	(void)io;
	op->endpoint->injected -= op->injected;
	endpoint_end(op->endpoint->sends, op);
}

/* describe makes the entry of a receive. */
static void describe(struct op *op)
{
	const struct engine_receive *r = &op->receive;
	op->flags |= r->has_data ? FI_REMOTE_CQ_DATA : 0;
	op->source = op->endpoint->vector->of[r->source];
	op->length = r->got;
	op->buffer = r->memory.count ? r->memory.parts[0].iov_base : NULL;
	op->data = r->data;
	op->tag = r->tag;
}

void endpoint_received(void *io, struct engine_receive *r)
{
	struct op *op = list_of(r, struct op, receive);
	(void)io;
	if (!op->endpoint->closing) {
		describe(op);
		op->excess = r->length - r->got;
		op->error = r->broken ? FI_ECONNABORTED : op->excess ? FI_ETRUNC : 0;
	}
	endpoint_end(op->endpoint->receives, op);
}

/* ---- Sending ---- */

/* The arguments of a send or a receive, in any of the forms of libfabric. */
struct call {
	const struct iovec *parts;
	size_t count;
	fi_addr_t peer;
	int tagged;
	uint64_t tag, ignore;
	int has_data;
	uint64_t data;
	void *context;
	uint64_t flags;
	int quiet; /* there is no entry */
};

/* has_room reports whether a message to a rank may be copied: those before it have left. Copies of
 * more would take memory without bound. */
static int has_room(const struct endpoint *ep, int rank)
{
	if (ep->injected < INJECTED && engine_has_left(&port.engine, rank))
		return 1;
	return port_progress() == 0 && ep->injected < INJECTED && engine_has_left(&port.engine, rank);
}

/* start_send starts to send a message that the caller describes. */
static ssize_t start_send(struct endpoint *ep, const struct call *c, const struct engine_send *s)
{
	int injected = (c->flags & FI_INJECT) != 0;
	int quiet = c->quiet || (ep->selective_sends && !(c->flags & FI_COMPLETION));
	if (injected && s->memory.length > ENGINE_SHORT)
		return -FI_EMSGSIZE;
	if (injected && !has_room(ep, s->rank))
		return -FI_EAGAIN;
	struct engine_send now = *s;
	if (quiet && engine_send_now(&port.engine, &now))
		return 0;
	struct op *op = op_make(ep, c->context, injected ? s->memory.length : 0);
	if (!op)
		return -FI_EAGAIN;
	op->flags = FI_SEND | (c->tagged ? FI_TAGGED : FI_MSG);
	op->quiet = quiet;
	op->injected = injected;
	op->send = *s;
	if (injected)
		op_copy(op, &op->send.memory);
	ep->injected += injected;
	engine_send(&port.engine, &op->send);
	return port_failed() ? -FI_EIO : 0;
}

static ssize_t send_call(struct fid_ep *fid, const struct call *c)
{
	struct endpoint *ep = list_of(fid, struct endpoint, ep);
	struct engine_send s = {.tagged = c->tagged, .has_data = c->has_data, .tag = c->tagged ? c->tag : 0, .data = c->data};
	ssize_t err = 0;
	if (c->flags & (FI_FENCE | FI_DELIVERY_COMPLETE | FI_MATCH_COMPLETE | FI_COMMIT_COMPLETE))
		return -FI_EBADFLAGS;
	if (!memory_set(&s.memory, c->parts, c->count))
		return -FI_EINVAL;
	if (s.memory.length > ENGINE_LONGEST)
		return -FI_EMSGSIZE;
	lock();
	s.rank = ep->enabled ? vector_rank(ep->vector, c->peer) : -1;
	if (!ep->enabled)
		err = -FI_EOPBADSTATE;
	else if (s.rank < 0)
		err = -FI_EINVAL;
	else if (port_failed())
		err = -FI_EIO;
	else
		err = start_send(ep, c, &s);
	unlock();
	return err;
}

/* flags_of_sends returns the flags of a call that has none. */
static uint64_t flags_of_sends(struct fid_ep *fid) { return list_of(fid, struct endpoint, ep)->send_flags; }

static ssize_t msg_send(struct fid_ep *ep, const void *buffer, size_t length, void *desc, fi_addr_t to, void *context)
{
	(void)desc;
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .context = context,
					    .flags = flags_of_sends(ep)});
}

static ssize_t msg_sendv(struct fid_ep *ep, const struct iovec *parts, void **desc, size_t count, fi_addr_t to, void *context)
{
	(void)desc;
	return send_call(ep, &(struct call){.parts = parts, .count = count, .peer = to, .context = context, .flags = flags_of_sends(ep)});
}

static ssize_t msg_sendmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	return send_call(ep, &(struct call){.parts = m->msg_iov, .count = m->iov_count, .peer = m->addr, .has_data = (flags & FI_REMOTE_CQ_DATA) != 0,
					    .data = m->data, .context = m->context, .flags = flags});
}

static ssize_t msg_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t to)
{
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .flags = FI_INJECT, .quiet = 1});
}

static ssize_t msg_senddata(struct fid_ep *ep, const void *buffer, size_t length, void *desc, uint64_t data, fi_addr_t to, void *context)
{
	(void)desc;
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .has_data = 1, .data = data,
					    .context = context, .flags = flags_of_sends(ep)});
}

static ssize_t msg_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t to)
{
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .has_data = 1, .data = data,
					    .flags = FI_INJECT, .quiet = 1});
}

static ssize_t tagged_send(struct fid_ep *ep, const void *buffer, size_t length, void *desc, fi_addr_t to, uint64_t tag, void *context)
{
	(void)desc;
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .tagged = 1, .tag = tag,
					    .context = context, .flags = flags_of_sends(ep)});
}

static ssize_t tagged_sendv(struct fid_ep *ep, const struct iovec *parts, void **desc, size_t count, fi_addr_t to, uint64_t tag, void *context)
{
	(void)desc;
	return send_call(ep, &(struct call){.parts = parts, .count = count, .peer = to, .tagged = 1, .tag = tag, .context = context,
					    .flags = flags_of_sends(ep)});
}

static ssize_t tagged_sendmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags)
{
	return send_call(ep, &(struct call){.parts = m->msg_iov, .count = m->iov_count, .peer = m->addr, .tagged = 1, .tag = m->tag,
					    .has_data = (flags & FI_REMOTE_CQ_DATA) != 0, .data = m->data, .context = m->context, .flags = flags});
}

static ssize_t tagged_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t to, uint64_t tag)
{
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .tagged = 1, .tag = tag,
					    .flags = FI_INJECT, .quiet = 1});
}

static ssize_t tagged_senddata(struct fid_ep *ep, const void *buffer, size_t length, void *desc, uint64_t data, fi_addr_t to, uint64_t tag, void *context)
{
	(void)desc;
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .tagged = 1, .tag = tag, .has_data = 1,
					    .data = data, .context = context, .flags = flags_of_sends(ep)});
}

static ssize_t tagged_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t to, uint64_t tag)
{
	return send_call(ep, &(struct call){.parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to, .tagged = 1, .tag = tag, .has_data = 1,
					    .data = data, .flags = FI_INJECT, .quiet = 1});
}

/* ---- Receiving ---- */

/* claimed_by returns the operation that has claimed a message for a context, NULL if there is
 * none. */
static struct op *claimed_by(const struct endpoint *ep, const void *context)
{
	for (struct link *l = ep->claimed.next; l != &ep->claimed; l = l->next) {
		struct op *op = list_of(l, struct op, link);
		if (op->context == context)
			return op;
	}
	return NULL;
}

/* claim keeps a message for a context. */
static int claim(struct endpoint *ep, void *context, struct engine_message *m)
{
	struct op *op = op_make(ep, context, 0);
	if (!op)
		return -FI_EAGAIN;
	engine_claim(m);
	op->claimed = m;
	list_add(&ep->claimed, &op->link);
	return 0;
}

/* peek reports the message that a receive would get. It takes messages that have come, because a
 * program that only peeks finds an entry whenever it reads its queue, which then does not. */
static ssize_t peek(struct endpoint *ep, struct op *op, uint64_t flags)
{
	struct engine_message *m = engine_peek(&port.engine, &op->receive);
	if (!m && port_progress() == 0)
		m = engine_peek(&port.engine, &op->receive);
	if (!m) {
		op->error = FI_ENOMSG;
		queue_add(ep->receives, op);
		return 0;
	}
	if (flags & FI_CLAIM && claim(ep, op->context, m) != 0) {
		op_free(op);
		return -FI_EAGAIN;
	}
	describe(op);
	op->length = op->receive.length;
	op->buffer = NULL;
	if (flags & FI_DISCARD)
		engine_discard(&port.engine, m);
	endpoint_end(ep->receives, op);
	return 0;
}

/* receive_claimed receives, or discards, the message that was claimed for a context. */
static ssize_t receive_claimed(struct endpoint *ep, struct op *op, uint64_t flags)
{
	struct op *claimed = claimed_by(ep, op->context);
	if (!claimed) {
		op_free(op);
		return -FI_EINVAL;
	}
	struct engine_message *m = claimed->claimed;
	list_remove(&claimed->link);
	op_free(claimed);
	if (flags & FI_DISCARD) {
		engine_discard(&port.engine, m);
		endpoint_end(ep->receives, op);
	} else {
		engine_accept(&port.engine, &op->receive, m);
	}
	return 0;
}

static ssize_t start_receive(struct endpoint *ep, const struct call *c, const struct memory *memory)
{
	int source = MATCH_ANY;
	if (ep->directed && c->peer != FI_ADDR_UNSPEC && (source = vector_rank(ep->vector, c->peer)) < 0)
		return -FI_EINVAL;
	struct op *op = op_make(ep, c->context, 0);
	if (!op)
		return -FI_EAGAIN;
	op->quiet = ep->selective_receives && !(c->flags & FI_COMPLETION);
	op->flags = FI_RECV | (c->tagged ? FI_TAGGED : FI_MSG);
	op->receive.tagged = c->tagged;
	op->receive.want.tag = c->tag;
	op->receive.want.ignore = c->ignore;
	op->receive.want.source = source;
	op->receive.memory = *memory;
	if (c->flags & FI_PEEK)
		return peek(ep, op, c->flags);
	if (c->flags & FI_CLAIM)
		return receive_claimed(ep, op, c->flags);
	engine_receive(&port.engine, &op->receive);
	return 0;
}

static ssize_t receive_call(struct fid_ep *fid, const struct call *c)
{
	const uint64_t special = FI_PEEK | FI_CLAIM | FI_DISCARD;
	struct endpoint *ep = list_of(fid, struct endpoint, ep);
	struct memory memory;
	ssize_t err;
	if (!memory_set(&memory, c->parts, c->count))
		return -FI_EINVAL;
	if (c->flags & FI_MULTI_RECV || (c->flags & special) == FI_DISCARD || (c->flags & special) == special)
		return -FI_EINVAL;
	lock();
	if (!ep->enabled)
		err = -FI_EOPBADSTATE;
	else if (port_failed())
		err = -FI_EIO;
	else
		err = start_receive(ep, c, &memory);
	unlock();
	return err;
}

static uint64_t flags_of_receives(struct fid_ep *fid) { return list_of(fid, struct endpoint, ep)->receive_flags; }

static ssize_t msg_recv(struct fid_ep *ep, void *buffer, size_t length, void *desc, fi_addr_t from, void *context)
{
	(void)desc;
	return receive_call(ep, &(struct call){.parts = &(struct iovec){buffer, length}, .count = 1, .peer = from, .context = context,
					       .flags = flags_of_receives(ep)});
}

static ssize_t msg_recvv(struct fid_ep *ep, const struct iovec *parts, void **desc, size_t count, fi_addr_t from, void *context)
{
	(void)desc;
	return receive_call(ep, &(struct call){.parts = parts, .count = count, .peer = from, .context = context, .flags = flags_of_receives(ep)});
}

static ssize_t msg_recvmsg(struct fid_ep *ep, const struct fi_msg *m, uint64_t flags)
{
	return receive_call(ep, &(struct call){.parts = m->msg_iov, .count = m->iov_count, .peer = m->addr, .context = m->context, .flags = flags});
}

static ssize_t tagged_recv(struct fid_ep *ep, void *buffer, size_t length, void *desc, fi_addr_t from, uint64_t tag, uint64_t ignore, void *context)
{
	(void)desc;
	return receive_call(ep, &(struct call){.parts = &(struct iovec){buffer, length}, .count = 1, .peer = from, .tagged = 1, .tag = tag, .ignore = ignore,
					       .context = context, .flags = flags_of_receives(ep)});
}

static ssize_t tagged_recvv(struct fid_ep *ep, const struct iovec *parts, void **desc, size_t count, fi_addr_t from, uint64_t tag, uint64_t ignore,
			    void *context)
{
	(void)desc;
	return receive_call(ep, &(struct call){.parts = parts, .count = count, .peer = from, .tagged = 1, .tag = tag, .ignore = ignore, .context = context,
					       .flags = flags_of_receives(ep)});
}

static ssize_t tagged_recvmsg(struct fid_ep *ep, const struct fi_msg_tagged *m, uint64_t flags)
{
	return receive_call(ep, &(struct call){.parts = m->msg_iov, .count = m->iov_count, .peer = m->addr, .tagged = 1, .tag = m->tag,
					       .ignore = m->ignore, .context = m->context, .flags = flags});
}

/* posted_for returns the posted receive of a context, NULL if there is none. */
static struct op *posted_for(const struct endpoint *ep, const void *context)
{
	for (int tagged = 0; tagged < 2; tagged++) {
		struct link *list = &port.engine.matchers[tagged].posted;
		for (struct link *l = list->next; l != list; l = l->next) {
			struct op *op = list_of(l, struct op, receive.want.link);
			if (op->endpoint == ep && op->context == context)
				return op;
		}
	}
	return NULL;
}

/* endpoint_cancel takes back a receive that has no message. A send is not taken back: its head may
 * have left. */
static ssize_t endpoint_cancel(fid_t fid, void *context)
{
	struct endpoint *ep = list_of(fid, struct endpoint, ep.fid);
	lock();
	struct op *op = posted_for(ep, context);
	if (op) {
		engine_cancel(&op->receive);
		op->tag = op->receive.want.tag;
		op->error = FI_ECANCELED;
		queue_add(ep->receives, op);
	}
	unlock();
	return op ? 0 : -FI_ENOENT;
}

/* ---- The endpoint ---- */

static int no_getopt(fid_t fid, int level, int name, void *value, size_t *length)
{
	(void)fid, (void)level, (void)name, (void)value, (void)length;
	return -FI_ENOPROTOOPT;
}

static int no_setopt(fid_t fid, int level, int name, const void *value, size_t length)
{
	(void)fid, (void)level, (void)name, (void)value, (void)length;
	return -FI_ENOPROTOOPT;
}

static int no_tx_ctx(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **tx, void *context)
{
	(void)ep, (void)index, (void)attr, (void)tx, (void)context;
	return -FI_ENOSYS;
}

static int no_rx_ctx(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **rx, void *context)
{
	(void)ep, (void)index, (void)attr, (void)rx, (void)context;
	return -FI_ENOSYS;
}

static ssize_t no_size_left(struct fid_ep *ep)
{
	(void)ep;
	return -FI_ENOSYS;
}

static int no_setname(fid_t fid, void *address, size_t length)
{
	(void)fid, (void)address, (void)length;
	return -FI_ENOSYS;
}

static int endpoint_getname(fid_t fid, void *address, size_t *length)
{
	size_t room = *length;
	(void)fid;
	lock();
	struct address a = port_address();
	unlock();
	*length = sizeof a;
	if (address)
		memcpy(address, &a, room < sizeof a ? room : sizeof a);
	return !address || room < sizeof a ? -FI_ETOOSMALL : 0;
}

static int no_getpeer(struct fid_ep *ep, void *address, size_t *length)
{
	(void)ep, (void)address, (void)length;
	return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *address, const void *data, size_t length)
{
	(void)ep, (void)address, (void)data, (void)length;
	return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *ep)
{
	(void)ep;
	return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *data, size_t length)
{
	(void)ep, (void)data, (void)length;
	return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *ep, fid_t handle, const void *data, size_t length)
{
	(void)ep, (void)handle, (void)data, (void)length;
	return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void)ep, (void)flags;
	return -FI_ENOSYS;
}

static int no_join(struct fid_ep *ep, const void *address, uint64_t flags, struct fid_mc **group, void *context)
{
	(void)ep, (void)address, (void)flags, (void)group, (void)context;
	return -FI_ENOSYS;
}

static int bind_queue(struct endpoint *ep, struct queue *q, uint64_t flags)
{
	int selective = (flags & FI_SELECTIVE_COMPLETION) != 0;
	if ((flags & FI_TRANSMIT && ep->sends) || (flags & FI_RECV && ep->receives) || !(flags & (FI_TRANSMIT | FI_RECV)))
		return -FI_EINVAL;
	if (flags & FI_TRANSMIT) {
		ep->sends = q;
		ep->selective_sends = selective;
		q->users++;
	}
	if (flags & FI_RECV) {
		ep->receives = q;
		ep->selective_receives = selective;
		q->users++;
	}
	return 0;
}

static int endpoint_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct endpoint *ep = list_of(fid, struct endpoint, ep.fid);
	int err = -FI_EINVAL;
	lock();
	if (ep->enabled) {
		err = -FI_EOPBADSTATE;
	} else if (other->fclass == FI_CLASS_AV && !ep->vector) {
		ep->vector = list_of(other, struct vector, av.fid);
		ep->vector->users++;
		err = 0;
	} else if (other->fclass == FI_CLASS_CQ) {
		err = bind_queue(ep, list_of(other, struct queue, cq.fid), flags);
	} else if (other->fclass == FI_CLASS_EQ) {
		err = 0;
	}
	unlock();
	return err;
}

static int enable(struct endpoint *ep)
{
	if (ep->enabled)
		return 0;
	if (!ep->vector)
		return -FI_ENOAV;
	if (!ep->sends || !ep->receives)
		return -FI_ENOCQ;
	if (port.endpoint) {
		FI_WARN(&provider, FI_LOG_EP_CTRL, "a process can have one endpoint at a time\n");
		return -FI_EBUSY;
	}
	port.endpoint = ep;
	ep->enabled = 1;
	return 0;
}

static int endpoint_control(struct fid *fid, int command, void *arg)
{
	(void)arg;
	if (command != FI_ENABLE)
		return -FI_ENOSYS;
	lock();
	int err = enable(list_of(fid, struct endpoint, ep.fid));
	unlock();
	return err;
}

/* is_quiet reports whether nothing is under way that an endpoint waits for before it closes.
 * is_told reports whether the other ranks have what they wait for: answers, and word of what was
 * dropped. */
static int is_quiet(void) { return !port.endpoint->injected && !port.rma.under_way; }

static int is_told(void) { return engine_is_idle(&port.engine) && rma_is_idle(&port.rma); }

/* linger waits until a condition is true, and reports whether it is. */
static int linger(int (*done)(void))
{
	struct timespec start, now;
	clock_gettime(CLOCK_MONOTONIC, &start);
	for (now = start; !done() && now.tv_sec - start.tv_sec < LINGER && port_progress() == 0;)
		clock_gettime(CLOCK_MONOTONIC, &now);
	return done();
}

static int endpoint_close(struct fid *fid)
{
	struct endpoint *ep = list_of(fid, struct endpoint, ep.fid);
	lock();
	if (ep->enabled) {
		if (!linger(is_quiet))
			FI_WARN(&provider, FI_LOG_EP_CTRL, "messages and writes are lost: the other ranks have not taken them within %d s\n", LINGER);
		ep->closing = 1;
		while (!list_empty(&ep->claimed)) {
			struct op *op = list_of(ep->claimed.next, struct op, link);
			engine_discard(&port.engine, op->claimed);
			list_remove(&op->link);
			op_free(op);
		}
		port_withdraw();
		engine_drop(&port.engine);
		rma_drop(&port.rma);
		linger(is_told);
		port.endpoint = NULL;
	}
	if (ep->vector)
		ep->vector->users--;
	if (ep->sends)
		ep->sends->users--;
	if (ep->receives)
		ep->receives->users--;
	unlock();
	free(ep);
	return 0;
}

int endpoint_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	static struct fi_ops fid_ops = {sizeof fid_ops, endpoint_close, endpoint_bind, endpoint_control, no_ops_open, NULL, NULL};
	static struct fi_ops_ep ops = {sizeof ops, endpoint_cancel, no_getopt, no_setopt, no_tx_ctx, no_rx_ctx, no_size_left, no_size_left};
	static struct fi_ops_cm cm = {sizeof cm, no_setname, endpoint_getname, no_getpeer, no_connect, no_listen, no_accept, no_reject, no_shutdown, no_join};
	static struct fi_ops_msg msg = {sizeof msg, msg_recv, msg_recvv, msg_recvmsg, msg_send, msg_sendv, msg_sendmsg, msg_inject, msg_senddata, msg_injectdata};
	static struct fi_ops_tagged tagged = {sizeof tagged, tagged_recv, tagged_recvv, tagged_recvmsg, tagged_send, tagged_sendv, tagged_sendmsg,
					      tagged_inject, tagged_senddata, tagged_injectdata};
	(void)domain;
	if (info->ep_attr && info->ep_attr->type != FI_EP_RDM)
		return -FI_EINVAL;
	struct endpoint *e = calloc(1, sizeof *e);
	if (!e)
		return -FI_ENOMEM;
	e->ep = (struct fid_ep){.fid = {FI_CLASS_EP, context, &fid_ops}, .ops = &ops, .cm = &cm, .msg = &msg, .rma = &onesided_ops, .tagged = &tagged, .atomic = &atomic_none};
	e->send_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
	e->receive_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
	e->caps = info->caps;
	e->directed = (info->caps & FI_DIRECTED_RECV) != 0;
	list_open(&e->claimed);
	*ep = &e->ep;
	return 0;
}
