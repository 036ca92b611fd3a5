/* The layouts of the application interface, version 9: the Go package beside this header, in C. */
#ifndef MARGAY_WIRE_H
#define MARGAY_WIRE_H

#include <stdint.h>

#define WIRE_VERSION 11
#define WIRE_MAGIC 0x5947524d
#define WIRE_RING_SIZE (256 << 10)
#define WIRE_MAX_NAME 64
#define WIRE_MAX_SETTINGS 16

/* Places in the area. */
#define WIRE_OFF_MAGIC 0
#define WIRE_OFF_VERSION 4
#define WIRE_JOB 8
#define WIRE_RANK 12
#define WIRE_SIZE 16
#define WIRE_NODE 20
#define WIRE_LOCAL_RANK 24
#define WIRE_LOCAL_SIZE 28
#define WIRE_NODES 32
#define WIRE_TABLE 36
#define WIRE_SEND 40
#define WIRE_RECEIVE 44
#define WIRE_RING_BYTES 48
#define WIRE_UPCALL 52
#define WIRE_MEETS 56
#define WIRE_ENTERED 64
#define WIRE_JOINED 72
#define WIRE_RELEASED 128
#define WIRE_SETTLED 192
#define WIRE_PATH 200
#define WIRE_CHANNELS 204
#define WIRE_BOUND 208
#define WIRE_SEND_CONTROL 256
#define WIRE_RECEIVE_CONTROL 512
#define WIRE_UPCALL_CONTROL 768

/* Offsets in a ring's control block. */
#define WIRE_TAIL 0
#define WIRE_HEAD 64
#define WIRE_CONSUMER_WAITING 128
#define WIRE_PRODUCER_WAITING 192

/* Bits of the path word. */
#define WIRE_DIRECT 1
#define WIRE_YIELD 2
#define WIRE_SPIN 4
#define WIRE_MEET 8
#define WIRE_STREWN 16
#define WIRE_FAR 32

/* Places in a channel. */
#define WIRE_CHANNEL_CLOSED 0
#define WIRE_CHANNEL_SHARED 4
#define WIRE_CHANNEL_SETTLED 8
#define WIRE_CHANNEL_SEAL 16
#define WIRE_CHANNEL_COUNT 64
#define WIRE_CHANNEL_POSITION 72
#define WIRE_CHANNEL_TAKEN 128
#define WIRE_CHANNEL_BLOCKED 192
#define WIRE_CHANNEL_ACKED 256
#define WIRE_CHANNEL_ARRIVED 384
#define WIRE_CHANNEL_ACKNOWLEDGED 448
#define WIRE_CHANNEL_JOURNAL 1024
#define WIRE_CHANNEL_DATA 4096
#define WIRE_CHANNEL_RING (128 << 10)
#define WIRE_CHANNEL_SIZE (WIRE_CHANNEL_DATA + WIRE_CHANNEL_RING)

/* Values of the closed word. */
#define WIRE_CHANNEL_ENDED 1

/* values[1] of a reply about mirrored channels. */
#define WIRE_MIRROR 2

/* Bytes of a record in a channel before its payload, of the longest payload, parts of a mark. */
#define WIRE_CHANNEL_HEADER 24
#define WIRE_CHANNEL_PAYLOAD (WIRE_CHANNEL_RING / 16 - WIRE_CHANNEL_HEADER)
#define WIRE_MARK_MASK (2 * WIRE_CHANNEL_RING / 8 - 1)
#define WIRE_MARK_VALID (1 << 15)

/* Places on the board, and parts of a rank's word for a barrier. */
#define WIRE_BOARD_RANK 128
#define WIRE_BOARD_BARRIER 0
#define WIRE_BOARD_OUTCOME 16
#define WIRE_BOARD_ASLEEP 64
#define WIRE_BARRIER_LOUD 1
#define WIRE_BARRIER_SHIFT 2

/* Outcomes about a barrier. */
#define WIRE_OUTCOME_QUIET 1
#define WIRE_OUTCOME_LOUD 2
#define WIRE_OUTCOME_ABANDONED 3

/* Kinds of record. */
#define WIRE_MESSAGE 1
#define WIRE_PAD 2

#define WIRE_NODE_EXTENSION 0x80000000u /* in node: an extension has sent the message */

struct wire_record {
	uint32_t length;
	uint16_t kind;
	uint16_t handler;
	uint32_t peer;
	uint32_t node;
	uint32_t size;
	uint32_t after;
	uint64_t args[2];
};

