/* Two or more ranks use the provider as a library of MPI does: tagged messages of every length, sent
 * before and after their receives are posted, with ignored bits, a named source, a data word, in
 * parts, injected, truncated, probed, claimed and cancelled. Rank 0 prints "tagged: ok". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_tagged.h>

#define CHECK(what)                                                                                                                                         \
	do {                                                                                                                                                \
		if (!(what)) {                                                                                                                              \
			fprintf(stderr, "rank %u, line %d: not true: %s\n", self, __LINE__, #what);                                                         \
			exit(1);                                                                                                                            \
		}                                                                                                                                           \
	} while (0)

#define DONE(call)                                                                                                                                          \
	do {                                                                                                                                                \
		ssize_t result;                                                                                                                             \
		while ((result = (call)) == -FI_EAGAIN)                                                                                                     \
			poll_queue();                                                                                                                       \
		if (result != 0) {                                                                                                                          \
			fprintf(stderr, "rank %u, line %d: %s: %s\n", self, __LINE__, #call, fi_strerror(-result));                                         \
			exit(1);                                                                                                                            \
		}                                                                                                                                           \
	} while (0)

#define LONGEST (3 << 20)
#define MANY 300
#define CROWD 6000

static uint32_t self, size;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static char *out, *in;

/* What an operation gives. */
struct result {
	int done, error;
	struct fi_cq_tagged_entry entry;
	size_t excess;
	fi_addr_t source;
};

static void poll_queue(void)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry failure = {0};
	fi_addr_t source = FI_ADDR_NOTAVAIL;
	ssize_t n = fi_cq_readfrom(cq, &entry, 1, &source);
	if (n == -FI_EAGAIN)
		return;
	if (n == 1) {
		struct result *r = entry.op_context;
		CHECK(!r->done);
		*r = (struct result){.done = 1, .entry = entry, .source = source};
		return;
	}
	CHECK(n == -FI_EAVAIL && fi_cq_readerr(cq, &failure, 0) == 1);
	struct result *r = failure.op_context;
	*r = (struct result){.done = 1, .error = failure.err, .excess = failure.olen, .entry.len = failure.len};
}

static void await(struct result *r)
{
	while (!r->done)
		poll_queue();
}

static void fill(char *b, size_t n, int key)
{
	for (size_t i = 0; i < n; i++)
		b[i] = (char)(i * 7 + i / 256 + key);
}

static int is_filled(const char *b, size_t n, int key)
{
	for (size_t i = 0; i < n; i++)
		if (b[i] != (char)(i * 7 + i / 256 + key))
			return 0;
	return 1;
}

static void open_all(void)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fi_av_attr attr = {.type = FI_AV_MAP};
	struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_TAGGED};
	uint32_t address[4], rank;
	size_t length = sizeof address;
	CHECK(hints);
	hints->caps = FI_TAGGED | FI_DIRECTED_RECV | FI_SOURCE | FI_LOCAL_COMM | FI_REMOTE_COMM;
	hints->mode = FI_CONTEXT;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->threading = FI_THREAD_DOMAIN;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->domain_attr->av_type = FI_AV_MAP;
	hints->domain_attr->cq_data_size = 4;
	hints->tx_attr->msg_order = hints->rx_attr->msg_order = FI_ORDER_SAS;
	hints->tx_attr->op_flags = hints->rx_attr->op_flags = FI_COMPLETION;
	hints->fabric_attr->prov_name = strdup("margay");
	DONE(fi_getinfo(FI_VERSION(1, 5), NULL, NULL, 0, hints, &info));
	CHECK(!info->next && info->caps & FI_DIRECTED_RECV && !(info->caps & FI_MSG));
	DONE(fi_fabric(info->fabric_attr, &fabric, NULL));
	DONE(fi_domain(fabric, info, &domain, NULL));
	DONE(fi_av_open(domain, &attr, &av, NULL));
	DONE(fi_cq_open(domain, &queue, &cq, NULL));
	DONE(fi_endpoint(domain, info, &ep, NULL));
	DONE(fi_ep_bind(ep, &av->fid, 0));
	DONE(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION));
	DONE(fi_enable(ep));
	DONE(fi_getname(&ep->fid, address, &length));
	CHECK(length == sizeof address);
	self = address[2];
	for (rank = 0; rank <= size; rank++) { /* the last one is not there */
		fi_addr_t at;
		address[2] = rank;
		CHECK(fi_av_insert(av, address, 1, &at, 0, NULL) == (rank < size));
		CHECK(at == (rank < size ? rank : FI_ADDR_NOTAVAIL));
	}
}

