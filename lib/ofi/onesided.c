/* onesided.c: reading and writing the registered memory of other ranks by an endpoint. */
#include "provider.h"

/* The flags that a call may have. All operations are complete when they have taken effect. */
#define FLAGS                                                                                                                                               \
	(FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA | FI_MORE)

/* The arguments of an operation, in any of the forms of libfabric. */
struct access {
	int writes;
	const struct iovec *parts;
	size_t count;
	fi_addr_t peer;
	uint64_t address, key;
	int has_data;
	uint64_t data;
	void *context;
	uint64_t flags;
	int quiet; /* there is no entry */
};

/* error_of is what an entry says. */
static int error_of(enum rma_status status)
{
	static const int errors[RMA_STATUSES] = {[RMA_NO_KEY] = FI_ENOKEY, [RMA_NO_ACCESS] = FI_EACCES, [RMA_OUTSIDE] = FI_EINVAL,
						 [RMA_DROPPED] = FI_ECANCELED};
	return errors[status];
}

void onesided_done(void *io, struct rma_op *r)
{
	struct op *op = list_of(r, struct op, rma);
	(void)io;
	op->endpoint->injected -= op->injected;
	op->error = error_of(r->status);
	endpoint_end(op->endpoint->sends, op);
}

int onesided_written(void *io, int rank, uint64_t length, uint64_t data)
{
	struct endpoint *ep = port.endpoint;
	struct op *op = ep ? op_make(ep, NULL, 0) : NULL;
	(void)io;
	if (ep && !op)
		port.rma.failed = 1;
	if (!op)
		return 0;
	op->event = rank;
	op->flags = FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
	op->source = ep->vector->of[rank];
	op->length = length;
	op->data = data;
	queue_add(ep->receives, op);
	return 1;
}

/* has_room reports whether a write to a rank may be copied: those before it have left. Copies of
 * more would take memory without bound. */
static int has_room(int rank)
{
	if (rma_has_room(&port.rma, rank))
		return 1;
	return port_progress() == 0 && rma_has_room(&port.rma, rank);
}

static ssize_t start(struct endpoint *ep, const struct access *a, const struct rma_op *r)
{
	int injected = (a->flags & FI_INJECT) != 0;
	if (injected && r->memory.length > ENGINE_SHORT)
		return -FI_EMSGSIZE;
	if (injected && !has_room(r->rank))
		return -FI_EAGAIN;
	struct op *op = op_make(ep, a->context, injected ? r->memory.length : 0);
	if (!op)
		return -FI_EAGAIN;
	op->flags = FI_RMA | (a->writes ? FI_WRITE : FI_READ);
	op->quiet = a->quiet || (ep->selective_sends && !(a->flags & FI_COMPLETION));
	op->injected = injected;
	op->rma = *r;
	if (injected)
		op_copy(op, &op->rma.memory);
	ep->injected += injected;
	rma_start(&port.rma, &op->rma);
	return port_failed() ? -FI_EIO : 0;
}

static ssize_t access_call(struct fid_ep *fid, const struct access *a)
{
	struct endpoint *ep = list_of(fid, struct endpoint, ep);
	struct rma_op r = {.writes = a->writes, .has_data = a->has_data, .address = a->address, .key = a->key, .data = a->data};
	uint64_t caps = FI_RMA | (a->writes ? FI_WRITE : FI_READ);
	ssize_t err;
	if ((ep->caps & caps) != caps)
		return -FI_EOPNOTSUPP;
	if (a->flags & ~FLAGS || (!a->writes && a->flags & (FI_INJECT | FI_REMOTE_CQ_DATA)))
		return -FI_EBADFLAGS;
	if (!memory_set(&r.memory, a->parts, a->count))
		return -FI_EINVAL;
	if (r.memory.length > RMA_LONGEST)
		return -FI_EMSGSIZE;
	lock();
	r.rank = ep->enabled ? vector_rank(ep->vector, a->peer) : -1;
	if (!ep->enabled)
		err = -FI_EOPBADSTATE;
	else if (r.rank < 0)
		err = -FI_EINVAL;
	else if (port_failed())
		err = -FI_EIO;
	else
		err = start(ep, a, &r);
	unlock();
	return err;
}

