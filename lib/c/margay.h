/* margay.h: the library of C programs that take part in a Margay job.
 *
 * The program gets its place in the job, sends active messages to other ranks, synchronises by
 * barriers, shares memory with the ranks and extensions of its node, and inserts extensions into
 * the node kernel. Link with libmargay.a.
 *
 *	if (margay_init() != 0)
 *		errx(1, "%s", margay_error());
 *	margay_handle(1, on_message, NULL);
 *	margay_send(target, 1, n, 0, payload, length);
 *	margay_barrier(-1);
 *	margay_allreduce(&mine, &sum, 1, MARGAY_FLOAT64, MARGAY_SUM, -1);
 *	margay_finalize(-1);
 *
 * A message to another node is written to memory shared with the node kernel; a system call is made
 * only if the node kernel sleeps. A message to a rank of the same node is written to memory shared
 * with that rank; a system call is made only if that rank sleeps. On a trusted wire, a message to
 * another node is a datagram to its rank. Both pass the node kernels instead while an extension, a
 * recording or a scheduler must see them. The first datagrams leave at once. If the program sends
 * without a pause, later messages leave together, at the latest when it polls or waits. If it then
 * calls nothing, its node kernel sends them after 20 to 40 ms; if it goes on sending a little at a
 * time and never polls, they may wait for longer. A call that waits spins and yields for about a
 * millisecond before it sleeps.
 *
 * Messages from one rank to another arrive in order, each exactly once: a loss ends the
 * job. Unless an extension consumes a message, it runs the handler of its number inside
 * margay_poll, margay_wait, margay_wait_for, margay_barrier, margay_finalize, a collective
 * operation, or margay_send when that must wait. So a message may have been handled before the
 * program waits for it: wait with margay_wait_for for the effect of a handler, not with margay_wait
 * for a message. A handler may call margay_post, but no other function that sends or waits. A
 * message that an extension turns into an upcall runs its handler at once, if margay_upcalls has
 * been called.
 *
 * Functions return -1 (or NULL) when they fail, and margay_error() says why. The library is not
 * safe for use by several threads at a time. Times are in milliseconds; -1 waits for ever. */
#ifndef MARGAY_H
#define MARGAY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MARGAY_MAX_MESSAGE 1048576 /* bytes of a message's payload with margay_send */
#define MARGAY_MAX_PAYLOAD 1024    /* with margay_post */
#define MARGAY_MAX_HANDLERS 256

/* margay_init joins this process to its job. All ranks of a job must call it, or none. One process
 * of each rank can, once: a process that it forks cannot use the library, nor can a second program
 * that a rank starts. */
int margay_init(void);

/* margay_finalize ends this rank's part in the job: it is the last barrier. After it has returned
 * 0, no handler runs, and functions that send, receive, wait or request fail. The process may
 * continue: margay_error, the functions that return its place, and mapped memory work as before. If
 * it fails, the job is not finalized; only after the error of a refused put, it is. */
int margay_finalize(int timeout_ms);

/* margay_error returns a description of the last error. */
const char *margay_error(void);

/* The place of this process: its job, its rank and the number of ranks, its node and the number of
 * the job's nodes, its index among the job's ranks on this node and their number. All are -1 before
 * margay_init. */
int margay_job(void);
int margay_rank(void);
int margay_size(void);
int margay_node(void);
int margay_nodes(void);
int margay_local_rank(void);
int margay_local_size(void);

/* margay_node_of returns the number of the node that a rank is on. */
int margay_node_of(int rank);

/* An active message, as passed to its handler. */
struct margay_am {
	int source; /* rank that sent it; the system vouches for it */
	int node;   /* where that rank is */
	int handler;
	uint64_t args[2];
	const void *payload; /* valid until the handler returns */
	size_t length;
	int extension; /* an extension on that node has sent it, for a message to that rank; no rank can set this */
};

typedef void (*margay_handler)(const struct margay_am *message, void *data);

/* margay_handle sets the handler for messages of a number; NULL removes it. A message without a
 * handler aborts the process. */
int margay_handle(int number, margay_handler handler, void *data);