static void close_all(void)
{
	CHECK(fi_close(&cq->fid) == -FI_EBUSY && fi_close(&av->fid) == -FI_EBUSY);
	DONE(fi_close(&ep->fid));
	DONE(fi_close(&cq->fid));
	DONE(fi_close(&av->fid));
	DONE(fi_close(&domain->fid));
}

/* peer is the rank with which this one exchanges messages. */
static uint32_t peer;

/* lengths sends messages of many lengths, received before, or after they have come. */
static void lengths(int late)
{
	static const size_t all[] = {0, 1, 8, 1000, 1015, 1016, 1017, 1024, 4096, 65536, 1 << 20, LONGEST};
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		struct result sent = {0}, got = {0};
		fill(out, all[i], self + i);
		memset(in, 0, all[i]);
		if (!late)
			DONE(fi_trecv(ep, in, LONGEST, NULL, peer, i, 0, &got));
		DONE(fi_tsend(ep, out, all[i], NULL, peer, i, &sent));
		if (late) {
			struct result marker = {0}, mark = {0}; /* it comes behind the message */
			DONE(fi_tsend(ep, NULL, 0, NULL, peer, 1 << 20, &mark));
			DONE(fi_trecv(ep, NULL, 0, NULL, peer, 1 << 20, 0, &marker));
			await(&marker);
			await(&mark);
			/* By any tag, or from any rank; others may have sent theirs for meet. */
			DONE(i % 2 ? fi_trecv(ep, in, LONGEST, NULL, peer, 0, ~(uint64_t)0, &got) : fi_trecv(ep, in, LONGEST, NULL, FI_ADDR_UNSPEC, i, 0, &got));
		}
		await(&got);
		await(&sent);
		CHECK(!sent.error && !got.error && got.entry.len == all[i] && got.entry.tag == i && got.source == peer);
		CHECK(got.entry.flags == (FI_RECV | FI_TAGGED) && sent.entry.flags == (FI_SEND | FI_TAGGED));
		CHECK(is_filled(in, all[i], peer + i));
	}
}

/* many sends more messages than a rank keeps for another one before any is received, in an order
 * that is not that of the receives. */
static void many(void)
{
	static struct result sent[MANY], got[MANY];
	memset(sent, 0, sizeof sent);
	memset(got, 0, sizeof got);
	for (int i = 0; i < MANY; i++) {
		fill(out + 16 * i, 16, i);
		if (i % 3)
			DONE(fi_tsend(ep, out + 16 * i, 16, NULL, peer, i, &sent[i]));
		else
			DONE(fi_tinject(ep, out + 16 * i, 16, peer, i));
	}
	for (int i = MANY - 1; i >= 0; i--)
		DONE(fi_trecv(ep, in + 16 * i, 16, NULL, peer, i, 0, &got[i]));
	for (int i = 0; i < MANY; i++) {
		await(&got[i]);
		CHECK(!got[i].error && got[i].entry.len == 16 && is_filled(in + 16 * i, 16, i));
		if (i % 3)
			await(&sent[i]);
	}
}