/* call_flags returns the flags of a call that has none; a read has no use for some of them. */
static uint64_t call_flags(struct fid_ep *fid, int writes)
{
	uint64_t flags = list_of(fid, struct endpoint, ep)->send_flags;
	return writes ? flags : flags & ~FI_INJECT;
}

static ssize_t access_part(struct fid_ep *ep, int writes, const void *buffer, size_t length, fi_addr_t peer, uint64_t address, uint64_t key,
			   void *context)
{
	return access_call(ep, &(struct access){.writes = writes, .parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = peer,
						.address = address, .key = key, .context = context, .flags = call_flags(ep, writes)});
}

static ssize_t access_parts(struct fid_ep *ep, int writes, const struct iovec *parts, size_t count, fi_addr_t peer, uint64_t address, uint64_t key,
			    void *context)
{
	return access_call(ep, &(struct access){.writes = writes, .parts = parts, .count = count, .peer = peer, .address = address, .key = key,
						.context = context, .flags = call_flags(ep, writes)});
}

/* access_msg takes one place in the memory of the other rank. */
static ssize_t access_msg(struct fid_ep *ep, int writes, const struct fi_msg_rma *m, uint64_t flags)
{
	size_t length = 0;
	for (size_t i = 0; i < m->iov_count; i++)
		length += m->msg_iov[i].iov_len;
	if (m->rma_iov_count != 1 || m->rma_iov[0].len != length)
		return -FI_EINVAL;
	return access_call(ep, &(struct access){.writes = writes, .parts = m->msg_iov, .count = m->iov_count, .peer = m->addr,
						.address = m->rma_iov[0].addr, .key = m->rma_iov[0].key, .has_data = (flags & FI_REMOTE_CQ_DATA) != 0,
						.data = m->data, .context = m->context, .flags = flags});
}

static ssize_t onesided_read(struct fid_ep *ep, void *buffer, size_t length, void *desc, fi_addr_t from, uint64_t address, uint64_t key, void *context)
{
	(void)desc;
	return access_part(ep, 0, buffer, length, from, address, key, context);
}

static ssize_t onesided_readv(struct fid_ep *ep, const struct iovec *parts, void **desc, size_t count, fi_addr_t from, uint64_t address, uint64_t key,
			      void *context)
{
	(void)desc;
	return access_parts(ep, 0, parts, count, from, address, key, context);
}

static ssize_t onesided_readmsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags) { return access_msg(ep, 0, m, flags); }

static ssize_t onesided_write(struct fid_ep *ep, const void *buffer, size_t length, void *desc, fi_addr_t to, uint64_t address, uint64_t key,
			      void *context)
{
	(void)desc;
	return access_part(ep, 1, buffer, length, to, address, key, context);
}

static ssize_t onesided_writev(struct fid_ep *ep, const struct iovec *parts, void **desc, size_t count, fi_addr_t to, uint64_t address, uint64_t key,
			       void *context)
{
	(void)desc;
	return access_parts(ep, 1, parts, count, to, address, key, context);
}

static ssize_t onesided_writemsg(struct fid_ep *ep, const struct fi_msg_rma *m, uint64_t flags) { return access_msg(ep, 1, m, flags); }

static ssize_t onesided_writedata(struct fid_ep *ep, const void *buffer, size_t length, void *desc, uint64_t data, fi_addr_t to, uint64_t address,
				  uint64_t key, void *context)
{
	(void)desc;
	return access_call(ep, &(struct access){.writes = 1, .parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to,
						.address = address, .key = key, .has_data = 1, .data = data, .context = context,
						.flags = call_flags(ep, 1)});
}

static ssize_t onesided_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t to, uint64_t address, uint64_t key)
{
	return access_call(ep, &(struct access){.writes = 1, .parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to,
						.address = address, .key = key, .flags = FI_INJECT, .quiet = 1});
}

static ssize_t onesided_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t to, uint64_t address, uint64_t key)
{
	return access_call(ep, &(struct access){.writes = 1, .parts = &(struct iovec){(void *)buffer, length}, .count = 1, .peer = to,
						.address = address, .key = key, .has_data = 1, .data = data, .flags = FI_INJECT, .quiet = 1});
}

struct fi_ops_rma onesided_ops = {sizeof onesided_ops, onesided_read, onesided_readv, onesided_readmsg, onesided_write, onesided_writev,
				  onesided_writemsg, onesided_inject, onesided_writedata, onesided_injectdata};
