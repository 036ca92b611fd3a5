/* internal.h: what the files of the C library share. Applications do not include it. */
#ifndef MARGAY_INTERNAL_H
#define MARGAY_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "margay.h"

/* margay_in_fail sets margay_error() and returns -1. */
int margay_in_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* margay_in_no_job fails if this process has not joined its job or has left it. */
int margay_in_no_job(void);

/* margay_in_handler reports whether a handler runs. */
int margay_in_handler(void);

/* margay_in_now returns the time in nanoseconds, and margay_in_left the milliseconds until a
 * deadline, at least 0; -1 for the deadline -1, which is none. */
int64_t margay_in_now(void);
int margay_in_left(int64_t deadline);

/* margay_in_wait handles messages until done(n, arg) is true; n is the number handled. It returns
 * -1 after the time-out and -2 when the node kernel is gone. */
int margay_in_wait(int (*done)(int n, uint64_t arg), uint64_t arg, int timeout_ms);

/* margay_in_mask keeps upcalls out of this library's own work, and returns the previous state for
 * margay_in_unmask. */
int margay_in_mask(void);
void margay_in_unmask(int was);

/* margay_in_direct returns the way to the windows of a rank of another node by datagrams, NULL if
 * there is none, and whether it may be used now. margay_in_ask sends the requests that are due. */
struct direct;
struct direct *margay_in_direct(int rank, int *allowed);
void margay_in_ask(struct direct *d);

/* margay_in_land takes the answer of a request of a direct. */
void margay_in_land(struct direct *d, uint64_t number, int status, const char *data);

/* margay_in_post and margay_in_send are margay_post and margay_send to any handler, in a job, with
 * valid arguments. */
int margay_in_post(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length);
int margay_in_send(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length, int64_t deadline);

/* margay_in_room reports whether there is room for a message of so much payload to a handler. If
 * not, this rank is woken when there is. */
int margay_in_room(int rank, int handler, size_t length);

/* margay_in_progress sends messages of started one-sided operations while there is room. No handler
 * calls it. margay_in_drain waits until all are sent. */
void margay_in_progress(void);
int margay_in_drain(int timeout_ms);

/* margay_in_answered waits until all sent puts without a request are answered. margay_in_refused
 * fails, once, if one of them was refused. */
int margay_in_answered(int timeout_ms);
int margay_in_refused(void);

/* margay_in_call makes a collective call of a group. Its first fields are given. margay_in_start
 * starts a copy of one and makes its request. */
struct call;
int margay_in_call(struct call *c, margay_group group, int timeout_ms);
int margay_in_start(const struct call *c, margay_group group, margay_request *request);

/* The names of kinds of calls, of types and of operations. */
const char *margay_in_kind(int kind);
const char *margay_in_type(int type);
const char *margay_in_op(int op);

/* margay_in_collect advances collective operations. No handler calls it. margay_in_probe probes the
 * ranks that are awaited for long, and returns when it must be called again; -1: there are none. */
void margay_in_collect(void);
int64_t margay_in_probe(void);

/* margay_in_early describes a rank in a collective call that this rank has not started, and returns
 * 0 if none is known. margay_in_meets reports whether this rank is in a barrier of the job. */
int margay_in_early(char *text, size_t size);
int margay_in_meets(void);

/* margay_in_open_request makes a request of a collective operation, and margay_in_close_request
 * completes it. why is NULL unless it has failed. margay_in_leave ends the call of a request that
 * is abandoned. */
int margay_in_open_request(struct call *c, margay_request *request);
void margay_in_close_request(margay_request request, int kind, const char *why);
void margay_in_leave(struct call *c);

/* margay_in_arrive takes a message of WIRE_HANDLER_COLLECTIVE. It returns -1 if that makes no
 * sense. The sender may have written anything. */
int margay_in_arrive(const struct margay_am *message);

/* A group, as commit.c knows it, and the place of the part of this rank in its operations. */
struct part;
struct team {
	uint64_t id;
	int size, own;	    /* own: place of this rank */
	const int *ranks;   /* by place; NULL: as in the job */
	const int *places;  /* by rank, -1: it is not in the group; NULL: as in the job */
	struct part **part; /* NULL there: it has none yet */
};

/* margay_in_team describes a group, or fails. margay_in_team_of does so by its number, and returns
 * 0 if this rank has freed it. */
int margay_in_team(margay_group group, struct team *team);
int margay_in_team_of(uint64_t id, struct team *team);

/* margay_in_part_is_busy reports whether operations are under way, and margay_in_free_part frees a
 * part that has none. It may be NULL. */
int margay_in_part_is_busy(const struct part *part);
void margay_in_free_part(struct part *part);

/* margay_in_commit advances operations on windows of groups. No handler calls it.
 * margay_in_probe_commits is as margay_in_probe. margay_in_settle_commits waits until no operation
 * of this rank is under way. */
void margay_in_commit(void);
int64_t margay_in_probe_commits(void);
int margay_in_settle_commits(int timeout_ms);

/* margay_in_open_commit makes a request of such an operation, and margay_in_close_commit completes
 * it. why is NULL unless it has failed. margay_in_abandon_commit ends the operation of a request
 * that is abandoned, and frees it. */
struct commit;
int margay_in_open_commit(struct commit *c, margay_group group, margay_request *request);
void margay_in_close_commit(margay_request request, const char *why);
void margay_in_abandon_commit(struct commit *c, margay_group group);

/* margay_in_window returns the memory and the size of a window of this rank, NULL if there is
 * none. */
char *margay_in_window(int number, size_t *size);

/* margay_in_mapped is margay_in_window, but returns NULL also for a window that is not mapped. */
char *margay_in_mapped(int number, size_t *size);

/* margay_in_take_commit takes a message of WIRE_HANDLER_COMMIT, as margay_in_arrive does. */
int margay_in_take_commit(const struct margay_am *message);

/* margay_in_answer takes a message of WIRE_HANDLER_REMOTE, as margay_in_arrive does. */
int margay_in_answer(const struct margay_am *message);

/* margay_in_wake wakes a rank of this node if it sleeps: something changed that it may wait for. */
void margay_in_wake(int rank);

#endif
