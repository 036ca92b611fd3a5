/* What the test objects need of the conventions of BPF C, and no more. */
#pragma once

#define SEC(name) __attribute__((section(name), used))
#define __uint(name, val) int (*name)[val]
#define __type(name, val) typeof(val) *name
#define __noinline __attribute__((noinline))
#define __ksym __attribute__((section(".ksyms")))

enum { MAP_ARRAY = 2, MAP_PERCPU_ARRAY = 6, F_RDONLY_PROG = 1 << 7, F_MMAPABLE = 1 << 10 };

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

static void *(*const map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const map_update_elem)(void *map, const void *key, const void *value, u64 flags) = (void *)2;
static u64 (*const ktime_get_ns)(void) = (void *)5;
