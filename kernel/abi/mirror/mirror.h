/* The datagrams of mirrored channels, version 1, and the bounds of their protocol: the Go package
 * beside this header, in C. Numbers in datagrams are little-endian. */
#ifndef MARGAY_MIRROR_H
#define MARGAY_MIRROR_H

#include <stdint.h>

#define MIRROR_MAGIC 0x4d4d
#define MIRROR_VERSION 1
#define MIRROR_ASK 1
#define MIRROR_LEAST 1088
#define MIRROR_MOST 9000

/* Bounds of the protocol; times are in nanoseconds. */
#define MIRROR_ACK_DELAY 200000
#define MIRROR_ACK_EACH 8
#define MIRROR_FIRST_TIMEOUT 20000000
#define MIRROR_LEAST_TIMEOUT 2000000
#define MIRROR_MOST_TIMEOUT 250000000
#define MIRROR_FIRST_WINDOW 16
#define MIRROR_MOST_WINDOW 128
#define MIRROR_EQUAL_ACKS 3
#define MIRROR_FEW 8
#define MIRROR_GATHER 32768

struct mirror_header {
	uint16_t magic;
	uint8_t version;
	uint8_t flags;
	uint32_t number;
	uint64_t key;
	uint64_t offset;
	uint64_t arrived;
	uint64_t taken;
};

#endif
