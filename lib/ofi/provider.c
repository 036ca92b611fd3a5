/* provider.c: what libfabric finds first: which endpoints there are, the fabric, the domain, and
 * event queues without events. */
#define _GNU_SOURCE
#include "provider.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "margay.h"

#define NAME "margay"
#define PROTOCOL 0x80004d67 /* between endpoints of this provider */
#define SENDS 1024	    /* at a time; more are possible */
#define REGIONS 65536	    /* at a time; more are possible */
#define HANDLERS 240	    /* number of the first handler */
#define PULL ((size_t)1 << 30) /* bytes that are copied by one call of Linux, which copies at most 2^31 */

/* How long a rank is awaited before it is probed, in ms. It doubles with each probe. */
#define LOOK 100
#define FIRST_PATIENCE 250
#define MOST_PATIENCE 3600000

#define KINDS (FI_MSG | FI_TAGGED | FI_RMA)
#define ACCESS (FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE)
#define PRIMARY (KINDS | FI_SEND | FI_RECV | FI_DIRECTED_RECV | ACCESS)
#define SECONDARY (FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM)
#define SEND_FLAGS (FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE)
#define RECEIVE_FLAGS FI_COMPLETION

_Static_assert(ENGINE_PAYLOAD <= MARGAY_MAX_PAYLOAD && RMA_PAYLOAD <= MARGAY_MAX_PAYLOAD, "these messages are posted");
_Static_assert(HANDLERS + ENGINE_KINDS + RMA_KINDS <= MARGAY_MAX_HANDLERS, "each kind of message has a handler");

pthread_mutex_t provider_lock = PTHREAD_MUTEX_INITIALIZER;
struct port port;

int no_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)other, (void)flags;
	return -FI_ENOSYS;
}

int no_control(struct fid *fid, int command, void *arg)
{
	(void)fid, (void)command, (void)arg;
	return -FI_ENOSYS;
}

int no_ops_open(struct fid *fid, const char *name, uint64_t flags, void **ops, void *context)
{
	(void)fid, (void)name, (void)flags, (void)ops, (void)context;
	return -FI_ENOSYS;
}

/* ---- The port ---- */

static int post(void *io, int rank, int kind, const uint64_t args[2], const void *payload, size_t length)
{
	(void)io;
	return margay_post(rank, HANDLERS + kind, args[0], args[1], payload, length);
}

static int post_rma(void *io, int rank, int kind, const uint64_t args[2], const void *payload, size_t length)
{
	return post(io, rank, ENGINE_KINDS + kind, args, payload, length);
}

/* YAMA is where Linux says whether processes may read others that they have not started. */
#define YAMA "/proc/sys/kernel/yama/ptrace_scope"

/* are_apart reports whether Linux keeps the ranks of a node from reading each other, does not have
 * the call, or a filter forbids it. Then this one does not try: it might read for another rank what
 * that one may not. */
static int are_apart(void)
{
	char scope = '0';
	uint64_t mark = 0;
	struct iovec there = {&port.mark, sizeof port.mark}, here = {&mark, sizeof mark};
	int f = open(YAMA, O_RDONLY | O_CLOEXEC);
	if (f >= 0) {
		int known = read(f, &scope, 1) == 1;
		close(f);
		if (!known || scope != '0')
			return 1;
	}
	return process_vm_readv(getpid(), &here, 1, &there, 1, 0) != sizeof mark;
}

/* is_own reports whether a number is the one of a thread of this process. */
static int is_own(uint64_t number) { return syscall(SYS_tgkill, getpid(), (int)number, 0) == 0; }

/* PLACE_LEAST is the least that is copied at once, in bytes. Less is faster in pieces: a copy takes
 * two system calls. */
#define PLACE_LEAST 8192

/* offer proves to the ranks of this node which process this is: its number, and a word that is
 * somewhere in its memory. Another process of that number does not have the word there, nor has
 * this one after port_withdraw. */
