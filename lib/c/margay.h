/* margay.h: what a C program links to take part in a Margay job.
 *
 * The program learns its place in the job, sends active messages to other ranks, meets them at barriers, shares memory with
 * the ranks and extensions of its node, and puts extensions into the node kernel. Link with libmargay.a.
 *
 *	if (margay_init() != 0)
 *		errx(1, "%s", margay_error());
 *	margay_handle(1, on_message, NULL);
 *	margay_send(target, 1, n, 0, payload, length);
 *	margay_barrier(-1);
 *	margay_finalize(-1);
 *
 * A message is put into memory shared with the node kernel; no system call is made unless the node kernel sleeps. Messages
 * from one rank to another arrive in order, each exactly once: a loss ends the job. Those that no extension has dealt with
 * run the handler of their number, inside margay_poll, margay_wait, margay_wait_for, margay_barrier, margay_finalize, or inside
 * margay_send when that has to wait. So a message may have been handled before the program comes to wait for it: wait with
 * margay_wait_for for what handlers have done, not with margay_wait for a message. A handler may call margay_post, and nothing
 * else that sends or waits. Messages that an extension has made upcalls run theirs at once, when margay_upcalls has been called.
 *
 * Functions return -1 (or NULL) when they fail, and margay_error() says why. The library is not safe for use by several
 * threads at a time. Times are in milliseconds; -1 waits for ever. */
#ifndef MARGAY_H
#define MARGAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MARGAY_MAX_PAYLOAD 1024 /* bytes of a message's payload */
#define MARGAY_MAX_HANDLERS 256

/* margay_init makes this process take part in its job. All ranks of a job must do so, or none. */
int margay_init(void);

/* margay_finalize ends this rank's part in the job: it is the last barrier. When it has returned 0, no handler runs any more, and
 * whatever sends, receives, waits or asks the node kernel fails. The process may go on: margay_error, the functions that tell its
 * place, and memory that it has mapped work as before. When it fails, the job is not finalized. */
int margay_finalize(int timeout);

/* margay_error says what went wrong last. */
const char *margay_error(void);

/* The place of this process: its job, its rank of how many, its node and how many of the job there are, its number among the
 * job's ranks on this node and how many those are. */
int margay_job(void);
int margay_rank(void);
int margay_size(void);
int margay_node(void);
int margay_nodes(void);
int margay_local_rank(void);
int margay_local_size(void);

/* margay_node_of returns the number of the node that a rank is on. */
int margay_node_of(int rank);

/* An active message as its handler gets it. */
struct margay_am {
	int source; /* rank that sent it; the system vouches for it */
	int node;   /* where that rank is */
	int handler;
	uint64_t args[2];
	const void *payload; /* valid until the handler returns */
	size_t length;
};

typedef void (*margay_handler)(const struct margay_am *message, void *data);

/* margay_handle sets the handler for messages of a number; NULL takes it away. A message without a handler aborts. */
int margay_handle(int number, margay_handler handler, void *data);

/* margay_send sends a message to a rank. It waits, handling messages meanwhile, while the send ring is full. */
int margay_send(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length);

/* margay_post is margay_send that does not wait: it returns 1 when the message is sent and 0 when there is no room. */
int margay_post(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length);

/* margay_poll runs the handlers of the messages that have arrived and returns how many there were. */
int margay_poll(void);

/* margay_wait_for waits until done(data) returns true, and handles messages meanwhile. It calls done first, and again when
 * messages have been handled, never in the middle of a handler. It returns -1 when the time is over. */
int margay_wait_for(int (*done)(void *data), void *data, int timeout);

/* margay_wait waits until it has handled messages, and returns how many there were, 0 when the time is over. Messages that were
 * handled before, in margay_barrier, in margay_send or as upcalls, do not count: a program that expects a certain message uses
 * margay_wait_for. */
int margay_wait(int timeout);

/* margay_barrier waits until every rank of the job has called it as often as this one, and handles messages meanwhile. When it
 * returns 0, the messages that any rank had sent to this one before entering the barrier have been handled. It fails when the
 * time is over; the job can then not use barriers any more. */
int margay_barrier(int timeout);

/* Upcalls: messages for which an extension has answered MARGAY_UPCALL.
 *
 * margay_upcalls(1) has them interrupt this thread, whatever it does; margay_upcalls(0) has them come like all others again, as
 * before the first call. It uses the signal SIGURG, whose handler must not be changed meanwhile, and a
 * stack of its own. The handler gets whole registers and gives them back: floating point, vectors, flags and errno are as they
 * were. A system call that was interrupted goes on, except those that Linux never restarts (poll, select, epoll_wait, nanosleep
 * and the like, see signal(7)): they return EINTR.
 *
 * The handler has come in the middle of anything, malloc and stdio included. It may call margay_post, margay_mask, the functions
 * that tell the place of this process, and what signal-safety(7) lists; not malloc or printf. When margay_post fails there, it
 * says so, and leaves margay_error as it was.
 *
 * While a handler runs, whoever called it, upcalls are masked: the next one comes when it has returned. It may let others
 * interrupt it, by margay_mask(0), unless eight handlers run in the middle of each other already. While a program waits in this library, they come as fast, one after the other.
 *
 * Upcalls from one rank come in the order in which they were sent. They may come before other messages that were sent before
 * them; a message never comes before an upcall that the same rank has sent before it. */
int margay_upcalls(int on);

/* margay_mask has upcalls wait (1), or come again (0), at once if there are some, and returns what it was before. It makes no
 * system call. Polling and waiting take upcalls, masked or not. */
int margay_mask(int masked);

/* margay_region maps memory that the job's ranks on this node share under a name, zeroes when it is first asked for. An
 * extension that has a map of that name works on it when it is inserted later. A size of 0 asks for one that is there; the
 * size that it has goes to *actual unless that is NULL. */
void *margay_region(const char *name, size_t size, size_t *actual);

/* margay_fixed_region is margay_region at an address that is the same for all ranks of this node that ask for it in this way: a
 * pointer into the region means the same to each of them. Asked again for the same region, it returns the same address. */
void *margay_fixed_region(const char *name, size_t size, size_t *actual);

/* A setting changes an extension before it is inserted. */
struct margay_setting {
	const char *name;
	uint64_t value;
	int entries; /* 0: the value of a constant; 1: the number of a map's entries */
};

/* margay_insert puts an extension, an ELF object that clang made, into the node kernel of this node and returns its number.
 * name is what it is called in lists, NULL for the name in the object; slot is NULL for the one that its section names, and can be
 * no other if that names one. */
int margay_insert(const char *name, const char *slot, const void *object, size_t size, const struct margay_setting *settings,
		  int count);

/* margay_remove takes an extension out again. When it returns, the extension does not run and will not. */
int margay_remove(int extension);

/* What an extension has done. */
struct margay_stats {
	uint64_t runs;
	uint64_t instructions;
	uint64_t faults;
	uint64_t nanoseconds;
	char last_fault[256]; /* empty while there was none */
};

int margay_stats(int extension, struct margay_stats *stats);

/* A map of an extension, mapped into this process: the very memory that the extension works on. */
struct margay_state {
	void *bytes;
	size_t size;
	size_t entries;
	size_t stride; /* bytes from one entry to the next */
};

int margay_state(int extension, const char *map, struct margay_state *state);

#ifdef __cplusplus
}
#endif

#endif
