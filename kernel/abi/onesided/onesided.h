/* The datagrams of one-sided operations, version 1, and the bounds of their protocol: the Go
 * package beside this header, in C. Numbers in datagrams are little-endian. */
#ifndef MARGAY_ONESIDED_H
#define MARGAY_ONESIDED_H

#include <stdint.h>

#define ONESIDED_MAGIC 0x4d57
#define ONESIDED_VERSION 1
#define ONESIDED_GAP 1
#define ONESIDED_MOST 1472
#define ONESIDED_OUTSTANDING 64

/* Bounds of the protocol; times are in nanoseconds. */
#define ONESIDED_FIRST_TIMEOUT 20000000
#define ONESIDED_LEAST_TIMEOUT 2000000
#define ONESIDED_MOST_TIMEOUT 250000000
#define ONESIDED_MOST_TRAIN 60000
#define ONESIDED_PATIENCE 200000
#define ONESIDED_LEAST_PAUSE 250000
#define ONESIDED_MOST_PAUSE 128000000

#define ONESIDED_BY_RANK 2 /* the server of a journal that is the rank of the window */

struct onesided_request {
	uint16_t magic;
	uint8_t version;
	uint8_t kind; /* WIRE_REMOTE_PUT to WIRE_REMOTE_SWAP */
	uint32_t source;
	uint32_t target;
	uint8_t window;
	uint8_t zero;
	uint16_t length;
	uint64_t key;
	uint64_t number;
	uint64_t offset;
};

struct onesided_answer {
	uint16_t magic;
	uint8_t version;
	uint8_t kind; /* WIRE_REMOTE_REPLY */
	uint32_t source;
	uint32_t target;
	uint8_t flags;
	uint8_t zero;
	uint16_t length;
	uint64_t key;
	uint64_t number;
	uint64_t done;
	uint64_t no_window;
	uint64_t outside;
};

struct onesided_journal {
	uint64_t server;
	uint64_t done;
	uint64_t intent;
	uint64_t no_window;
	uint64_t outside;
	uint64_t results[ONESIDED_OUTSTANDING];
};

#endif