/* truncated receives less than was sent, short and long. */
static void truncated(void)
{
	for (size_t n = 100; n <= 1000000; n *= 10000) {
		struct result sent = {0}, got = {0};
		fill(out, n, self);
		memset(in, 0, n);
		DONE(fi_trecv(ep, in, 60, NULL, peer, 5, 0, &got));
		DONE(fi_tsend(ep, out, n, NULL, peer, 5, &sent));
		await(&got);
		await(&sent);
		CHECK(got.error == FI_ETRUNC && got.entry.len == 60 && got.excess == n - 60 && is_filled(in, 60, peer) && in[60] == 0);
	}
}

/* parts sends from and receives in several places, with a data word. */
static void parts(void)
{
	for (size_t n = 90; n <= 90000; n *= 1000) {
		struct result sent = {0}, got = {0};
		struct iovec from[3] = {{out, n / 3}, {out + n / 3, 0}, {out + n / 3, n - n / 3}}, to[2] = {{in, 1}, {in + 1, n - 1}};
		struct fi_msg_tagged m = {.msg_iov = from, .iov_count = 3, .addr = peer, .tag = 9, .context = &sent, .data = 0x1234567890};
		fill(out, n, self);
		memset(in, 0, n);
		DONE(fi_trecvv(ep, to, NULL, 2, peer, 9, 0, &got));
		DONE(fi_tsendmsg(ep, &m, FI_REMOTE_CQ_DATA | FI_COMPLETION));
		await(&got);
		await(&sent);
		CHECK(!got.error && got.entry.flags & FI_REMOTE_CQ_DATA && got.entry.data == 0x1234567890 && is_filled(in, n, peer));
	}
}

static int probe(struct result *r, uint64_t tag, uint64_t flags)
{
	struct fi_msg_tagged m = {.addr = peer, .tag = tag, .context = r};
	*r = (struct result){0};
	DONE(fi_trecvmsg(ep, &m, flags | FI_COMPLETION));
	await(r);
	CHECK(!r->error || r->error == FI_ENOMSG);
	return !r->error;
}

/* probes looks for messages, claims one, and discards another. The other rank may be a length ahead. */
static void probes(void)
{
	for (size_t n = 50; n <= 50000; n *= 1000) {
		struct result sent = {0}, kept = {0}, got = {0}, claimed, r;
		CHECK(!probe(&r, 77, FI_PEEK));
		fill(out, n, self);
		DONE(fi_tsend(ep, out, n, NULL, peer, n + 7, &sent));
		DONE(fi_tsend(ep, out, n, NULL, peer, n + 8, &kept));
		while (!probe(&r, n + 7, FI_PEEK))
			;
		CHECK(r.entry.len == n && r.entry.tag == n + 7);
		CHECK(probe(&claimed, n + 7, FI_PEEK | FI_CLAIM) && claimed.entry.len == n);
		CHECK(!probe(&r, n + 7, FI_PEEK));
		struct iovec to = {in, n};
		struct fi_msg_tagged m = {.msg_iov = &to, .iov_count = 1, .addr = peer, .context = &claimed};
		claimed.done = 0;
		DONE(fi_trecvmsg(ep, &m, FI_CLAIM | FI_COMPLETION));
		await(&claimed);
		CHECK(!claimed.error && claimed.entry.len == n && claimed.entry.tag == n + 7 && is_filled(in, n, peer));
		while (!probe(&r, n + 8, FI_PEEK | FI_DISCARD))
			;
		CHECK(!probe(&r, n + 8, FI_PEEK));
		await(&sent);
		await(&kept);
		DONE(fi_trecv(ep, in, n, NULL, peer, 99, 0, &got));
		DONE(fi_cancel(&ep->fid, &got));
		await(&got);
		CHECK(got.error == FI_ECANCELED && fi_cancel(&ep->fid, &got) == -FI_ENOENT);
	}
}

/* flood injects messages that no receive takes, until it must try again, and then receives those of
 * the other rank, and a last one. */
