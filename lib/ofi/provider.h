/* provider.h: what the files of the libfabric provider share. One lock guards all of it: the
 * library of C programs is not safe for use by several threads. Every function that libfabric calls
 * takes the lock; the functions here are called with it. */
#ifndef MARGAY_OFI_PROVIDER_H
#define MARGAY_OFI_PROVIDER_H

#include <pthread.h>
#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
#include <rdma/fi_tagged.h>
#include <rdma/providers/fi_log.h>
#include <rdma/providers/fi_prov.h>

#include "engine.h"
#include "rma.h"

extern struct fi_provider provider;
extern pthread_mutex_t provider_lock;

static inline void lock(void) { pthread_mutex_lock(&provider_lock); }
static inline void unlock(void) { pthread_mutex_unlock(&provider_lock); }

/* The address of an endpoint. Another process may have written it. */
struct address {
	uint32_t magic, job, rank, zero;
};

#define ADDRESS_MAGIC 0x4d677946

/* The end of this process in its job: there is one, since a process has one rank. */
struct port {
	struct engine engine;
	struct rma rma;
	int joined;
	uint64_t mark;	/* of this process and its places: no other one has it there */
	int apart;	/* the ranks of its node cannot read each other */
	int64_t look;	/* when the ranks that are awaited are looked at, ms */
	struct patience *patience; /* by rank */
	void *regions;	/* a tree of regions (region.c) */
	struct endpoint *endpoint; /* the one that sends and receives, NULL if there is none */
};

extern struct port port;

/* How long a rank is awaited, in ms. */
struct patience {
	int wait; /* 0: it has sent something since the last look */
	int64_t due;
};

/* port_failed reports whether messages cannot be sent or received any more. */
static inline int port_failed(void) { return port.engine.failed || port.rma.failed; }

/* port_join joins the job, once, and returns 0 or a negative error of libfabric. port_progress
 * sends and receives, and returns -FI_EIO if that is not possible any more. port_address is the
 * address of this process, and port_rank the rank of an address, -1 if it is none of this job. */
int port_join(void);
int port_progress(void);
struct address port_address(void);
int port_rank(const struct address *a);

/* port_withdraw makes the places invalid that this process has offered: a rank that copies from one
 * later, or at this moment, finds out. It is called before memory that was offered is the program's
 * again without word of the other ranks. */
void port_withdraw(void);

/* An address vector: a table of ranks, of either type. */
struct vector {
	struct fid_av av;
	int *ranks; /* by fi_addr_t */
	size_t count, room;
	fi_addr_t *of; /* by rank */
	int users;     /* endpoints that are bound to it */
};

int vector_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context);

/* vector_rank is the rank of an entry, -1 if there is none. */
int vector_rank(const struct vector *v, fi_addr_t at);

/* A send, a receive, a read or a write of the application, or an event of another rank's write,
 * and its entry in a completion queue. */
struct op {
	struct link link; /* in the queue, or among those that were claimed */
	struct endpoint *endpoint;
	void *context;
	uint64_t flags; /* of the completion */
	int quiet;	/* it has no entry, but for an error */
	int injected;	/* the application takes it for sent */
	int event;	/* rank that has written, or -1 */
	int error;
	fi_addr_t source;
	size_t length, excess;
	void *buffer;
	uint64_t data, tag;
	struct engine_message *claimed;
	union {
		struct engine_send send;
		struct engine_receive receive;
		struct rma_op rma;
	};
	char copy[]; /* of an injected message */
};

/* op_make makes an operation with room for a copy of so many bytes, NULL if there is no memory.
 * op_copy copies a memory there, and sets it to the copy. op_free frees it. */
struct op *op_make(struct endpoint *ep, void *context, size_t copy);
void op_copy(struct op *op, struct memory *m);
void op_free(struct op *op);

/* A completion queue. */
struct queue {
	struct fid_cq cq;
	struct link entries;
	enum fi_cq_format format;
	int users; /* endpoints that are bound to it */
};

int queue_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq, void *context);

/* queue_add adds an operation that is complete. */
void queue_add(struct queue *q, struct op *op);

struct endpoint {
	struct fid_ep ep;
	struct vector *vector;
	struct queue *sends, *receives;
	int selective_sends, selective_receives;
	uint64_t send_flags, receive_flags; /* of calls without flags */
	uint64_t caps;
	int directed;			    /* receives may name a source */
	int enabled, closing;
	int injected;		/* messages under way that the application takes for sent */
	struct link claimed;	/* operations whose message was claimed */
};

int endpoint_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context);

/* endpoint_end ends an operation: it is an entry of a queue, or freed. */
void endpoint_end(struct queue *q, struct op *op);

/* endpoint_sent and endpoint_received are called by the engine. */
void endpoint_sent(void *io, struct engine_send *s);
void endpoint_received(void *io, struct engine_receive *r);

/* onesided_ops are the functions that read and write the memory of other ranks. They fail for
 * endpoints without the capability. struct rma calls onesided_done and onesided_written. */
extern struct fi_ops_rma onesided_ops;
void onesided_done(void *io, struct rma_op *r);
int onesided_written(void *io, int rank, uint64_t length, uint64_t data);

/* atomic_none are functions that fail. */
extern struct fi_ops_atomic atomic_none;

/* region_ops are the functions that register memory. region_find returns the region of a key, NULL
 * if there is none. */
extern struct fi_ops_mr region_ops;
const struct rma_region *region_find(void *io, uint64_t key);

/* The functions of objects that do not have them. */
int no_bind(struct fid *fid, struct fid *other, uint64_t flags);
int no_control(struct fid *fid, int command, void *arg);
int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context);

#endif
