/* Ranks read and write the memory of each other by any provider of libfabric: with every length, in
 * parts, injected, with a data word for the target, and their own memory. What they find is compared.
 *
 *	rma PROVIDER SIZE [leave|apart]
 *
 * Ranks of a job of Margay are its ranks, and their addresses are known by their numbers. Otherwise the
 * program starts the ranks itself. Rank 0 prints "rma: ok". With the provider margay, accesses that
 * are not allowed are tried, too. With leave, the other ranks only end, and rank 0 reads until the job
 * fails. With apart, ranks cannot read the memory of each other. */
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_atomic.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>
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

#define MOST 16	      /* ranks */
#define WINDOW (2 << 20) /* bytes of a rank's memory */
#define ADDRESS 128   /* bytes of an address */

/* What the ranks that this program starts tell each other. */
static struct {
	volatile int ready, failed;
	char addresses[MOST][ADDRESS];
	size_t length;
} *board;

/* What a rank tells the others of its memory. */
struct window {
	uint64_t address, key;
};

static uint32_t self, size;
static int here; /* the provider is margay's */
static struct fi_info *info;
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static struct fid_mr *mr;
static fi_addr_t peers[MOST];
static struct window windows[MOST];
static char *window, *buffer;
static uint64_t words; /* that other ranks have written with, added up */
static uint32_t word_count;

/* What an operation gives. The first word is libfabric's while it is under way. */
struct result {
	struct fi_context2 context;
	int done, error;
	uint64_t flags;
};

static void poll_queue(void)
{
	struct fi_cq_data_entry entry;
	struct fi_cq_err_entry failure = {0};
	ssize_t n = fi_cq_read(cq, &entry, 1);
	struct result *r = entry.op_context;
	if (n == -FI_EAGAIN) {
		sched_yield();
		return;
	}
	if (n != 1) {
		CHECK(n == -FI_EAVAIL && fi_cq_readerr(cq, &failure, 0) == 1);
		r = failure.op_context;
		r->done = 1;
		r->error = failure.err;
	} else if (entry.flags & FI_REMOTE_CQ_DATA) {
		CHECK(!here || entry.flags == (FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA));
		words += entry.data;
		word_count++;
	} else {
		CHECK(!r->done);
		r->done = 1;
		r->flags = entry.flags;
	}
}