/* margay_send sends a message of at most MARGAY_MAX_MESSAGE bytes to a rank. While there is no room
 * for it, it waits and handles messages. A message of more than MARGAY_MAX_PAYLOAD bytes is sent in
 * pieces: a handler cannot send it, and messages that handlers post while it is being sent may
 * arrive first. */
int margay_send(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length);

/* margay_post is margay_send without waiting, for at most MARGAY_MAX_PAYLOAD bytes: it returns 1 if
 * the message is sent and 0 if there is no room. */
int margay_post(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length);

/* margay_poll runs the handlers of the messages that have arrived and returns their number. Where
 * ranks share a CPU, it yields to them when it is called again and again in vain. */
int margay_poll(void);

/* margay_wait_for handles messages until done(data) returns true. It calls done first, and again
 * after messages have been handled, never during a handler. It returns -1 after the timeout. */
int margay_wait_for(int (*done)(void *data), void *data, int timeout_ms);

/* margay_wait waits until it has handled messages and returns their number, 0 after the timeout.
 * Messages handled before, in margay_barrier, in margay_send or as upcalls, do not count: use
 * margay_wait_for to wait for a certain message. */
int margay_wait(int timeout_ms);

/* margay_barrier handles messages until every rank of the job has called it as often as this one.
 * When it returns 0, all messages that any rank sent to this one before entering the barrier have
 * been handled. It fails after the timeout; the job can then no longer use barriers, and the same
 * barrier may fail at other ranks. It also fails, once, if a put of this rank was refused
 * (one-sided operations): then it was carried out, and the job can use barriers as before. */
int margay_barrier(int timeout_ms);

/* Groups of ranks.
 *
 * A group is some ranks of the job, with numbers of their own from 0: their places. MARGAY_WORLD is
 * the group of all ranks. A rank can be in MARGAY_MAX_GROUPS more at a time. Calls of different
 * groups do not wait for each other. */
typedef uint32_t margay_group;

#define MARGAY_WORLD ((margay_group)0)
#define MARGAY_NO_GROUP ((margay_group)-1)
#define MARGAY_MAX_GROUPS 256

/* margay_group_split makes a group of the ranks of parent that give the same colour, ordered by
 * key, and by their place in parent where keys are equal. A rank with a negative colour gets
 * MARGAY_NO_GROUP. margay_group_create makes a group of some ranks of parent, in that order: ranks
 * that are in no group give a count of 0, or the ranks of a group, and get MARGAY_NO_GROUP. Ranks
 * of one group give the same ranks; several groups without common ranks may be made at a time.
 *
 * Both are collective calls of parent, and fail at all ranks or at none, except by their arguments
 * or their time-out. */
int margay_group_split(margay_group parent, int colour, int key, margay_group *group, int timeout_ms);
int margay_group_create(margay_group parent, const int *ranks, int count, margay_group *group, int timeout_ms);

/* margay_group_free ends this rank's use of a group, without other ranks, and stores
 * MARGAY_NO_GROUP. It fails while calls are under way. */
int margay_group_free(margay_group *group);

/* The place of this rank in a group, its number of ranks, and the rank of a place in the job. */
int margay_group_rank(margay_group group);
int margay_group_size(margay_group group);
int margay_group_job_rank(margay_group group, int rank);

/* Collective operations.
 *
 * All ranks of the job, or of a group, must make the same calls, in the same order, with the same
 * root, length, type and operation. root is a place in the group. A call that waits handles
 * messages. A rank returns when its own part is done: only after an all-reduce, an all-gather, an
 * all-to-all or a barrier is it certain that every rank has made the call. Buffers may be reused
 * when a call has returned. A handler, and the function of a reduction, must not make a call.
 *
 * Each operation has three forms. margay_NAME is of all ranks, and waits. margay_group_NAME is the
 * same of a group. margay_group_NAME_nb, with a request instead of the time-out, starts the call
 * of a group and returns at once; its buffers belong to the library until the request is complete
 * (margay_request_test and so on). Every call of this library that polls or waits advances the
 * calls that were started. Calls of one group are carried out one after the other, in the order of
 * starting, with or without a request.
 *
 * A call that fails, or is not done within its time-out, or whose request is abandoned, ends the
 * collective operations of the group for this rank: all calls under way and all later ones fail. A
 * wait for a request that runs into its time-out does not. If a rank ends without making a call,
 * the job ends.
 *
 * Ranks whose calls differ, in the operation, the root, the length, the type or what a reduction
 * does with it, fail with an error that names both: at once when data of one reach the other, else
 * when they have awaited each other for 250 ms, or, if the second one comes later, for the time
 * that the first has waited. So do the ranks that wait for one of them. A rank that awaits
 * nothing, such as the root of a broadcast, succeeds, and its next call of the group that awaits
 * another rank fails. margay_barrier is not one of these calls. A rank in it and one in a
 * collective call wait for each other, and the error of each names the other at its time-out, if
 * both have waited for 500 ms by then, and one not much longer than the other. Two functions of
 * the application, and two types of elements of one size in margay_broadcast and the like, make no
 * difference. */