/* Messages of the libraries (kernel/abi/wire, Call). */
#define WIRE_HANDLER_COLLECTIVE 256
#define WIRE_COLLECTIVE_WINDOW 16
#define WIRE_MOST_SMALL 8
#define WIRE_MAX_CALL_LENGTH ((UINT64_C(1) << 40) - 1)
#define WIRE_MAX_CALL_NUMBER 0xfff

#define WIRE_CALL_BROADCAST 1
#define WIRE_CALL_REDUCE 2
#define WIRE_CALL_ALL_REDUCE 3
#define WIRE_CALL_GATHER 4
#define WIRE_CALL_ALL_GATHER 5
#define WIRE_CALL_ALL_TO_ALL 6
#define WIRE_CALL_SCAN 7
#define WIRE_CALL_BARRIER 8
#define WIRE_CALL_SPLIT 9
#define WIRE_CALL_CREDIT 10
#define WIRE_CALL_PROBE 11
#define WIRE_CALL_WHERE 12

/* The same, Where. */
#define WIRE_WHERE_SIZE 24
#define WIRE_MAX_WHERES 2

#define WIRE_OP_USER 7

/* The same, Remote. */
#define WIRE_HANDLER_REMOTE 257

#define WIRE_REMOTE_PUT 1
#define WIRE_REMOTE_GET 2
#define WIRE_REMOTE_ADD 3
#define WIRE_REMOTE_SWAP 4
#define WIRE_REMOTE_REPLY 5

#define WIRE_REMOTE_OK 0
#define WIRE_REMOTE_NO_WINDOW 1
#define WIRE_REMOTE_OUTSIDE 2

/* The same, Note. */
#define WIRE_HANDLER_BARRIER 258
#define WIRE_MAX_ROUNDS 32
#define WIRE_ROUND_UP 32
#define WIRE_ROUND_DOWN 64
#define WIRE_NOTE_ROUNDS 96
#define WIRE_TREE_GROUP 8
#define WIRE_NOTE_STREWN (1 << 16)
#define WIRE_UNTRIED 2
#define WIRE_MOST_SKIPPED 15

/* A message that was stopped on the interface. */
#define WIRE_HANDLER_STOPPED 261

/* The same, Piece. */
#define WIRE_HANDLER_PIECE 259
#define WIRE_PIECE_ARGS 16

/* The same, Commit. */
#define WIRE_HANDLER_COMMIT 260
#define WIRE_MAX_COMMIT_NUMBER ((UINT64_C(1) << 48) - 1)
#define WIRE_NO_PLACE ((1 << 24) - 1)

#define WIRE_COMMIT_ASK 1
#define WIRE_COMMIT_GRANT 2
#define WIRE_COMMIT_RELEASE 3
#define WIRE_COMMIT_BEGIN 4
#define WIRE_COMMIT_DATA 5
#define WIRE_COMMIT_VOTE 6
#define WIRE_COMMIT_DECIDE 7
#define WIRE_COMMIT_DONE 8

#define WIRE_COMMIT_OK 0
#define WIRE_COMMIT_NO_WINDOW 1
#define WIRE_COMMIT_BEYOND 2
#define WIRE_COMMIT_NO_MEMORY 3
#define WIRE_COMMIT_FREED 4
#define WIRE_COMMIT_FALSE 5
#define WIRE_COMMIT_ABANDONED 6

/* The same, CommitOp. */
struct wire_commit_op {
	uint32_t compare;
	uint32_t window;
	uint64_t offset;
	uint64_t value;
	uint64_t second;
	uint64_t word;
};

/* Requests. */
#define WIRE_HELLO 1
#define WIRE_INSERT 2
#define WIRE_REMOVE 3
#define WIRE_STATS 4
#define WIRE_REGION 5
#define WIRE_STATE 6
#define WIRE_CHANNEL 7
#define WIRE_DOORBELL 8

#define WIRE_OK 0
#define WIRE_AGAIN 7

#define WIRE_SET_CONSTANT 1
#define WIRE_SET_ENTRIES 2
#define WIRE_SET_TRUSTED 3

struct wire_request {
	uint32_t op;
	uint32_t call;
	uint32_t handle;
	uint32_t settings;
	uint64_t value;
	char name[WIRE_MAX_NAME];
	char where[WIRE_MAX_NAME];
};

struct wire_setting {
	uint64_t value;
	uint32_t kind;
	uint32_t zero;
	char name[WIRE_MAX_NAME];
};

struct wire_reply {
	uint32_t call;
	uint32_t status;
	uint32_t handle;
	uint32_t zero;
	uint64_t values[8];
	char text[256];
};

#endif
