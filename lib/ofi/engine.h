/* engine.h: messages of any length with tags over active messages of at most ENGINE_PAYLOAD bytes.
 *
 * An engine is one rank's part, a state machine without I/O: calls of the application and messages
 * of other ranks go in, and struct engine_io is called with the results. It never waits. It is
 * not safe for concurrent use.
 *
 *	HEAD    begins a message; a short one is all in it
 *	GO      a receive is there for a long message: its data may come
 *	DATA    some of them
 *	END     the sender has dropped the message: the rest does not come
 *
 * The head of a long message to a rank of the same node says where the data are. Then the receiver
 * copies them, and GO says that it wants none; if it cannot, they come as DATA.
 *
 * A rank keeps the data of at most ENGINE_CREDITS messages of each other rank that no receive has
 * taken: a message in its head costs its sender a credit, which comes back, with any message,
 * when a receive has taken it. A sender without a credit treats a message as a long one. The data
 * of long ones leave only when their receive is there, so they wait in the memory of their sender.
 * Of these a rank keeps the heads of ENGINE_LONG of each other rank, of 100 to 200 bytes each. So a
 * message gets its receive, however many others are before it that no receive wants, up to that
 * number. Nothing is sent to a rank that does not wait for it: a message to a rank that has ended
 * ends the job.
 *
 * To one rank heads leave in the order of the calls, and the order of heads is the order of
 * matching. Messages from other ranks may be anything. One that makes no sense is counted and
 * dropped. */
#ifndef MARGAY_OFI_ENGINE_H
#define MARGAY_OFI_ENGINE_H

#include <stddef.h>
#include <stdint.h>

#include "match.h"
#include "memory.h"

#define ENGINE_PAYLOAD 1024			    /* bytes of a message's payload */
#define ENGINE_SHORT (ENGINE_PAYLOAD - 8)	    /* bytes of a message that its head can carry */
#ifndef ENGINE_CREDITS				    /* a test has lower limits */
#define ENGINE_CREDITS 64			    /* at most 255 */
#define ENGINE_LONG 65536			    /* long messages to a rank without GO */
#endif
#define ENGINE_LONGEST (((uint64_t)1 << 48) - 1)    /* bytes of a message */

enum engine_kind { ENGINE_HEAD, ENGINE_GO, ENGINE_DATA, ENGINE_END, ENGINE_KINDS };

/* A message that is being sent. The caller sets the fields above the line. */
struct engine_send {
	int rank;
	int tagged;
	int has_data;
	uint64_t tag, data; /* data is passed on with the message */
	struct memory memory;
	/* ---- */
	struct link link;
	int is_long;	  /* it has an id */
	int started;	  /* GO has come */
	uint32_t id;
	uint32_t receive; /* id of its receive */
	uint64_t wanted, sent;
};

/* A receive. The caller sets the fields above the line, the engine those below. */
struct engine_receive {
	struct match_want want; /* but for its link */
	int tagged;
	struct memory memory;
	/* ---- */
	int source;
	int has_data;
	uint64_t tag, data;
	uint64_t length; /* of the message, which may be longer than the memory */
	uint64_t got;	 /* bytes of it that are in the memory */
	uint64_t limit;	 /* bytes of a long one that are to come there */
	uint32_t id, send;
	int sink;   /* it belongs to the engine, and its data go nowhere */
	int broken; /* the sender has dropped the message: not all of its data have come */
	struct link link;
};

/* A message that no receive has taken. */
struct engine_message {
	struct match_came came;
	int has_data;
	int is_long;
	uint64_t data, length;
	uint32_t send;
	size_t size;
	char payload[]; /* of a short one; the place of a long one, if it has one */
};

struct engine_io {
	/* post sends a message. It returns 1 if it is sent, 0 if there is no room, and -1 if no message
	 * can be sent any more. */
	int (*post)(void *io, int rank, int kind, const uint64_t args[2], const void *payload, size_t length);
	/* offer stores the proof for places of this process, and returns 0 if a rank cannot read them,
	 * or if so many bytes (length) are faster in pieces.
	 * pull copies from a place that a rank has named, which may be anywhere, and reports whether it
	 * could; if not, it may have changed the memory. */
	int (*offer)(void *io, int rank, uint64_t length, uint64_t proof[PLACE_PROOF]);
	int (*pull)(void *io, int rank, const struct place *from, const struct memory *to);
	/* sent is called when the memory of a message may be reused, received when a message is in the
	 * memory of a receive. Neither may call the engine. */
	void (*sent)(void *io, struct engine_send *s);
	void (*received)(void *io, struct engine_receive *r);
};

