/* The transport of MPI, for each implementation the same.
 *
 *	mpiexec -n 2 PROGRAM OPERATION BYTES MILLISECONDS */
#include <mpi.h>
#include <string.h>

#include "measure.h"

/* Messages under way at a time: at most WINDOW, of WINDOW_BYTES in all. */
enum { WINDOW = 64, WINDOW_BYTES = 16 << 20 };

/* Memory that other ranks work on has whole pages: MPICH 4.0.2 finds the wrong memory otherwise. */
enum { PAGES = 65536 };

enum { WORDS = 1024 }; /* of a reduction at most */

enum { PING = 1, TRAIN, THANKS, ALL, DONE }; /* tags */

static int rank, ranks;

/* ---- Messages ---- */

static void send_to(int target, int tag, const void *message, size_t bytes)
{
	MPI_Send(message, bytes, MPI_BYTE, target, tag, MPI_COMM_WORLD);
}

/* receive_from receives a message, which must have so many bytes. */
static void receive_from(int source, int tag, void *message, size_t bytes)
{
	MPI_Status status;
	int got;
	MPI_Recv(message, bytes, MPI_BYTE, source, tag, MPI_COMM_WORLD, &status);
	MPI_Get_count(&status, MPI_BYTE, &got);
	must((size_t)got == bytes, "the length of a message");
}

static void roundtrip(size_t bytes, int n)
{
	static unsigned char *sent, *received;
	unsigned char *out = buffer(&sent, bytes), *in = buffer(&received, bytes);
	for (int i = 0; i < n; i++) {
		if (rank == 0) {
			stamp(out, bytes, i);
			send_to(1, PING, out, bytes);
			receive_from(1, PING, in, bytes);
			expect(in, bytes, i);
			lap();
		} else {
			receive_from(0, PING, in, bytes);
			expect(in, bytes, i);
			send_to(0, PING, in, bytes);
		}
	}
}

static unsigned char *window[WINDOW]; /* messages under way */

/* window_size returns how many messages of so many bytes are under way at a time. */
static int window_size(size_t bytes) { return bytes * WINDOW > WINDOW_BYTES ? WINDOW_BYTES / bytes : WINDOW; }

/* send_train sends messages, a window of them at a time. */
static void send_train(size_t bytes, int length, uint64_t first)
{
	MPI_Request requests[WINDOW];
	for (int i = 0; i < length;) {
		int n = 0;
		for (; n < window_size(bytes) && i < length; n++, i++) {
			unsigned char *message = buffer(&window[n], bytes);
			stamp(message, bytes, first + i);
			MPI_Isend(message, bytes, MPI_BYTE, 1, TRAIN, MPI_COMM_WORLD, &requests[n]);
		}
		MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
	}
}

/* receive_train receives and checks them. */
static void receive_train(size_t bytes, int length, uint64_t first)
{
	MPI_Request requests[WINDOW];
	for (int done = 0; done < length;) {
		int n = length - done < window_size(bytes) ? length - done : window_size(bytes);
		for (int i = 0; i < n; i++)
			MPI_Irecv(buffer(&window[i], bytes), bytes, MPI_BYTE, 0, TRAIN, MPI_COMM_WORLD, &requests[i]);
		MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
		for (int i = 0; i < n; i++)
			expect(window[i], bytes, first + done++);
	}
}

static void rate(size_t bytes, int n)
{
	int length = train(bytes);
	uint64_t number;
	for (int i = 0; i < n; i++) {
		uint64_t first = (uint64_t)i * length;
		if (rank == 0) {
			send_train(bytes, length, first);
			receive_from(1, THANKS, &number, sizeof number);
			must(number == first, "the number of an acknowledgement");
			lap();
		} else {
			receive_train(bytes, length, first);
			send_to(0, THANKS, &first, sizeof first);
		}
	}
}

/* In a repetition of alltoall, message m to another rank, and from one, is number m / (ranks - 1)
 * of its sender. */
static int other(int m) { return (rank + 1 + m % (ranks - 1)) % ranks; }
static int number_of(int m) { return m / (ranks - 1); }

static void alltoall(size_t bytes, int n)
{
	static MPI_Request requests[2 * EACH * MOST_RANKS];
	static unsigned char *in[EACH * MOST_RANKS], *out[EACH];
	int messages = EACH * (ranks - 1);
	for (int i = 0; i < n; i++) {
		for (int m = 0; m < messages; m++)
			MPI_Irecv(buffer(&in[m], bytes), bytes, MPI_BYTE, other(m), ALL, MPI_COMM_WORLD, &requests[m]);
		for (int m = 0; m < EACH; m++)
			stamp(buffer(&out[m], bytes), bytes, (uint64_t)i * EACH + m);
		for (int m = 0; m < messages; m++)
			MPI_Isend(out[number_of(m)], bytes, MPI_BYTE, other(m), ALL, MPI_COMM_WORLD, &requests[messages + m]);
		MPI_Waitall(2 * messages, requests, MPI_STATUSES_IGNORE);
		for (int m = 0; m < messages; m++)
			expect(in[m], bytes, (uint64_t)i * EACH + number_of(m));
		if (rank == 0)
			lap();
	}
}