enum margay_type { MARGAY_INT32 = 1, MARGAY_INT64, MARGAY_UINT32, MARGAY_UINT64, MARGAY_FLOAT32, MARGAY_FLOAT64 };

/* AND, OR and XOR work bit by bit, on integers only. Sums of integers wrap. MIN and MAX compare by
 * <, so a result with NaN depends on its place. */
enum margay_op { MARGAY_SUM = 1, MARGAY_MIN, MARGAY_MAX, MARGAY_AND, MARGAY_OR, MARGAY_XOR };

/* A request of an operation that was started; 0: none. */
typedef uint32_t margay_request;

#define MARGAY_MAX_REQUESTS 256

/* margay_group_barrier waits until all ranks of the group have called it as often as this one.
 * Unlike margay_barrier, it waits for no messages and puts. */
int margay_group_barrier(margay_group group, int timeout_ms);
int margay_group_barrier_nb(margay_group group, margay_request *request);

/* margay_broadcast copies length bytes at data of root to data of all ranks. */
int margay_broadcast(int root, void *data, size_t length, int timeout_ms);
int margay_group_broadcast(margay_group group, int root, void *data, size_t length, int timeout_ms);
int margay_group_broadcast_nb(margay_group group, int root, void *data, size_t length, margay_request *request);

/* margay_reduce combines each of count elements of in with the same element of the other ranks, in
 * out of root, in the order root, root+1 and so on, wrapping behind the last rank. The way in which
 * they are associated depends on the number of ranks only, so equal values give an equal result
 * each time. out may be in; other ranks may pass NULL. Both are aligned for the type. */
int margay_reduce(int root, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms);
int margay_group_reduce(margay_group group, int root, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms);
int margay_group_reduce_nb(margay_group group, int root, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op,
			   margay_request *request);

/* margay_allreduce is margay_reduce with root 0 whose result all ranks get: the same bits. */
int margay_allreduce(const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms);
int margay_group_allreduce(margay_group group, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms);
int margay_group_allreduce_nb(margay_group group, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op,
			      margay_request *request);

/* margay_scan combines each element with the same one of the ranks before this one, in the order
 * 0, 1 and so on up to this rank: an inclusive scan. out may be in. */
int margay_scan(const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms);
int margay_group_scan(margay_group group, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, int timeout_ms);
int margay_group_scan_nb(margay_group group, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op, margay_request *request);

/* A margay_combiner combines count elements at from into those at into. It must be associative, and
 * call no function of this library. */
typedef void (*margay_combiner)(void *into, const void *from, size_t count, void *data);

/* margay_reduce_by, margay_allreduce_by and margay_scan_by combine elements of size bytes by a
 * function, which gets data. */
int margay_reduce_by(int root, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data, int timeout_ms);
int margay_group_reduce_by(margay_group group, int root, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data,
			   int timeout_ms);
int margay_group_reduce_by_nb(margay_group group, int root, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data,
			      margay_request *request);
int margay_allreduce_by(const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data, int timeout_ms);
int margay_group_allreduce_by(margay_group group, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data,
			      int timeout_ms);
int margay_group_allreduce_by_nb(margay_group group, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data,
				 margay_request *request);
int margay_scan_by(const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data, int timeout_ms);
int margay_group_scan_by(margay_group group, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data, int timeout_ms);
int margay_group_scan_by_nb(margay_group group, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data,
			    margay_request *request);

/* margay_gather collects length bytes at in of each rank in out of root, in the order of ranks.
 * Other ranks may pass NULL for out. */
