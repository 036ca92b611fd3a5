/* Threads of one process use one endpoint at a time: they send to themselves, receive, look for
 * messages, register memory, write and read it, and read one completion queue. The thread sanitizer
 * watches. The library of Margay is played here, for a job of one rank, and takes no lock: the provider
 * must call it from one thread at a time.
 *
 *	threads COUNT ROUNDS */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "margay.h"
#include "provider.h"

#define CHECK(what)                                                                                                                                         \
	do {                                                                                                                                                \
		if (!(what)) {                                                                                                                              \
			fprintf(stderr, "line %d: not true: %s\n", __LINE__, #what);                                                                        \
			exit(1);                                                                                                                            \
		}                                                                                                                                           \
	} while (0)

#define THREADS 8
#define LENGTH 5000

/* ---- The library ---- */

#define ROOM 16 /* messages on their way */

static struct message {
	int handler;
	uint64_t args[2];
	size_t length;
	char payload[MARGAY_MAX_PAYLOAD];
} way[ROOM];

static unsigned first, count;
static margay_handler handlers[MARGAY_MAX_HANDLERS];

int margay_init(void) { return 0; }
const char *margay_error(void) { return "none"; }
int margay_job(void) { return 1; }
int margay_rank(void) { return 0; }
int margay_size(void) { return 1; }
int margay_node(void) { return 0; }
int margay_node_of(int rank) { return rank; }

int margay_handle(int number, margay_handler handler, void *data)
{
	(void)data;
	handlers[number] = handler;
	return 0;
}

int margay_post(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	struct message *m = &way[(first + count) % ROOM];
	CHECK(rank == 0 && length <= sizeof m->payload);
	if (count == ROOM)
		return 0;
	*m = (struct message){.handler = handler, .args = {arg0, arg1}, .length = length};
	if (length)
		memcpy(m->payload, payload, length);
	count++;
	return 1;
}

int margay_poll(void)
{
	int n = 0;
	for (unsigned most = count; most > 0; most--, n++) {
		struct message m = way[first++ % ROOM];
		struct margay_am am = {.handler = m.handler, .args = {m.args[0], m.args[1]}, .payload = m.payload, .length = m.length};
		count--;
		handlers[m.handler](&am, NULL);
	}
	return n;
}

/* ---- The threads ---- */

static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;
static int rounds;

struct result {
	atomic_int done;
	int error;
	size_t length;
};

/* poll_queue notes an operation that is complete, of any thread. */
static void poll_queue(void)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry failure = {0};
	ssize_t n = fi_cq_read(cq, &entry, 1);
	struct result *r = entry.op_context;
	if (n == -FI_EAGAIN || (n == -FI_EAVAIL && fi_cq_readerr(cq, &failure, 0) != 1))
		return; /* there is none, or another thread has taken it */
	if (n != 1) {
		r = failure.op_context;
		r->error = failure.err;
	} else {
		r->length = entry.len;
	}
	atomic_store(&r->done, 1);
}

static void await(struct result *r)
{
	while (!atomic_load(&r->done))
		poll_queue();
	CHECK(r->error == 0);
}

#define DONE(call)                                                                                                                                          \
	do {                                                                                                                                                \
		ssize_t result;                                                                                                                             \
		while ((result = (call)) == -FI_EAGAIN)                                                                                                     \
			poll_queue();                                                                                                                       \
		CHECK(result == 0);                                                                                                                         \
	} while (0)

/* pass sends a message to this thread, of a length that may be long. */
static void pass(uint64_t tag, char *from, char *to, size_t n)
{
	struct result sent = {0}, got = {0}, seen = {0};
	struct fi_msg_tagged peek = {.tag = tag + 1000, .context = &seen};
	memset(from, (char)tag, n);
	DONE(fi_tsend(ep, from, n, NULL, 0, tag, &sent));
	DONE(fi_trecv(ep, to, n, NULL, 0, tag, 0, &got));
	await(&sent);
	await(&got);
	CHECK(got.length == n && memcmp(from, to, n) == 0);
	DONE(fi_trecvmsg(ep, &peek, FI_PEEK | FI_COMPLETION));
	while (!atomic_load(&seen.done))
		poll_queue();
	CHECK(seen.error == FI_ENOMSG);
	seen.done = seen.error = 0;
	DONE(fi_trecv(ep, to, n, NULL, 0, tag + 1000, 0, &seen));
	DONE(fi_cancel(&ep->fid, &seen));
	while (!atomic_load(&seen.done))
		poll_queue();
	CHECK(seen.error == FI_ECANCELED);
}

/* reach writes to memory of this thread, and reads it. */
static void reach(uint64_t key, char *window, char *buffer, size_t n)
{
	struct result put = {0}, get = {0};
	struct fid_mr *mr;
	DONE(fi_mr_reg(domain, window, n, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, key, 0, &mr, NULL));
	memset(buffer, (char)(key + 1), n);
	DONE(fi_write(ep, buffer, n, NULL, 0, 0, key, &put));
	await(&put);
	memset(buffer, 0, n);
	DONE(fi_read(ep, buffer, n, NULL, 0, 0, key, &get));
	await(&get);
	CHECK(buffer[0] == (char)(key + 1) && buffer[n - 1] == (char)(key + 1));
	DONE(fi_close(&mr->fid));
}

static void *work(void *at)
{
	uint64_t number = (uintptr_t)at;
	char *from = malloc(LENGTH), *to = malloc(LENGTH);
	CHECK(from && to);
	for (int round = 0; round < rounds; round++) {
		size_t n = round % 2 ? LENGTH : 100;
		pass(number, from, to, n);
		reach(number, from, to, n);
	}
	free(from);
	free(to);
	return NULL;
}

static void open_all(void)
{
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fi_av_attr attr = {.type = FI_AV_TABLE};
	struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_TAGGED};
	struct address address;
	size_t length = sizeof address;
	fi_addr_t peer;
	CHECK(provider.getinfo(FI_VERSION(1, 9), NULL, NULL, 0, NULL, &info) == 0 && info->domain_attr->threading == FI_THREAD_SAFE);
	CHECK(provider.fabric(info->fabric_attr, &fabric, NULL) == 0);
	DONE(fi_domain(fabric, info, &domain, NULL));
	DONE(fi_av_open(domain, &attr, &av, NULL));
	DONE(fi_cq_open(domain, &queue, &cq, NULL));
	DONE(fi_endpoint(domain, info, &ep, NULL));
	DONE(fi_ep_bind(ep, &av->fid, 0));
	DONE(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	DONE(fi_enable(ep));
	DONE(fi_getname(&ep->fid, &address, &length));
	CHECK(fi_av_insert(av, &address, 1, &peer, 0, NULL) == 1 && peer == 0);
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	int ends[2];
	char number[16];
	int n = argc > 2 ? atoi(argv[1]) : 0;
	CHECK(n > 0 && n <= THREADS && (rounds = atoi(argv[2])) > 0);
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); /* this process looks like a rank */
	snprintf(number, sizeof number, "%d", ends[0]);
	setenv("MARGAY_FD", number, 1);
	open_all();
	for (int i = 0; i < n; i++)
		CHECK(pthread_create(&threads[i], NULL, work, (void *)(uintptr_t)(i + 1)) == 0);
	for (int i = 0; i < n; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	DONE(fi_close(&ep->fid));
	DONE(fi_close(&cq->fid));
	DONE(fi_close(&av->fid));
	puts("threads: ok");
	return 0;
}