/* A table of numbers for pointers. */
struct engine_table {
	void **slots;
	uint32_t *unused;
	uint32_t size, unused_count;
};

struct engine_peer {
	struct link link;  /* in the list of those to which something must be sent */
	struct link heads; /* messages whose head was not sent */
	struct link data;  /* long messages whose data are being sent */
	struct link going; /* receives whose GO was not sent */
	struct link ends;  /* engine_end: dropped messages whose END was not sent */
	int credits;	   /* messages that may be sent to it in their heads */
	int longs;	   /* long messages to it without GO */
	int graves;	   /* how many of these were dropped */
	int owed;	   /* credits that it gets */
	int kept;	   /* messages of it whose credit it does not have */
	int kept_longs;	   /* long messages of it to which no GO was sent */
	int coming;	   /* receives that wait for its data */
};

struct engine {
	const struct engine_io *calls;
	void *io;
	int size;
	struct engine_peer *peers; /* by rank */
	struct link busy;
	struct matcher matchers[2]; /* of messages without and with tags */
	struct engine_table sends, receives;
	uint64_t nonsense; /* messages that were dropped */
	int failed;	   /* no message can be sent any more, or there was no memory for one that came */
};

/* engine_open makes the engine of a rank in a job of size ranks. It returns -1 if there is no
 * memory. */
int engine_open(struct engine *e, int size, const struct engine_io *calls, void *io);

/* engine_send sends a message, at the latest in a call of engine_progress. It belongs to the engine
 * until sent is called with it, which may be at once. */
void engine_send(struct engine *e, struct engine_send *s);

/* engine_send_now sends a message if its head can carry it and can leave at once, and reports
 * whether it has. sent is not called. */
int engine_send_now(struct engine *e, struct engine_send *s);

/* engine_awaits reports whether receives wait for data of a rank, which has them, or long messages
 * for its GO. */
int engine_awaits(const struct engine *e, int rank);

/* engine_has_left reports whether all messages to a rank have left, long ones at least with their
 * heads. */
int engine_has_left(const struct engine *e, int rank);

/* engine_receive receives a message. The receive belongs to the engine until received is called
 * with it, which may be at once, or until it is cancelled. */
void engine_receive(struct engine *e, struct engine_receive *r);

/* engine_cancel takes a receive back and reports whether that was possible: no message has come
 * for it. */
int engine_cancel(struct engine_receive *r);

/* engine_peek describes the message that a receive would get, with nothing in its memory, and
 * returns it, NULL if there is none. engine_claim takes it from the unexpected ones, for
 * engine_accept, which gives it to a receive as engine_receive does. */
struct engine_message *engine_peek(struct engine *e, struct engine_receive *r);
void engine_claim(struct engine_message *m);
void engine_accept(struct engine *e, struct engine_receive *r, struct engine_message *m);

/* engine_arrive takes a message from a rank. */
void engine_arrive(struct engine *e, int source, int kind, const uint64_t args[2], const void *payload, size_t length);

/* engine_progress sends until there is no room. */
void engine_progress(struct engine *e);

/* engine_drop ends all sends and receives, calling sent and received, and drops the unexpected
 * messages. What other ranks still send for them goes nowhere, and their receives in the middle of
 * a message end broken. engine_is_idle reports whether all has been sent that this needs. */
void engine_drop(struct engine *e);
int engine_is_idle(const struct engine *e);

/* engine_discard drops a message that was claimed. */
void engine_discard(struct engine *e, struct engine_message *m);

/* engine_close drops everything and frees the memory of an engine. */
void engine_close(struct engine *e);

/* The head of a message, as its bytes say it. */
struct engine_head {
	int tagged, has_data, is_long;
	uint64_t tag, data, length;
	uint32_t send;
	const char *payload; /* of a short one; the place of a long one */
	size_t size;	     /* of the payload */
};

/* engine_parse reads a head, which may be anything, and reports whether it makes sense. */
int engine_parse(struct engine_head *h, const uint64_t args[2], const char *payload, size_t length);

#endif
