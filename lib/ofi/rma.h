/* rma.h: reading and writing the registered memory of other ranks, over active messages of at most
 * RMA_PAYLOAD bytes.
 *
 * This is one rank's part, a state machine without I/O like the engine of messages (engine.h): it
 * never waits, and is not safe for concurrent use. A rank carries out the requests of others when
 * their messages arrive.
 *
 *	REQUEST  begins an operation; the data of a short write are in it
 *	DATA     some of a write's data; without any, the write is dropped
 *	RESULT   some of the data that a read gives
 *	ANSWER   an operation is complete, has failed, or needs DATA
 *	PROBE    nothing: it is for ranks that have ended
 *
 * A request to a rank of the same node says where the data of a write are, and the target copies
 * them; if it cannot, it asks for DATA. The answer to a read says where the data are, and the
 * initiator copies them; if it cannot, it requests them again. So no rank writes into the memory of
 * another one, and none reads what the other's library has not named.
 *
 * A request has one of RMA_SLOTS numbers, which is free again with its answer. So a target keeps
 * little for each other rank, and no data. A write with a data word makes an event at its target.
 * While the application has not taken RMA_EVENTS of a rank, answers to more are held back.
 *
 * Every address is looked up and checked when its data are copied or their place is named, and
 * places in memory that is closed are withdrawn. So memory may be closed at any time. Messages from
 * other ranks may be anything. One that makes no sense is counted and dropped. */
#ifndef MARGAY_OFI_RMA_H
#define MARGAY_OFI_RMA_H

#include <stdint.h>

#include "list.h"
#include "memory.h"

#define RMA_PAYLOAD 1024 /* bytes of a message's payload */
#ifndef RMA_SLOTS	 /* a test has lower limits */
#define RMA_SLOTS 64	 /* requests to a rank that are not answered; at most 64 */
#define RMA_EVENTS 1024	 /* of a rank that the application has not taken */
#endif
#define RMA_LONGEST (((uint64_t)1 << 48) - 1) /* bytes of an operation */

enum rma_kind { RMA_REQUEST, RMA_DATA, RMA_RESULT, RMA_ANSWER, RMA_PROBE, RMA_KINDS };

/* How an operation has ended. RMA_SEND is for ranks alone. */
enum rma_status { RMA_OK, RMA_NO_KEY, RMA_NO_ACCESS, RMA_OUTSIDE, RMA_SEND, RMA_DROPPED, RMA_STATUSES };

#define RMA_MAY_READ 1
#define RMA_MAY_WRITE 2

/* Registered memory. Addresses count from 0. */
struct rma_region {
	uint64_t key;
	int access;
	struct memory memory;
};

/* An operation. The caller sets the fields above the line. */
struct rma_op {
	int rank;
	int writes, has_data;
	uint64_t address, key, data;
	struct memory memory;
	/* ---- */
	struct link link; /* in the list of operations to send */
	int slot;	  /* -1: it has none yet */
	int requested;
	int in_place; /* the other rank copies the data, or this one its */
	uint64_t moved;
	enum rma_status status;
};

struct rma_io {
	/* post, offer and pull are as in struct engine_io. */
	int (*post)(void *io, int rank, int kind, const uint64_t args[2], const void *payload, size_t length);
	int (*offer)(void *io, int rank, uint64_t length, uint64_t proof[PLACE_PROOF]);
	int (*pull)(void *io, int rank, const struct place *from, const struct memory *to);
	/* find returns the region of a key, NULL if there is none. */
	const struct rma_region *(*find)(void *io, uint64_t key);
	/* done is called when an operation has ended. It may not call the machine. */
	void (*done)(void *io, struct rma_op *op);
	/* written is called when a rank has written with a data word, and reports whether the application
	 * gets an event of it. It may not call the machine. */
	int (*written)(void *io, int rank, uint64_t length, uint64_t data);
};

struct rma_peer;

struct rma {
	const struct rma_io *calls;
	void *io;
	int size;
	struct rma_peer *peers; /* by rank */
	struct link busy;
	int under_way;	   /* operations of the application */
	uint64_t nonsense; /* messages that were dropped */
	int failed;	   /* no message can be sent any more, or there was no memory */
};

/* rma_open makes the machine of a rank in a job of size ranks. It returns -1 if there is no
 * memory. rma_close frees it; operations have ended or were dropped. */
int rma_open(struct rma *m, int size, const struct rma_io *calls, void *io);
void rma_close(struct rma *m);

/* rma_start begins an operation, which belongs to the machine until done is called with it. */
void rma_start(struct rma *m, struct rma_op *op);

/* rma_has_room reports whether all operations on a rank were sent that were begun. */
int rma_has_room(const struct rma *m, int rank);

/* rma_took notes that the application has taken an event of a rank. */
void rma_took(struct rma *m, int rank);

/* rma_awaits reports whether a rank has requests to answer. rma_probe sends it something, so that
 * the job ends if the rank has ended. */
int rma_awaits(const struct rma *m, int rank);
void rma_probe(struct rma *m, int rank);

/* rma_arrive takes a message from a rank, and rma_progress sends until there is no room. */
void rma_arrive(struct rma *m, int source, int kind, const uint64_t args[2], const void *payload, size_t length);
void rma_progress(struct rma *m);

/* rma_drop ends all operations of the application, calling done, with RMA_DROPPED. Other ranks may
 * carry out those that were sent. Their requests are answered as before. rma_is_idle reports
 * whether all has been sent that other ranks wait for. */
void rma_drop(struct rma *m);
int rma_is_idle(const struct rma *m);

/* A request, as its bytes say it. */
struct rma_request {
	int writes, has_data, has_place, more;
	int slot;
	uint64_t address, key, length, data;
	const char *payload; /* data of a write that are all there */
	struct place place;
};

/* rma_parse reads a request, which may be anything, and reports whether it makes sense. */
int rma_parse(struct rma_request *q, const uint64_t args[2], const char *payload, size_t length);

#endif
