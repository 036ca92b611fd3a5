/* queue.c: completion queues. They are as long as they must be: an operation is its own entry. */
#include "provider.h"

#include <stdlib.h>
#include <string.h>

void queue_add(struct queue *q, struct op *op) { list_add(&q->entries, &op->link); }

static struct op *first(struct queue *q) { return list_empty(&q->entries) ? NULL : list_of(q->entries.next, struct op, link); }

static size_t entry_size(enum fi_cq_format format)
{
	switch (format) {
	case FI_CQ_FORMAT_MSG:
		return sizeof(struct fi_cq_msg_entry);
	case FI_CQ_FORMAT_DATA:
		return sizeof(struct fi_cq_data_entry);
	case FI_CQ_FORMAT_TAGGED:
		return sizeof(struct fi_cq_tagged_entry);
	default:
		return sizeof(struct fi_cq_entry);
	}
}

static ssize_t queue_readfrom(struct fid_cq *cq, void *buffer, size_t count, fi_addr_t *source)
{
	struct queue *q = list_of(cq, struct queue, cq);
	size_t n = 0, size = entry_size(q->format);
	ssize_t err = 0;
	lock();
	if (list_empty(&q->entries) || count == 0)
		err = port_progress();
	for (struct op *op; n < count && (op = first(q)) && !op->error; n++) {
		/* The entry of each format is the beginning of this one. */
		struct fi_cq_tagged_entry entry = {op->context, op->flags, op->length, op->buffer, op->data, op->tag};
		memcpy((char *)buffer + n * size, &entry, size);
		if (source)
			source[n] = op->source;
		list_remove(&op->link);
		op_free(op);
	}
	if (n == 0 && first(q))
		err = first(q)->error ? -FI_EAVAIL : 0;
	unlock();
	return n > 0 ? (ssize_t)n : err ? err : -FI_EAGAIN;
}

static ssize_t queue_read(struct fid_cq *cq, void *buffer, size_t count) { return queue_readfrom(cq, buffer, count, NULL); }

static ssize_t queue_readerr(struct fid_cq *cq, struct fi_cq_err_entry *entry, uint64_t flags)
{
	struct queue *q = list_of(cq, struct queue, cq);
	(void)flags;
	lock();
	struct op *op = first(q);
	if (op && op->error) {
		list_remove(&op->link);
		entry->op_context = op->context;
		entry->flags = op->flags;
		entry->len = op->length;
		entry->buf = op->buffer;
		entry->data = op->data;
		entry->tag = op->tag;
		entry->olen = op->excess;
		entry->err = entry->prov_errno = op->error;
		op_free(op);
	} else {
		op = NULL;
	}
	unlock();
	return op ? 1 : -FI_EAGAIN;
}

static ssize_t no_sread(struct fid_cq *cq, void *buffer, size_t count, const void *condition, int timeout)
{
	(void)cq, (void)buffer, (void)count, (void)condition, (void)timeout;
	return -FI_ENOSYS;
}

static ssize_t no_sreadfrom(struct fid_cq *cq, void *buffer, size_t count, fi_addr_t *source, const void *condition, int timeout)
{
	(void)cq, (void)buffer, (void)count, (void)source, (void)condition, (void)timeout;
	return -FI_ENOSYS;
}

static int no_signal(struct fid_cq *cq)
{
	(void)cq;
	return -FI_ENOSYS;
}

static const char *queue_strerror(struct fid_cq *cq, int error, const void *data, char *buffer, size_t length)
{
	const char *text = fi_strerror(error);
	(void)cq, (void)data;
	if (buffer && length > 0) {
		strncpy(buffer, text, length - 1);
		buffer[length - 1] = 0;
	}
	return text;
}

static int queue_close(struct fid *fid)
{
	struct queue *q = list_of(fid, struct queue, cq.fid);
	lock();
	int users = q->users;
	for (struct op *op; !users && (op = first(q));) {
		list_remove(&op->link);
		op_free(op);
	}
	if (!users)
		port_progress(); /* answers leave that were held back for the entries */
	unlock();
	if (users)
		return -FI_EBUSY;
	free(q);
	return 0;
}

int queue_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context)
{
	static struct fi_ops fid_ops = {sizeof fid_ops, queue_close, no_bind, no_control, no_ops_open, NULL, NULL};
	static struct fi_ops_cq ops = {sizeof ops, queue_read, queue_readfrom, queue_readerr, no_sread, no_sreadfrom, no_signal, queue_strerror};
	(void)domain;
	if (attr->wait_obj != FI_WAIT_NONE || attr->format > FI_CQ_FORMAT_TAGGED)
		return -FI_ENOSYS;
	struct queue *q = calloc(1, sizeof *q);
	if (!q)
		return -FI_ENOMEM;
	list_open(&q->entries);
	q->format = attr->format;
	q->cq = (struct fid_cq){{FI_CLASS_CQ, context, &fid_ops}, &ops};
	*cq = &q->cq;
	return 0;
}