int margay_gather(int root, const void *in, size_t length, void *out, int timeout_ms);
int margay_group_gather(margay_group group, int root, const void *in, size_t length, void *out, int timeout_ms);
int margay_group_gather_nb(margay_group group, int root, const void *in, size_t length, void *out, margay_request *request);

/* margay_allgather is margay_gather to all ranks. */
int margay_allgather(const void *in, size_t length, void *out, int timeout_ms);
int margay_group_allgather(margay_group group, const void *in, size_t length, void *out, int timeout_ms);
int margay_group_allgather_nb(margay_group group, const void *in, size_t length, void *out, margay_request *request);

/* margay_alltoall sends each rank a block of in, and receives a block of out from each. The blocks
 * have length bytes and are in the order of ranks. in and out must not overlap. */
int margay_alltoall(const void *in, size_t length, void *out, int timeout_ms);
int margay_group_alltoall(margay_group group, const void *in, size_t length, void *out, int timeout_ms);
int margay_group_alltoall_nb(margay_group group, const void *in, size_t length, void *out, margay_request *request);

/* One-sided operations on windows.
 *
 * A window is memory of a rank that the other ranks of its job read and write without it: on the
 * same node directly, on another node by that node's node kernel. The rank need not poll, and wakes
 * only for events. On a trusted wire it carries out gets and atomic accesses that wait itself while
 * it polls or waits, which is faster; if it computes, or has not called margay_window or has no
 * such window, the first of them take 200 us longer. A window lives until the job ends, also when
 * its rank has ended. Bounds are checked at the window. Nothing orders accesses of different ranks
 * except barriers, events and atomic accesses. A handler must not use windows.
 *
 * Completion: margay_put and margay_put_event return when their source may be reused (local
 * completion). They are complete, so that every rank sees them, when margay_quiet or margay_barrier
 * has returned 0 (remote completion). To one rank they take effect in the order of the calls, in
 * which atomic accesses and gets take part; so margay_fence has nothing to wait for. margay_get,
 * margay_fetch_add and margay_compare_swap return when they are complete. To give an operation a
 * time-out, start its form with the suffix _nb and wait for the request.
 *
 * A put to another node that was refused there is an error of the next margay_quiet,
 * margay_barrier or margay_finalize, whichever is first. Call one of them before the process exits.
 * The barrier is carried out before it returns the error, so other ranks do not wait for it. */
#define MARGAY_MAX_WINDOWS 256

/* margay_window makes this rank's window of that number, zeroed and page-aligned, and returns its
 * memory: the same if it is called again with no larger size. Ranks may have windows of different
 * sizes, or none. Call a barrier before other ranks use it. It is the region "window/NUMBER/RANK",
 * so extensions can work on it, and counts as one of the 64 regions of a job on a node. */
void *margay_window(int number, size_t size);

/* margay_put copies length bytes to a window of a rank, at an offset in bytes. */
int margay_put(int rank, int window, size_t offset, const void *from, size_t length);

/* margay_get copies length bytes from a window of a rank. */
int margay_get(void *to, int rank, int window, size_t offset, size_t length);

/* margay_fetch_add adds to the uint64_t at an offset, a multiple of 8, and margay_compare_swap
 * replaces it by value if it is expected. Both are atomic for all ranks of the job, and store what
 * was there before in *old unless that is NULL. C11 atomics of the window's own rank are atomic
 * with them. */
int margay_fetch_add(int rank, int window, size_t offset, uint64_t value, uint64_t *old);
int margay_compare_swap(int rank, int window, size_t offset, uint64_t expected, uint64_t value, uint64_t *old);

/* An event is a uint64_t in a window that counts. margay_put_event is margay_put, and adds 1 to the
 * event at the offset event when the data are there. */
int margay_put_event(int rank, int window, size_t offset, const void *from, size_t length, size_t event);

/* margay_event_test reports whether an event in a window of this rank has counted up to count; if
 * not, it handles messages and looks again. margay_event_wait handles messages until it has.
 * margay_fetch_add and margay_compare_swap wake it, too. */
int margay_event_test(int window, size_t event, uint64_t count);
int margay_event_wait(int window, size_t event, uint64_t count, int timeout_ms);