static void flood(void)
{
	const uint64_t end = -1;
	struct result sent = {0};
	uint64_t n = 0, value = 0;
	ssize_t result;
	while ((result = fi_tinject(ep, &n, sizeof n, peer, 50)) == 0)
		CHECK(++n < 10000);
	CHECK(result == -FI_EAGAIN);
	DONE(fi_tsend(ep, &end, sizeof end, NULL, peer, 50, &sent));
	for (uint64_t i = 0; value != end; i++) {
		struct result got = {0};
		DONE(fi_trecv(ep, &value, sizeof value, NULL, peer, 50, 0, &got));
		await(&got);
		CHECK(value == i || value == end);
	}
	await(&sent);
}

/* behind receives a message behind more of them than were ever kept, which no receive wants before. */
static void behind(void)
{
	static struct result sent[CROWD + 1], got[CROWD + 1];
	static uint64_t values[CROWD + 1], came[CROWD + 1];
	memset(sent, 0, sizeof sent);
	memset(got, 0, sizeof got);
	for (uint64_t i = 0; i <= CROWD; i++) {
		values[i] = i;
		DONE(fi_tsend(ep, &values[i], sizeof values[i], NULL, peer, i == CROWD ? 61 : 60, &sent[i]));
	}
	for (int i = CROWD; i >= 0; i--) { /* the last one first */
		DONE(fi_trecv(ep, &came[i], sizeof came[i], NULL, peer, i == CROWD ? 61 : 60, 0, &got[i]));
		if (i == CROWD)
			await(&got[i]);
	}
	for (int i = 0; i <= CROWD; i++) {
		await(&got[i]);
		await(&sent[i]);
		CHECK(came[i] == (i == CROWD ? (uint64_t)CROWD : (uint64_t)(CROWD - 1 - i)));
	}
}

/* child_fails checks that a forked child gets errors. */
static void child_fails(void)
{
	struct fi_cq_tagged_entry entry;
	int status;
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0)
		_exit(fi_tinject(ep, NULL, 0, self, 1) == -FI_EIO && fi_cq_read(cq, &entry, 1) == -FI_EIO ? 0 : 1);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* own sends a message to this rank. */
static void own(void)
{
	for (size_t n = 10; n <= 100000; n *= 100) {
		struct result sent = {0}, got = {0};
		fill(out, n, 3);
		DONE(fi_tsend(ep, out, n, NULL, self, 1, &sent));
		DONE(fi_trecv(ep, in, n, NULL, self, 1, 0, &got));
		await(&got);
		await(&sent);
		CHECK(got.source == self && is_filled(in, n, 3));
	}
}

/* meet waits until all ranks have called it: rank 0 collects a message of each, and answers. */
static void meet(void)
{
	struct result r;
	if (self > 0) {
		r.done = 0;
		DONE(fi_tinject(ep, NULL, 0, 0, 1 << 21));
		DONE(fi_trecv(ep, NULL, 0, NULL, 0, 1 << 21, 0, &r));
		await(&r);
		return;
	}
	for (uint32_t rank = 1; rank < size; rank++) {
		r.done = 0;
		DONE(fi_trecv(ep, NULL, 0, NULL, rank, 1 << 21, 0, &r));
		await(&r);
	}
	for (uint32_t rank = 1; rank < size; rank++)
		DONE(fi_tinject(ep, NULL, 0, rank, 1 << 21));
}

int main(int argc, char **argv)
{
	if (argc < 2)
		return 2;
	size = atoi(argv[1]);
	out = malloc(LONGEST);
	in = malloc(LONGEST);
	CHECK(out && in);
	open_all();
	peer = self ^ 1;
	if (peer < size) {
		lengths(0);
		lengths(1);
		many();
		truncated();
		parts();
		probes();
		flood();
		behind();
	}
	child_fails();
	own();
	meet();
	close_all();
	open_all();
	own();
	close_all();
	if (self == 0)
		puts("tagged: ok");
	return 0;
}