static int offer(void *io, int rank, uint64_t length, uint64_t proof[PLACE_PROOF])
{
	(void)io;
	proof[0] = getpid();
	proof[1] = (uintptr_t)&port.mark;
	proof[2] = port.mark;
	return length >= PLACE_LEAST && !port.apart && margay_node_of(rank) == margay_node();
}

void port_withdraw(void)
{
	port.mark++;
	__sync_synchronize(); /* before anything else is written where the places are */
}

/* pull_some copies length bytes from an offset of a place to the same one of a memory. Linux copies
 * the parts in order, and the mark is the last one: if it is right, the place was offered until all
 * bytes had been copied. */
static int pull_some(const struct place *from, const struct memory *to, size_t offset, size_t length)
{
	uint64_t mark = 0;
	struct iovec there[MEMORY_PARTS + 1], here[MEMORY_PARTS + 1];
	struct memory source, target;
	memory_range(&source, &from->memory, offset, length);
	memory_range(&target, to, offset, length);
	memcpy(there, source.parts, source.count * sizeof there[0]);
	memcpy(here, target.parts, target.count * sizeof here[0]);
	there[source.count] = (struct iovec){(void *)(uintptr_t)from->proof[1], sizeof mark};
	here[target.count] = (struct iovec){&mark, sizeof mark};
	ssize_t n = process_vm_readv(from->proof[0], here, target.count + 1, there, source.count + 1, 0);
	return n == (ssize_t)(sizeof mark + length) && mark == from->proof[2];
}

static int pull(void *io, int rank, const struct place *from, const struct memory *to)
{
	(void)io;
	if (port.apart || margay_node_of(rank) != margay_node() || from->proof[0] > INT_MAX)
		return 0;
	if (rank != margay_rank() && is_own(from->proof[0]))
		return 0; /* it would have the memory of this process without a right to it */
	for (size_t at = 0, n; at < to->length; at += n) {
		n = to->length - at < PULL ? to->length - at : PULL;
		if (!pull_some(from, to, at, n))
			return 0;
	}
	return 1;
}

static const struct engine_io calls = {post, offer, pull, endpoint_sent, endpoint_received};
static const struct rma_io rma_calls = {post_rma, offer, pull, region_find, onesided_done, onesided_written};

static void arrive(const struct margay_am *m, void *data)
{
	uint64_t before = port.engine.nonsense + port.rma.nonsense;
	int kind = m->handler - HANDLERS;
	(void)data;
	if (m->extension)
		return;
	port.patience[m->source].wait = 0;
	if (kind < ENGINE_KINDS)
		engine_arrive(&port.engine, m->source, kind, m->args, m->payload, m->length);
	else
		rma_arrive(&port.rma, m->source, kind - ENGINE_KINDS, m->args, m->payload, m->length);
	if (port.engine.nonsense + port.rma.nonsense != before)
		FI_WARN(&provider, FI_LOG_EP_DATA, "rank %d sent a message that makes no sense; it is dropped\n", m->source);
}

/* probe sends something to each rank that is awaited for long: if that has ended, the job ends. */
static void probe(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
	int64_t now = t.tv_sec * INT64_C(1000) + t.tv_nsec / 1000000;
	if (now < port.look)
		return;
	port.look = now + LOOK;
	for (int rank = 0; rank < margay_size(); rank++) {
		struct patience *p = &port.patience[rank];
		int awaited = engine_awaits(&port.engine, rank) || rma_awaits(&port.rma, rank);
		if (awaited && p->wait && now >= p->due)
			rma_probe(&port.rma, rank);
		else if (awaited && p->wait)
			continue;
		p->wait = !awaited ? 0 : !p->wait ? FIRST_PATIENCE : p->wait < MOST_PATIENCE / 2 ? 2 * p->wait : MOST_PATIENCE;
		p->due = now + p->wait;
	}
}

/* is_rank reports whether this process can be a rank: it has the socket of one. */
static int is_rank(void)
{
	const char *text = getenv("MARGAY_FD");
	struct stat info;
	return text && fstat(atoi(text), &info) == 0 && S_ISSOCK(info.st_mode);
}