/* ---- Collectives ---- */

static void allreduce(size_t bytes, int n)
{
	int64_t in[WORDS], out[WORDS];
	int words = bytes / sizeof in[0];
	for (int i = 0; i < n; i++) {
		for (int j = 0; j < words; j++)
			in[j] = rank + i + j;
		MPI_Allreduce(in, out, words, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
		for (int j = 0; j < words; j++)
			must(out[j] == (int64_t)ranks * (ranks - 1) / 2 + (int64_t)ranks * (i + j), "a sum");
		if (rank == 0)
			lap();
	}
}

/* ---- One-sided operations: rank 0 works on memory of rank 1, which makes progress ---- */

static MPI_Win exposed;
static unsigned char *memory; /* of this rank, in exposed */

/* expose makes, once, memory of each rank that the others work on. It begins as message 0. */
static void expose(size_t bytes)
{
	if (memory)
		return;
	static unsigned char *contents;
	MPI_Win_allocate((bytes + PAGES - 1) / PAGES * PAGES, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &exposed);
	MPI_Win_lock_all(0, exposed);
	memcpy(memory, buffer(&contents, bytes), bytes);
	stamp(memory, bytes, 0);
	MPI_Win_sync(exposed);
	MPI_Barrier(MPI_COMM_WORLD);
}

/* conclude waits until rank 0 is ready; rank 1 serves it while it waits. */
static void conclude(void)
{
	if (rank == 0)
		send_to(1, DONE, NULL, 0);
	else
		receive_from(0, DONE, NULL, 0);
	MPI_Win_sync(exposed);
}

static void put(size_t bytes, int n)
{
	static unsigned char *out;
	unsigned char *message = buffer(&out, bytes);
	expose(bytes);
	for (int i = 1; rank == 0 && i <= n; i++) {
		stamp(message, bytes, i);
		MPI_Put(message, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, exposed);
		MPI_Win_flush(1, exposed);
		lap();
	}
	conclude();
	if (rank == 1)
		expect(memory, bytes, n);
	MPI_Barrier(MPI_COMM_WORLD); /* before the memory changes again */
}

static void get(size_t bytes, int n)
{
	static unsigned char *in;
	unsigned char *message = buffer(&in, bytes);
	expose(bytes);
	for (int i = 0; rank == 0 && i < n; i++) {
		stamp(message, bytes, 1); /* not the number of the message to get */
		MPI_Get(message, bytes, MPI_BYTE, 1, 0, bytes, MPI_BYTE, exposed);
		MPI_Win_flush(1, exposed);
		expect(message, bytes, 0);
		lap();
	}
	conclude();
}

static void fetchadd(size_t bytes, int n)
{
	static uint64_t total;
	uint64_t old = 0, one = 1;
	expose(bytes);
	for (int i = 0; rank == 0 && i < n; i++) {
		MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, 1, 0, MPI_SUM, exposed);
		MPI_Win_flush(1, exposed);
		must(old == total + i, "a number fetched");
		lap();
	}
	conclude();
	total += n;
	must(rank != 1 || memcmp(memory, &total, sizeof total) == 0, "the number in memory");
	MPI_Barrier(MPI_COMM_WORLD);
}

static const struct operation table[] = {
	{"roundtrip", roundtrip, NULL, 2, 0, NULL}, {"rate", rate, train, 2, 0, NULL},      {"alltoall", alltoall, all_to_all, 0, 0, NULL},
	{"barrier", barrier, NULL, 0, 0, NULL},     {"allreduce", allreduce, NULL, 0, WORDS * 8, "the program sums 1,024 words"}, {"put", put, NULL, 2, 0, NULL},
	{"get", get, NULL, 2, 0, NULL},             {"fetchadd", fetchadd, NULL, 2, 0, NULL},   {NULL, NULL, NULL, 0, 0, NULL},
};

const struct operation *operations = table;

/* ---- The transport ---- */

int join(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	MPI_Init(NULL, NULL);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	return 0;
}

void meet(void) { MPI_Barrier(MPI_COMM_WORLD); }
void leave(void)
{
	if (memory) {
		MPI_Win_unlock_all(exposed);
		MPI_Win_free(&exposed);
	}
	MPI_Finalize();
}

int my_rank(void) { return rank; }
int all_ranks(void) { return ranks; }

uint64_t agree(uint64_t value)
{
	MPI_Bcast(&value, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	return value;
}

void collect(uint64_t value, uint64_t *all)
{
	MPI_Gather(&value, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
}