/* margay_fence orders the puts of this rank to each other rank before it before those after it. */
void margay_fence(void);

/* margay_quiet waits until all one-sided operations of this rank are complete, those with a request
 * included, and fails if a put without a request was refused. */
int margay_quiet(int timeout_ms);

/* Non-blocking one-sided operations.
 *
 * A function with the suffix _nb starts an operation, never waits, and stores a request in
 * *request. It fails at once, and stores 0, for wrong arguments, for a refusal of a window of this
 * node, and while MARGAY_MAX_REQUESTS requests are outstanding. Operations on one rank take effect
 * in the order in which they were started, with or without a request. Every call of this library
 * that polls or waits advances them. margay_barrier sends all that were started before it, so it
 * completes started puts on other ranks as it completes margay_put.
 *
 * Until the request is complete, its memory belongs to the library: the source of a put must not
 * be changed, and the memory for a get or an old value must not be used. A put with a request is
 * complete when it has taken effect at its rank (remote completion), and a refusal is the error of
 * its request, not of margay_quiet or margay_barrier.
 *
 * A request ends when it is found complete, by a test or a wait, which stores 0 in its place. 0 is
 * no request, and counts as complete. A request that is not complete after a time-out stays
 * outstanding: test it, wait again, or abandon it. Wait before margay_finalize. A handler must not
 * use requests. These functions take requests of collective operations, too. */
int margay_put_nb(int rank, int window, size_t offset, const void *from, size_t length, margay_request *request);
int margay_put_event_nb(int rank, int window, size_t offset, const void *from, size_t length, size_t event, margay_request *request);
int margay_get_nb(void *to, int rank, int window, size_t offset, size_t length, margay_request *request);
int margay_fetch_add_nb(int rank, int window, size_t offset, uint64_t value, uint64_t *old, margay_request *request);
int margay_compare_swap_nb(int rank, int window, size_t offset, uint64_t expected, uint64_t value, uint64_t *old, margay_request *request);

/* margay_request_test handles messages and returns 1 if a request is complete, 0 if it is
 * outstanding, and -1 if it is complete and has failed, or for no outstanding request.
 * margay_request_wait waits for that and returns 0 only after the time-out. If the node kernel is
 * gone, it abandons the request and returns -1. */
int margay_request_test(margay_request *request);
int margay_request_wait(margay_request *request, int timeout_ms);

/* margay_request_wait_all waits until all of count requests are complete, and returns -1 if one
 * has failed: margay_error describes the first failure. After the time-out it returns 0, and all
 * stay as they are. margay_request_wait_any waits until one is complete, ends it as
 * margay_request_wait does, and stores its index in *index, -1 if there is none. */
int margay_request_wait_all(margay_request *requests, int count, int timeout_ms);
int margay_request_wait_any(margay_request *requests, int count, int *index, int timeout_ms);

/* margay_request_abandon ends a request, complete or not, without waiting: its memory is the
 * application's again. What was not sent is not sent any more; what was sent takes effect. A
 * collective operation that was not complete has then failed. */
int margay_request_abandon(margay_request *request);

/* Operations on the windows of a group.
 *
 * margay_xfer_and_signal and margay_compare_and_write, with margay_event_test and
 * margay_event_wait, are the three primitives of STORM. An operation changes the windows of all
 * ranks of a group, or of none. The caller is one of them. Operations of a group are carried out
 * one after the other, in one order at all of its ranks; nothing orders them with operations of
 * other groups, puts, and stores of the windows' own ranks. A handler must not call them.
 *
 * A rank takes part in calls of this library that poll or wait, so its window changes nowhere else:
 * the program sees all of a block or nothing of it. Gets of other ranks may see a part; wait for
 * the event. For some time, some ranks have the new value and others do not. When the operation is
 * complete, all have it. So the operations are linearisable, and loads are sequentially consistent
 * with them: no rank sees writes in another order.
 *
 * If a rank refuses the operation, since it has no such window or the place is not all in it, or
 * the caller gives up before all ranks have agreed, no window changes. If a rank or a node dies in
 * the middle, the job ends. Until it has ended, the other ranks see the change at all of them or at
 * none, unless the caller dies, or a node, while the decision is being sent. */