int port_join(void)
{
	if (port.joined)
		return 0;
	if (margay_init() != 0) {
		FI_WARN(&provider, FI_LOG_DOMAIN, "%s\n", margay_error());
		return -FI_EBUSY;
	}
	port.patience = calloc(margay_size(), sizeof *port.patience);
	port.apart = getrandom(&port.mark, sizeof port.mark, 0) != sizeof port.mark || are_apart();
	/* A child does not inherit a lock that another thread holds. */
	if (!port.patience || engine_open(&port.engine, margay_size(), &calls, NULL) != 0 ||
	    rma_open(&port.rma, margay_size(), &rma_calls, NULL) != 0 || pthread_atfork(lock, unlock, unlock) != 0)
		return -FI_ENOMEM;
	for (int kind = 0; kind < ENGINE_KINDS + RMA_KINDS; kind++)
		margay_handle(HANDLERS + kind, arrive, NULL);
	port.joined = 1;
	return 0;
}

int port_progress(void)
{
	if (margay_poll() < 0)
		port.engine.failed = 1;
	if (port_failed()) {
		FI_WARN_ONCE(&provider, FI_LOG_EP_DATA, "messages cannot be sent or received any more: %s\n", margay_error());
		return -FI_EIO;
	}
	engine_progress(&port.engine);
	rma_progress(&port.rma);
	probe();
	return 0;
}

struct address port_address(void) { return (struct address){ADDRESS_MAGIC, margay_job(), margay_rank(), 0}; }

int port_rank(const struct address *a)
{
	if (a->magic != ADDRESS_MAGIC || a->job != (uint32_t)margay_job() || a->rank >= (uint32_t)margay_size() || a->zero)
		return -1;
	return a->rank;
}

/* ---- Event queues ---- */

static int eq_close(struct fid *fid)
{
	free(list_of(fid, struct fid_eq, fid));
	return 0;
}

static ssize_t eq_read(struct fid_eq *eq, uint32_t *event, void *buffer, size_t length, uint64_t flags)
{
	(void)eq, (void)event, (void)buffer, (void)length, (void)flags;
	return -FI_EAGAIN;
}

static ssize_t eq_readerr(struct fid_eq *eq, struct fi_eq_err_entry *entry, uint64_t flags)
{
	(void)eq, (void)entry, (void)flags;
	return -FI_EAGAIN;
}

static ssize_t eq_write(struct fid_eq *eq, uint32_t event, const void *buffer, size_t length, uint64_t flags)
{
	(void)eq, (void)event, (void)buffer, (void)length, (void)flags;
	return -FI_ENOSYS;
}

static ssize_t eq_sread(struct fid_eq *eq, uint32_t *event, void *buffer, size_t length, int timeout, uint64_t flags)
{
	(void)eq, (void)event, (void)buffer, (void)length, (void)timeout, (void)flags;
	return -FI_ENOSYS;
}

static const char *eq_strerror(struct fid_eq *eq, int error, const void *data, char *buffer, size_t length)
{
	(void)eq, (void)data, (void)buffer, (void)length;
	return fi_strerror(error);
}

/* eq_open opens an event queue. No event comes: endpoints do not connect, and addresses are
 * inserted at once. */
static int eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **eq, void *context)
{
	static struct fi_ops fid_ops = {sizeof fid_ops, eq_close, no_bind, no_control, no_ops_open, NULL, NULL};
	static struct fi_ops_eq ops = {sizeof ops, eq_read, eq_readerr, eq_write, eq_sread, eq_strerror};
	(void)fabric;
	if (attr && attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC)
		return -FI_ENOSYS;
	if (!(*eq = calloc(1, sizeof **eq)))
		return -FI_ENOMEM;
	**eq = (struct fid_eq){{FI_CLASS_EQ, context, &fid_ops}, &ops};
	return 0;
}

/* ---- The domain ---- */

static int domain_close(struct fid *fid)
{
	free(list_of(fid, struct fid_domain, fid));
	return 0;
}

static int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	(void)domain, (void)info, (void)ep, (void)context;
	return -FI_ENOSYS;
}