static void await(struct result *r, int error)
{
	while (!r->done)
		poll_queue();
	if (r->error != error)
		fprintf(stderr, "rank %u: %s\n", self, fi_strerror(r->error));
	CHECK(r->error == error);
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

/* ---- The ranks ---- */

/* start_ranks starts the other ranks, if this is no rank of a job. */
static void start_ranks(void)
{
	const char *rank = getenv("MARGAY_RANK");
	if (here) {
		CHECK(rank);
		self = atoi(rank);
		return;
	}
	board = mmap(NULL, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(board != MAP_FAILED);
	for (uint32_t rank = 1; rank < size; rank++) {
		pid_t child = fork();
		CHECK(child >= 0);
		if (child == 0) {
			self = rank;
			return;
		}
	}
}

static void end_ranks(void)
{
	int status;
	for (uint32_t rank = 1; !here && self == 0 && rank < size; rank++)
		CHECK(wait(&status) > 0 && status == 0);
}

/* meet_ranks learns the addresses of all ranks. */
static void meet_ranks(void)
{
	uint32_t address[ADDRESS / 4];
	size_t length = sizeof address;
	DONE(fi_getname(&ep->fid, address, &length));
	if (!here) {
		memcpy(board->addresses[self], address, length);
		board->length = length;
		__sync_fetch_and_add(&board->ready, 1);
		while (board->ready < (int)size)
			sched_yield();
	}
	for (uint32_t rank = 0; rank < size; rank++) {
		address[2] = here ? rank : address[2];
		CHECK(fi_av_insert(av, here ? (char *)address : board->addresses[rank], 1, &peers[rank], 0, NULL) == 1);
	}
}

static void open_all(const char *name)
{
	struct fi_info *hints = fi_allocinfo();
	struct fid_fabric *fabric;
	struct fi_av_attr attr = {.type = FI_AV_TABLE};
	struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_DATA};
	int tcp = strcmp(name, "tcp;ofi_rxm") == 0;
	CHECK(hints);
	hints->caps = FI_TAGGED | FI_RMA;
	hints->mode = FI_CONTEXT | FI_CONTEXT2;
	hints->ep_attr->type = FI_EP_RDM;
	hints->domain_attr->mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
	hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
	hints->fabric_attr->prov_name = strdup(name);
	DONE(fi_getinfo(FI_VERSION(1, 9), tcp ? "127.0.0.1" : NULL, NULL, tcp ? FI_SOURCE : 0, hints, &info));
	DONE(fi_fabric(info->fabric_attr, &fabric, NULL));
	DONE(fi_domain(fabric, info, &domain, NULL));
	DONE(fi_av_open(domain, &attr, &av, NULL));
	DONE(fi_cq_open(domain, &queue, &cq, NULL));
	DONE(fi_endpoint(domain, info, &ep, NULL));
	DONE(fi_ep_bind(ep, &av->fid, 0));
	DONE(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DONE(fi_enable(ep));
	DONE(fi_mr_reg(domain, window, WINDOW, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, self + 1, 0, &mr, NULL));
}

static void close_all(void)
{
	DONE(fi_close(&ep->fid));
	DONE(fi_close(&mr->fid));
	DONE(fi_close(&cq->fid));
	DONE(fi_close(&av->fid));
	DONE(fi_close(&domain->fid));
}

/* exchange sends some bytes to all ranks, and gets those of each. It is a barrier, too. */
static void exchange(const void *from, void *to, size_t length)
{
	struct result sent[MOST] = {0}, got[MOST] = {0};
	for (uint32_t rank = 0; rank < size; rank++) {
		DONE(fi_trecv(ep, (char *)to + rank * length, length, NULL, FI_ADDR_UNSPEC, rank, 0, &got[rank]));
		DONE(fi_tsend(ep, from, length, NULL, peers[rank], self, &sent[rank]));
	}
	for (uint32_t rank = 0; rank < size; rank++) {
		await(&sent[rank], 0);
		await(&got[rank], 0);
	}
}

static void meet(void)
{
	char all[MOST];
	exchange("", all, 1);
}

/* ---- Reading and writing ---- */

static const size_t lengths[] = {1, 8, 999, 1000, 1001, 1008, 1009, 1016, 1017, 1024, 1025, 4096, 65536, 1 << 20, WINDOW};

/* puts writes to the next rank, which compares, and reads it back. */
static void puts_and_gets(void)
{
	uint32_t next = (self + 1) % size, last = (self + size - 1) % size;
	for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
		size_t n = lengths[i], at = n < WINDOW / 2 ? 100 + i : 0;
		struct result put = {0}, get = {0};
		memset(window, 0, WINDOW);
		fill(buffer, n, self + i);
		meet();
		DONE(fi_write(ep, buffer, n, NULL, peers[next], windows[next].address + at, windows[next].key, &put));
		await(&put, 0);
		CHECK(put.flags == (FI_RMA | FI_WRITE));
		meet(); /* the write has taken effect at its completion, or at the latest now */
		CHECK(is_filled(window + at, n, last + i) && (!at || window[at - 1] == 0) && (at + n == WINDOW || window[at + n] == 0));
		memset(buffer, 0, n);
		DONE(fi_read(ep, buffer, n, NULL, peers[next], windows[next].address + at, windows[next].key, &get));
		await(&get, 0);
		CHECK(is_filled(buffer, n, self + i) && get.flags == (FI_RMA | FI_READ));
		meet();
	}
}

/* parts writes from and reads into several places. */
static void parts(void)
{
	uint32_t next = (self + 1) % size;
	for (size_t n = 90; n <= 90000; n *= 10) {
		struct result put = {0}, get = {0};
		struct iovec from[3] = {{buffer, n / 3}, {buffer + n / 3, 1}, {buffer + n / 3 + 1, n - n / 3 - 1}};
		struct iovec to[2] = {{buffer, n - 2}, {buffer + n - 2, 2}};
		struct fi_rma_iov there = {windows[next].address + 5, n, windows[next].key};
		struct fi_msg_rma m = {.msg_iov = to, .iov_count = 2, .addr = peers[next], .rma_iov = &there, .rma_iov_count = 1, .context = &get};
		fill(buffer, n, self + 3);
		DONE(fi_writev(ep, from, NULL, 3, peers[next], there.addr, there.key, &put));
		await(&put, 0);
		memset(buffer, 0, n);
		DONE(fi_readmsg(ep, &m, FI_COMPLETION));
		await(&get, 0);
		CHECK(is_filled(buffer, n, self + 3));
		get = put = (struct result){0};
		m.msg_iov = from;
		m.iov_count = 3;
		m.context = &put;
		fill(buffer, n, self + 4);
		DONE(fi_writemsg(ep, &m, FI_COMPLETION | FI_DELIVERY_COMPLETE));
		await(&put, 0);
		memset(buffer, 0, n);
		DONE(fi_readv(ep, to, NULL, 2, peers[next], there.addr, there.key, &get));
		await(&get, 0);
		CHECK(is_filled(buffer, n, self + 4));
		meet();
	}
}

/* words_come writes with a data word to all ranks, and waits for theirs. Each rank writes to a place of
 * its own. */
static void words_come(void)
{
	uint64_t expected = 0;
	for (size_t n = 1; n <= 100000; n = n * 10 + 7) {
		struct result put[MOST] = {0};
		words = word_count = 0;
		expected = 0;
		fill(buffer, n, self + n);
		meet();
		for (uint32_t rank = 0; rank < size; rank++) {
			DONE(fi_writedata(ep, buffer, n, NULL, 1000 + self, peers[rank], windows[rank].address + self * 200000, windows[rank].key, &put[rank]));
			expected += 1000 + rank;
		}
		while (word_count < size)
			poll_queue();
		for (uint32_t rank = 0; rank < size; rank++)
			CHECK(is_filled(window + rank * 200000, n, rank + n)); /* the data are there before the word */
		for (uint32_t rank = 0; rank < size; rank++)
			await(&put[rank], 0);
		CHECK(words == expected);
		meet();
	}
}

/* injects writes from memory that is changed at once. */
static void injects(void)
{
	uint32_t next = (self + 1) % size, last = (self + size - 1) % size;
	size_t n = info->tx_attr->inject_size < 1016 ? info->tx_attr->inject_size : 1016;
	words = word_count = 0;
	memset(window, 0, 300 * n);
	meet();
	for (int i = 0; i < 300; i++) {
		fill(buffer, n, self + i);
		if (i < 299)
			DONE(fi_inject_write(ep, buffer, n, peers[next], windows[next].address + i * n, windows[next].key));
		else
			DONE(fi_inject_writedata(ep, buffer, n, 77, peers[next], windows[next].address + i * n, windows[next].key));
		memset(buffer, 0xee, n);
	}
	while (word_count < 1)
		poll_queue();
	for (int i = 0; i < 300; i++)
		while (!is_filled(window + i * n, n, last + i)) /* in any order */
			poll_queue();
	CHECK(words == 77);
	meet();
}

/* many has more operations under way than a rank has requests. */
static void many(void)
{
	static struct result results[400];
	uint32_t next = (self + 1) % size;
	memset(results, 0, sizeof results);
	for (int i = 0; i < 200; i++) {
		fill(buffer + i * 5000, 5000, self + i);
		DONE(fi_write(ep, buffer + i * 5000, 5000, NULL, peers[next], windows[next].address + i * 5000, windows[next].key, &results[i]));
	}
	for (int i = 0; i < 200; i++)
		await(&results[i], 0);
	memset(buffer, 0, 200 * 5000);
	for (int i = 0; i < 200; i++)
		DONE(fi_read(ep, buffer + i * 5000, 5000, NULL, peers[next], windows[next].address + i * 5000, windows[next].key, &results[200 + i]));
	for (int i = 0; i < 200; i++) {
		await(&results[200 + i], 0);
		CHECK(is_filled(buffer + i * 5000, 5000, self + i));
	}
	meet();
}

/* forbidden tries what is not allowed. Each rank has memory that may be read, and some that may be
 * written, which is closed then. */
static void forbidden(void)
{
	static char secret[8] = "secret", slate[8] = "slate";
	static const struct {
		int writes;
		uint64_t key, address;
		size_t length;
		int error;
	} tries[] = {{0, 101, 0, 8, 0},		    {1, 101, 0, 8, FI_EACCES},	     {0, 102, 0, 8, FI_EACCES}, {0, 101, 0, 9, FI_EINVAL},
		     {0, 101, 9, 1, FI_EINVAL},	    {0, 101, -(uint64_t)1, 2, FI_EINVAL}, {1, 102, 4, 3000, FI_EINVAL}, {1, 99, 0, 8, FI_ENOKEY},
		     {1, 99, 0, 100000, FI_ENOKEY}, {0, 99, 0, 100000, FI_ENOKEY}};
	struct fid_mr *readable, *writable, *other;
	struct result r = {0};
	uint32_t next = (self + 1) % size;
	if (!here)
		return;
	DONE(fi_mr_reg(domain, secret, sizeof secret, FI_REMOTE_READ, 0, 101, 0, &readable, NULL));
	DONE(fi_mr_reg(domain, slate, sizeof slate, FI_REMOTE_WRITE, 0, 102, 0, &writable, NULL));
	CHECK(fi_mr_reg(domain, slate, sizeof slate, FI_REMOTE_WRITE, 0, 102, 0, &other, NULL) == -FI_ENOKEY);
	CHECK(fi_mr_key(readable) == 101);
	meet();
	for (size_t i = 0; i < sizeof tries / sizeof tries[0]; i++) {
		r = (struct result){0};
		memset(buffer, 'x', tries[i].length);
		if (tries[i].writes)
			DONE(fi_write(ep, buffer, tries[i].length, NULL, peers[next], tries[i].address, tries[i].key, &r));
		else
			DONE(fi_read(ep, buffer, tries[i].length, NULL, peers[next], tries[i].address, tries[i].key, &r));
		await(&r, tries[i].error);
		CHECK(tries[i].error ? buffer[0] == 'x' : memcmp(buffer, secret, 8) == 0);
	}
	meet();
	CHECK(strcmp(secret, "secret") == 0 && strcmp(slate, "slate") == 0);
	DONE(fi_close(&writable->fid));
	meet();
	r = (struct result){0};
	DONE(fi_write(ep, buffer, 8, NULL, peers[next], 0, 102, &r));
	await(&r, FI_ENOKEY);
	DONE(fi_write(ep, NULL, 0, NULL, peers[next], 0, 102, &(struct result){0})); /* nothing, anywhere */
	meet();
	CHECK(strcmp(slate, "slate") == 0);
	DONE(fi_close(&readable->fid));
}

/* without checks that an endpoint without the capability says so. */
static void without(void)
{
	struct fi_info *other = fi_dupinfo(info);
	struct fid_ep *lesser;
	CHECK(other);
	other->caps &= ~(uint64_t)(FI_RMA | FI_READ | FI_WRITE);
	DONE(fi_endpoint(domain, other, &lesser, NULL));
	CHECK(fi_inject_atomic(lesser, buffer, 1, 0, 0, 0, FI_UINT64, FI_SUM) == -FI_EOPNOTSUPP);
	CHECK(fi_atomicvalid(lesser, FI_UINT64, FI_SUM, &(size_t){0}) == -FI_EOPNOTSUPP);
	CHECK(fi_write(lesser, buffer, 1, NULL, 0, 0, 0, NULL) == -FI_EOPNOTSUPP && fi_read(lesser, buffer, 1, NULL, 0, 0, 0, NULL) == -FI_EOPNOTSUPP);
	DONE(fi_close(&lesser->fid));
	fi_freeinfo(other);
}

/* leave ends this rank, unless it is rank 0, which reads the memory of rank 1 until that has ended. */
static void leave(void)
{
	if (self > 0)
		_exit(0);
	for (;;) {
		struct result get = {0};
		DONE(fi_read(ep, buffer, 5000, NULL, peers[1], windows[1].address, windows[1].key, &get));
		await(&get, 0);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3 || (size = atoi(argv[2])) > MOST)
		return 2;
	here = strcmp(argv[1], "margay") == 0;
	start_ranks();
	if (argc > 3 && strcmp(argv[3], "apart") == 0)
		CHECK(prctl(PR_SET_DUMPABLE, 0) == 0);
	window = malloc(WINDOW);
	buffer = malloc(WINDOW);
	CHECK(window && buffer);
	open_all(argv[1]);
	meet_ranks();
	windows[self] = (struct window){info->domain_attr->mr_mode & FI_MR_VIRT_ADDR ? (uintptr_t)window : 0, fi_mr_key(mr)};
	exchange(&windows[self], windows, sizeof windows[0]);
	if (argc > 3 && strcmp(argv[3], "leave") == 0)
		leave();
	puts_and_gets();
	parts();
	words_come();
	injects();
	many();
	forbidden();
	if (here)
		without();
	meet();
	close_all();
	end_ranks();
	if (self == 0)
		puts("rma: ok");
	return 0;
}