#define MARGAY_NO_EVENT ((size_t)-1)
#define MARGAY_NO_WORD ((size_t)-1)

/* margay_xfer_and_signal starts to copy length bytes to the same place in a window of all ranks of
 * a group. When the data are there, it adds 1 to the event at the offset remote of each of these
 * windows, and when they are there at all ranks, to the event at the offset local of this rank's;
 * MARGAY_NO_EVENT: none. The source belongs to the library until the request is complete, which is
 * tested and waited for like any other (margay_request_test and so on). If it fails, no data are
 * copied and no event counts. A request that is abandoned may take effect, at all ranks, or not. */
int margay_xfer_and_signal(margay_group group, int window, size_t offset, const void *from, size_t length, size_t remote, size_t local,
			   margay_request *request);

/* Comparisons of words as unsigned numbers: ==, !=, <, <=, >, >=. */
enum margay_comparison { MARGAY_EQ = 1, MARGAY_NE, MARGAY_LT, MARGAY_LE, MARGAY_GT, MARGAY_GE };

/* margay_compare_and_write compares the uint64_t at an offset of a window, a multiple of 8, of all
 * ranks of a group with value: word <comparison> value. If that is true at all of them, it stores
 * word at the offset write of all of these windows, MARGAY_NO_WORD: nowhere, and returns 1.
 * Otherwise it returns 0. If the time-out ends it before all ranks have agreed, nothing is stored;
 * margay_error says so. */
int margay_compare_and_write(margay_group group, int window, size_t offset, enum margay_comparison comparison, uint64_t value, size_t write,
			     uint64_t word, int timeout_ms);

/* Upcalls: messages with the verdict MARGAY_UPCALL.
 *
 * margay_upcalls(1) lets them interrupt this thread at any point; margay_upcalls(0) restores their
 * delivery as ordinary messages. It uses the signal SIGURG, whose handler must not be changed while
 * upcalls are on, and its own stack. All registers are preserved: floating point, vectors, flags
 * and errno. An interrupted system call continues, except those that Linux never restarts (poll,
 * select, epoll_wait, nanosleep and the like, see signal(7)): they return EINTR.
 *
 * The handler may interrupt any code, including malloc and stdio. It may call margay_post,
 * margay_mask, the functions that return the place of this process, and the functions in
 * signal-safety(7); not malloc or printf. A failing margay_post returns an error there but does not
 * change margay_error.
 *
 * While any handler runs, upcalls are masked: the next one is handled when it has returned. A
 * handler may let others interrupt it by margay_mask(0), up to a nesting of eight. While a program
 * waits in this library, upcalls are handled as fast, one at a time.
 *
 * Upcalls from one rank arrive in the order of sending. They may overtake messages; a message never
 * overtakes an upcall that the same rank sent before it. */
int margay_upcalls(int on);

/* margay_mask masks (1) or unmasks (0) upcalls, handling pending ones at once, and returns the
 * previous state. It makes no system call. Polling and waiting handle upcalls, masked or not. */
int margay_mask(int masked);

/* margay_region maps memory that the job's ranks on this node share under a name, initially zero.
 * An extension that is inserted later and has a map of that name works on it. A size of 0 requires
 * an existing region; its size goes to *actual unless that is NULL. */
void *margay_region(const char *name, size_t size, size_t *actual);

/* margay_fixed_region is margay_region at the same address in all ranks of this node that call it,
 * so they can share pointers into the region. A second call for the same region returns the same
 * address. */
void *margay_fixed_region(const char *name, size_t size, size_t *actual);

/* A setting changes an extension before it is inserted. */
struct margay_setting {
	const char *name;
	uint64_t value;
	int entries; /* 0: the value of a constant; 1: the number of a map's entries */
};

/* margay_insert inserts an extension, an ELF object made by clang, into the node kernel of this
 * node and returns its number. name is its name in lists, NULL for the name in the object. slot
 * must match the object's section if that names a slot; NULL selects the section's slot. */
int margay_insert(const char *name, const char *slot, const void *object, size_t size, const struct margay_setting *settings,
		  int count);

/* margay_remove removes an extension. When it returns, the extension is not running and will not
 * run again. */
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

/* A map of an extension, mapped into this process: the memory that the extension works on. */
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