static int no_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **cntr, void *context)
{
	(void)domain, (void)attr, (void)cntr, (void)context;
	return -FI_ENOSYS;
}

static int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **set)
{
	(void)domain, (void)attr, (void)set;
	return -FI_ENOSYS;
}

static int no_stx_ctx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context)
{
	(void)domain, (void)attr, (void)stx, (void)context;
	return -FI_ENOSYS;
}

static int no_srx_ctx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep, void *context)
{
	(void)domain, (void)attr, (void)ep, (void)context;
	return -FI_ENOSYS;
}

static int no_atomic(struct fid_domain *domain, enum fi_datatype type, enum fi_op op, struct fi_atomic_attr *attr, uint64_t flags)
{
	(void)domain, (void)type, (void)op, (void)attr, (void)flags;
	return -FI_EOPNOTSUPP;
}

static int no_collective(struct fid_domain *domain, enum fi_collective_op op, struct fi_collective_attr *attr, uint64_t flags)
{
	(void)domain, (void)op, (void)attr, (void)flags;
	return -FI_EOPNOTSUPP;
}

static int domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, void *context)
{
	static struct fi_ops fid_ops = {sizeof fid_ops, domain_close, no_bind, no_control, no_ops_open, NULL, NULL};
	static struct fi_ops_domain ops = {.size = sizeof ops, .av_open = vector_open, .cq_open = queue_open, .endpoint = endpoint_open,
					   .scalable_ep = no_scalable_ep, .cntr_open = no_cntr_open, .poll_open = no_poll_open, .stx_ctx = no_stx_ctx,
					   .srx_ctx = no_srx_ctx, .query_atomic = no_atomic, .query_collective = no_collective};
	(void)fabric, (void)info;
	struct fid_domain *d = calloc(1, sizeof *d);
	if (!d)
		return -FI_ENOMEM;
	lock();
	int err = port_join();
	unlock();
	if (err) {
		free(d);
		return err;
	}
	*d = (struct fid_domain){{FI_CLASS_DOMAIN, context, &fid_ops}, &ops, &region_ops};
	*domain = d;
	return 0;
}

/* ---- The fabric ---- */

static int fabric_close(struct fid *fid)
{
	free(list_of(fid, struct fid_fabric, fid));
	return 0;
}

static int no_passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **ep, void *context)
{
	(void)fabric, (void)info, (void)ep, (void)context;
	return -FI_ENOSYS;
}

static int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **set)
{
	(void)fabric, (void)attr, (void)set;
	return -FI_ENOSYS;
}

static int no_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	(void)fabric, (void)fids, (void)count;
	return -FI_ENOSYS;
}

static int fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)
{
	static struct fi_ops fid_ops = {sizeof fid_ops, fabric_close, no_bind, no_control, no_ops_open, NULL, NULL};
	static struct fi_ops_fabric ops = {.size = sizeof ops, .domain = domain_open, .passive_ep = no_passive_ep, .eq_open = eq_open,
					   .wait_open = no_wait_open, .trywait = no_trywait};
	if (attr->name && strcmp(attr->name, NAME) != 0)
		return -FI_ENODATA;
	if (!(*fabric = calloc(1, sizeof **fabric)))
		return -FI_ENOMEM;
	**fabric = (struct fid_fabric){{FI_CLASS_FABRIC, context, &fid_ops}, &ops, attr->api_version};
	return 0;
}

/* ---- Which endpoints there are ---- */

/* other reports whether a name is asked for that is not the one here. */
static int other(const char *asked, const char *here) { return asked && strcmp(asked, here) != 0; }

static int has_ep(const struct fi_ep_attr *a)
{
	return (a->type == FI_EP_UNSPEC || a->type == FI_EP_RDM) && (!a->protocol || a->protocol == PROTOCOL) && a->protocol_version <= 1 &&
	       a->max_msg_size <= ENGINE_LONGEST && !a->msg_prefix_size && !a->max_order_raw_size && !a->max_order_war_size && !a->max_order_waw_size &&
	       a->tx_ctx_cnt <= 1 && a->rx_ctx_cnt <= 1 && !a->auth_key_size;
}

