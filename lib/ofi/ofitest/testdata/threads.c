/* Threads of one process use one endpoint at a time: they send to themselves, receive, look for
 * messages, register memory, write and read it, and read one completion queue. The thread sanitizer
 * watches.
 *
 *	threads COUNT ROUNDS */
#include <pthread.h>
#include <stdatomic.h>

#include "played.h"

#define THREADS 8
#define LENGTH 9000

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

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	int n = argc > 2 ? atoi(argv[1]) : 0;
	CHECK(n > 0 && n <= THREADS && (rounds = atoi(argv[2])) > 0);
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
