/* The datagrams between nodes, version 1: the Go package beside this header, in C. */
#ifndef MARGAY_DATAGRAM_H
#define MARGAY_DATAGRAM_H

#ifndef __bpf__
#include <stdint.h>
#define DATAGRAM_U8 uint8_t
#define DATAGRAM_U16 uint16_t
#define DATAGRAM_U32 uint32_t
#define DATAGRAM_U64 uint64_t
#else
#define DATAGRAM_U8 unsigned char
#define DATAGRAM_U16 unsigned short
#define DATAGRAM_U32 unsigned int
#define DATAGRAM_U64 unsigned long long
#endif

#define DATAGRAM_VERSION 1
#define DATAGRAM_FRAMES 1

#define DATAGRAM_CLEAR_SIZE 24
#define DATAGRAM_BITMAP_SIZE 32
#define DATAGRAM_FRAGMENT 1232
#define DATAGRAM_MAX_MESSAGE (1 << 20)
#define DATAGRAM_OVERHEAD 16
#define DATAGRAM_MAX_SIZE 65507
#define DATAGRAM_WINDOW 256

/* Classes. */
#define DATAGRAM_USER 0
#define DATAGRAM_SYSTEM 1
#define DATAGRAM_CLASSES 2

/* Flags of a datagram. */
#define DATAGRAM_SEALED 1
#define DATAGRAM_ASK 2
#define DATAGRAM_END 4
#define DATAGRAM_USER_BITMAP 8
#define DATAGRAM_SYSTEM_BITMAP 16

/* Flags of a unit. */
#define DATAGRAM_FIRST 1
#define DATAGRAM_LAST 2

/* Bitmaps and units follow. */
struct datagram_header {
	DATAGRAM_U8 version;
	DATAGRAM_U8 kind;
	DATAGRAM_U16 flags;
	DATAGRAM_U32 source;
	DATAGRAM_U32 target;
	DATAGRAM_U32 connection;
	DATAGRAM_U64 number;
	DATAGRAM_U64 echo;
	DATAGRAM_U32 delay;
	DATAGRAM_U16 units;
	DATAGRAM_U16 zero;
	DATAGRAM_U64 next[DATAGRAM_CLASSES];
	DATAGRAM_U32 credit[DATAGRAM_CLASSES];
};

/* The payload follows, filled up to a multiple of 8 bytes. */
struct datagram_unit {
	DATAGRAM_U64 number;
	DATAGRAM_U32 message;
	DATAGRAM_U16 size;
	DATAGRAM_U8 class;
	DATAGRAM_U8 flags;
	DATAGRAM_U32 job;
	DATAGRAM_U32 rank;
	DATAGRAM_U32 target;
	DATAGRAM_U16 handler;
	DATAGRAM_U16 zero;
};

#endif