static int has_domain(const struct fi_domain_attr *a, uint64_t caps)
{
	return !other(a->name, NAME) && a->control_progress != FI_PROGRESS_AUTO && a->data_progress != FI_PROGRESS_AUTO &&
	       a->cq_data_size <= sizeof(uint64_t) && a->ep_cnt <= 1 && a->tx_ctx_cnt <= 1 && a->rx_ctx_cnt <= 1 && a->max_ep_tx_ctx <= 1 &&
	       a->max_ep_rx_ctx <= 1 && !a->max_ep_stx_ctx && !a->max_ep_srx_ctx && !a->cntr_cnt && a->mr_iov_limit <= MEMORY_PARTS &&
	       a->mr_cnt <= REGIONS && a->mr_key_size <= sizeof(uint64_t) && (a->mr_mode != FI_MR_BASIC || !(caps & FI_RMA)) &&
	       !(a->caps & ~(FI_LOCAL_COMM | FI_REMOTE_COMM)) && !a->auth_key_size && !a->max_err_data;
}

/* has_send does not have FI_DELIVERY_COMPLETE for messages. */
static int has_send(const struct fi_tx_attr *a, uint64_t caps)
{
	uint64_t flags = (caps & KINDS) == FI_RMA ? SEND_FLAGS | FI_DELIVERY_COMPLETE : SEND_FLAGS;
	return !(a->caps & ~(PRIMARY | SECONDARY)) && !(a->op_flags & ~flags) && !(a->msg_order & ~FI_ORDER_SAS) && !a->comp_order &&
	       a->inject_size <= ENGINE_SHORT && a->size <= SENDS && a->iov_limit <= MEMORY_PARTS && a->rma_iov_limit <= 1;
}

static int has_receive(const struct fi_rx_attr *a)
{
	return !(a->caps & ~(PRIMARY | SECONDARY)) && !(a->op_flags & ~RECEIVE_FLAGS) && !(a->msg_order & ~FI_ORDER_SAS) && !a->comp_order &&
	       a->size <= SENDS && a->iov_limit <= MEMORY_PARTS;
}

/* offers reports whether hints can be met. */
static int offers(const struct fi_info *h)
{
	if ((h->caps & ~(PRIMARY | SECONDARY)) || h->addr_format != FI_FORMAT_UNSPEC || (h->dest_addr && h->dest_addrlen != sizeof(struct address)))
		return 0;
	if (h->fabric_attr && (other(h->fabric_attr->name, NAME) || (h->fabric_attr->prov_name && !strcasestr(h->fabric_attr->prov_name, NAME))))
		return 0;
	return (!h->ep_attr || has_ep(h->ep_attr)) && (!h->domain_attr || has_domain(h->domain_attr, h->caps)) && (!h->tx_attr || has_send(h->tx_attr, h->caps)) &&
	       (!h->rx_attr || has_receive(h->rx_attr));
}

/* caps_for returns the capabilities of an endpoint: primary ones if they are asked for, or all if
 * none is. */
static uint64_t caps_for(uint64_t asked)
{
	uint64_t kinds = asked & KINDS ? asked & KINDS : KINDS;
	uint64_t ways = asked & (FI_SEND | FI_RECV) ? asked & (FI_SEND | FI_RECV) : FI_SEND | FI_RECV;
	uint64_t access = asked & ACCESS ? asked & ACCESS : ACCESS;
	if (asked == 0)
		return PRIMARY | SECONDARY;
	return kinds | (kinds & (FI_MSG | FI_TAGGED) ? ways : 0) | (kinds & FI_RMA ? access : 0) | (asked & FI_DIRECTED_RECV) | SECONDARY;
}

