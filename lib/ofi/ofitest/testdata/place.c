/* Another rank of the node, which is played, says where the data of its long messages are. The provider
 * copies them if the place is in a process that has the mark, which is a child here, and asks for the
 * data otherwise: above all if the place is in this process itself. What the provider offers is not
 * good any more when the memory is closed, or the endpoint. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "played.h"

#define LENGTH 9000
#define HANDLERS 240 /* number of the first handler */
#define RMA_HANDLERS (HANDLERS + ENGINE_KINDS)
#define LONG ((uint64_t)4 << 56)
#define KEY 7

static char secret[LENGTH], buffer[LENGTH], window[LENGTH];
static struct fid_mr *mr;
static uint64_t mark = 0x0123456789abcdef;

/* offered receives a message of rank 1 that names a place, and reports whether it was copied from
 * there. If not, the provider has asked for the data. */
static int offered(uint64_t process, uint64_t word)
{
	uint64_t words[] = {7, process, (uintptr_t)&mark, word, (uintptr_t)secret, LENGTH};
	struct message m = {.handler = HANDLERS + ENGINE_HEAD, .args = {0, LONG | LENGTH}, .length = sizeof words};
	struct fi_cq_tagged_entry entry;
	memcpy(m.payload, words, sizeof words);
	memset(buffer, 0, LENGTH);
	last = (struct message){0};
	CHECK(fi_recv(ep, buffer, LENGTH, NULL, FI_ADDR_UNSPEC, NULL) == 0);
	play(1, &m);
	ssize_t n = fi_cq_read(cq, &entry, 1);
	CHECK(last.rank == 1 && last.handler == HANDLERS + ENGINE_GO && (uint32_t)last.args[0] == 7);
	uint64_t wanted = last.args[1] & ENGINE_LONGEST;
	if (wanted == 0) {
		n = n == 1 ? n : fi_cq_read(cq, &entry, 1);
		CHECK(n == 1 && entry.len == LENGTH && memcmp(buffer, secret, LENGTH) == 0);
		return 1;
	}
	CHECK(n == -FI_EAGAIN && wanted == LENGTH);
	return 0;
}

/* result polls until an operation has ended, and returns its error. */
static int result(void)
{
	struct fi_cq_tagged_entry entry;
	struct fi_cq_err_entry failure = {0};
	ssize_t n;
	while ((n = fi_cq_read(cq, &entry, 1)) == -FI_EAGAIN)
		;
	if (n == 1)
		return 0;
	CHECK(n == -FI_EAVAIL && fi_cq_readerr(cq, &failure, 0) == 1);
	return failure.err;
}

static void open_window(void) { CHECK(fi_mr_reg(domain, window, LENGTH, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, KEY, 0, &mr, NULL) == 0); }

/* copies_once checks that nothing is sent in pieces. */
static void copies_once(void)
{
	memset(buffer, 'b', LENGTH);
	CHECK(fi_write(ep, buffer, LENGTH, NULL, 0, 0, KEY, NULL) == 0 && result() == 0 && memcmp(window, buffer, LENGTH) == 0);
	memset(buffer, 0, LENGTH);
	CHECK(fi_read(ep, buffer, LENGTH, NULL, 0, 0, KEY, NULL) == 0 && result() == 0 && memcmp(window, buffer, LENGTH) == 0);
	memset(buffer, 0, LENGTH);
	CHECK(fi_trecv(ep, buffer, LENGTH, NULL, 0, 3, 0, NULL) == 0 && fi_tsend(ep, window, LENGTH, NULL, 0, 3, NULL) == 0);
	CHECK(result() == 0 && result() == 0 && memcmp(window, buffer, LENGTH) == 0);
	CHECK(!posts[HANDLERS + ENGINE_DATA] && !posts[RMA_HANDLERS + RMA_DATA] && !posts[RMA_HANDLERS + RMA_RESULT]);
}

/* close_window closes the memory that an answer on its way has named. */
static void close_window(void)
{
	struct fi_cq_tagged_entry entry;
	int before = posts[RMA_HANDLERS + RMA_ANSWER];
	CHECK(fi_read(ep, buffer, LENGTH, NULL, 0, 0, KEY, NULL) == 0);
	CHECK(fi_cq_read(cq, &entry, 1) == -FI_EAGAIN && posts[RMA_HANDLERS + RMA_ANSWER] == before + 1);
	CHECK(fi_close(&mr->fid) == 0);
	memset(window, 's', LENGTH); /* something else */
	CHECK(result() == FI_ENOKEY);
}

/* close_endpoint closes it while rank 1 knows the place of a message, and waits for an answer that
 * has no room at first. Before, rank 1 is asked whether it is there, since it does not take the
 * message. */
static void close_endpoint(void)
{
	struct message m = {.handler = RMA_HANDLERS + RMA_REQUEST, .args = {0, (uint64_t)1 << 48 | 8}, .length = sizeof(uint64_t)}; /* it reads 8 bytes */
	uint64_t key = KEY, words[6];
	CHECK(fi_tsend(ep, buffer, LENGTH, NULL, 1, 4, NULL) == 0 && last.handler == HANDLERS + ENGINE_HEAD && last.length == sizeof words);
	memcpy(words, last.payload, sizeof words);
	CHECK(words[1] == (uint64_t)getpid() && *(uint64_t *)(uintptr_t)words[2] == words[3]);
	for (time_t end = time(NULL) + 20; !posts[RMA_HANDLERS + RMA_PROBE];)
		CHECK(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN && time(NULL) < end);
	memcpy(m.payload, &key, sizeof key);
	play(1, &m);
	refusals = 3;
	CHECK(fi_close(&ep->fid) == 0);
	CHECK(last.handler == RMA_HANDLERS + RMA_RESULT && last.length == 8);
	CHECK(*(uint64_t *)(uintptr_t)words[2] != words[3]);
}

/* close_queue closes it full of words that rank 1 has written, which waits for its last answer. */
static void close_queue(void)
{
	struct message m = {.handler = RMA_HANDLERS + RMA_REQUEST, .args = {0, (uint64_t)3 << 56 | 8}, .length = 3 * sizeof(uint64_t)};
	uint64_t words[] = {KEY, 1, 2};
	int before = posts[RMA_HANDLERS + RMA_ANSWER];
	memcpy(m.payload, words, sizeof words);
	for (int i = 0; i <= RMA_EVENTS; i++) {
		play(1, &m);
		CHECK(fi_cq_read(cq, NULL, 0) == -FI_EAGAIN);
	}
	CHECK(posts[RMA_HANDLERS + RMA_ANSWER] == before + RMA_EVENTS);
	close_endpoint();
	before = posts[RMA_HANDLERS + RMA_ANSWER];
	CHECK(fi_close(&cq->fid) == 0 && posts[RMA_HANDLERS + RMA_ANSWER] == before + 1);
}

int main(void)
{
	memset(secret, 's', sizeof secret);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;)
			pause();
	}
	played_size = 2;
	open_all();
	int copied = offered(child, mark);
	CHECK(copied == !port.apart); /* some hosts do not allow it */
	CHECK(!offered(child, mark + 1));
	CHECK(!offered(getpid(), mark));
	CHECK(!offered((uint64_t)child | (uint64_t)1 << 32, mark));
	kill(child, SIGKILL);
	CHECK(waitpid(child, NULL, 0) == child);
	CHECK(!offered(child, mark));
	if (copied) {
		open_window();
		copies_once();
		close_window();
		open_window();
		close_queue();
	}
	puts(copied ? "place: ok" : "place: ok, apart");
	return 0;
}
