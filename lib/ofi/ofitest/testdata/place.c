/* Another rank of the node, which is played, says where the data of its long messages are. The provider
 * copies them if the place is in a process that has the mark, which is a child here, and asks for the
 * data otherwise: above all if the place is in this process itself. */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "played.h"

#define LENGTH 5000
#define HANDLERS 240 /* number of the first handler */
#define LONG ((uint64_t)4 << 56)

static char secret[LENGTH], buffer[LENGTH];
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
	puts(copied ? "place: ok" : "place: ok, apart");
	return 0;
}