static int fill(struct fi_info *i, uint32_t version, const struct fi_info *h)
{
	uint64_t caps = caps_for(h ? h->caps : 0);
	const struct fi_domain_attr *d = h ? h->domain_attr : NULL;
	i->caps = caps;
	i->addr_format = FI_FORMAT_UNSPEC;
	*i->tx_attr = (struct fi_tx_attr){.caps = caps & ~(FI_RECV | FI_DIRECTED_RECV | FI_SOURCE | FI_REMOTE_READ | FI_REMOTE_WRITE), .op_flags = h && h->tx_attr ? h->tx_attr->op_flags : 0,
					  .msg_order = FI_ORDER_SAS, .inject_size = ENGINE_SHORT, .size = SENDS, .iov_limit = MEMORY_PARTS,
					  .rma_iov_limit = 1};
	*i->rx_attr = (struct fi_rx_attr){.caps = caps & ~(FI_SEND | FI_READ | FI_WRITE), .op_flags = h && h->rx_attr ? h->rx_attr->op_flags : 0, .msg_order = FI_ORDER_SAS,
					  .size = SENDS, .iov_limit = MEMORY_PARTS};
	*i->ep_attr = (struct fi_ep_attr){.type = FI_EP_RDM, .protocol = PROTOCOL, .protocol_version = 1, .max_msg_size = ENGINE_LONGEST,
					  .mem_tag_format = h && h->ep_attr && h->ep_attr->mem_tag_format ? h->ep_attr->mem_tag_format : ~(uint64_t)0,
					  .tx_ctx_cnt = 1, .rx_ctx_cnt = 1};
	i->domain_attr->threading = d && d->threading ? d->threading : FI_THREAD_SAFE;
	i->domain_attr->control_progress = i->domain_attr->data_progress = FI_PROGRESS_MANUAL;
	i->domain_attr->resource_mgmt = FI_RM_ENABLED;
	i->domain_attr->av_type = d && d->av_type ? d->av_type : FI_AV_TABLE;
	/* Addresses of registered memory count from 0, and programs choose the keys. */
	i->domain_attr->mr_mode = FI_VERSION_LT(version, FI_VERSION(1, 5)) || (d && d->mr_mode == FI_MR_SCALABLE) ? FI_MR_SCALABLE : 0;
	i->domain_attr->mr_key_size = sizeof(uint64_t);
	i->domain_attr->mr_iov_limit = MEMORY_PARTS;
	i->domain_attr->mr_cnt = REGIONS;
	i->domain_attr->cq_data_size = sizeof(uint64_t);
	i->domain_attr->cq_cnt = SENDS;
	i->domain_attr->ep_cnt = i->domain_attr->tx_ctx_cnt = i->domain_attr->rx_ctx_cnt = 1;
	i->domain_attr->max_ep_tx_ctx = i->domain_attr->max_ep_rx_ctx = 1;
	i->domain_attr->caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
	i->domain_attr->name = strdup(NAME);
	i->fabric_attr->name = strdup(NAME);
	if (!i->domain_attr->name || !i->fabric_attr->name)
		return -FI_ENOMEM;
	if (h && h->dest_addr) {
		if (!(i->dest_addr = malloc(h->dest_addrlen)))
			return -FI_ENOMEM;
		memcpy(i->dest_addr, h->dest_addr, h->dest_addrlen);
		i->dest_addrlen = h->dest_addrlen;
	}
	return 0;
}

/* getinfo is silent for processes that are not ranks: libfabric asks each provider. A name is
 * resolved by none of its services. */
static int getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints, struct fi_info **info)
{
	(void)flags;
	if (!is_rank() || node || service || (hints && !offers(hints)))
		return -FI_ENODATA;
	if (!(*info = fi_allocinfo()))
		return -FI_ENOMEM;
	int err = fill(*info, version, hints);
	if (err) {
		fi_freeinfo(*info);
		*info = NULL;
	}
	return err;
}

/* cleanup leaves the job joined: it ends with the process, and other ranks wait for no other
 * end. */
static void cleanup(void) {}

struct fi_provider provider = {
	.version = FI_VERSION(1, 0),
	.fi_version = FI_VERSION(FI_MAJOR_VERSION, FI_MINOR_VERSION),
	.name = NAME,
	.getinfo = getinfo,
	.fabric = fabric_open,
	.cleanup = cleanup,
};

FI_EXT_INI { return &provider; }
