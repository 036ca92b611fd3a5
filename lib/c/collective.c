/* Collective operations: what the application calls, and the operations on numbers. group.c carries
 * them out. */
#include "internal.h"
#include "steps.h"
#include "wire.h"

#define SUM(a, b) ((a) + (b))
#define MIN(a, b) ((b) < (a) ? (b) : (a))
#define MAX(a, b) ((a) < (b) ? (b) : (a))
#define AND(a, b) ((a) & (b))
#define OR(a, b) ((a) | (b))
#define XOR(a, b) ((a) ^ (b))

/* COMBINER defines the combiner of an operation for a type. */
#define COMBINER(op, type, name)                                                            \
	static void name##_##op(void *into, const void *from, size_t count, void *data) \
	{                                                                                   \
		type *a = into;                                                             \
		const type *b = from;                                                       \
		(void)data;                                                                 \
		for (size_t i = 0; i < count; i++)                                          \
			a[i] = op(a[i], b[i]);                                              \
	}

/* Integers wrap, and their bits do not depend on the sign. */
COMBINER(SUM, uint32_t, bits32)
COMBINER(AND, uint32_t, bits32)
COMBINER(OR, uint32_t, bits32)
COMBINER(XOR, uint32_t, bits32)
COMBINER(SUM, uint64_t, bits64)
COMBINER(AND, uint64_t, bits64)
COMBINER(OR, uint64_t, bits64)
COMBINER(XOR, uint64_t, bits64)
COMBINER(MIN, int32_t, int32)
COMBINER(MAX, int32_t, int32)
COMBINER(MIN, int64_t, int64)
COMBINER(MAX, int64_t, int64)
COMBINER(MIN, uint32_t, uint32)
COMBINER(MAX, uint32_t, uint32)
COMBINER(MIN, uint64_t, uint64)
COMBINER(MAX, uint64_t, uint64)
COMBINER(SUM, float, float32)
COMBINER(MIN, float, float32)
COMBINER(MAX, float, float32)
COMBINER(SUM, double, float64)
COMBINER(MIN, double, float64)
COMBINER(MAX, double, float64)

/* A type: the size of an element, and the combiners by operation. */
static const struct {
	size_t size;
	margay_combiner combine[MARGAY_XOR + 1];
} numbers[] = {
    [MARGAY_INT32] = {4, {NULL, bits32_SUM, int32_MIN, int32_MAX, bits32_AND, bits32_OR, bits32_XOR}},
    [MARGAY_INT64] = {8, {NULL, bits64_SUM, int64_MIN, int64_MAX, bits64_AND, bits64_OR, bits64_XOR}},
    [MARGAY_UINT32] = {4, {NULL, bits32_SUM, uint32_MIN, uint32_MAX, bits32_AND, bits32_OR, bits32_XOR}},
    [MARGAY_UINT64] = {8, {NULL, bits64_SUM, uint64_MIN, uint64_MAX, bits64_AND, bits64_OR, bits64_XOR}},
    [MARGAY_FLOAT32] = {4, {NULL, float32_SUM, float32_MIN, float32_MAX, NULL, NULL, NULL}},
    [MARGAY_FLOAT64] = {8, {NULL, float64_SUM, float64_MIN, float64_MAX, NULL, NULL, NULL}},
};

/* plain makes a call about bytes. The fields of steps_begin are left as they are: to clear them
 * here would take longer than the rest. */
static int plain(struct call *c, int kind, int root, const void *in, void *out, size_t length)
{
	c->kind = kind;
	c->type = c->op = 0;
	c->root = root;
	c->in = in;
	c->out = out;
	c->length = length;
	return 0;
}

/* reduction makes a call that combines elements, or fails. */
static int reduction(struct call *c, int kind, int root, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data)
{
	size_t length;
	if (size == 0 || __builtin_mul_overflow(count, size, &length))
		return margay_in_fail("%s: %zu elements of %zu bytes", margay_in_kind(kind), count, size);
	plain(c, kind, root, in, out, length);
	c->op = WIRE_OP_USER;
	c->count = count;
	c->size = size;
	c->combine = combine;
	c->data = data;
	return 0;
}

/* numeric makes a call that combines numbers, or fails. */
static int numeric(struct call *c, int kind, int root, const void *in, void *out, size_t count, int type, int op)
{
	if (type < MARGAY_INT32 || type > MARGAY_FLOAT64)
		return margay_in_fail("%s: there is no type %d", margay_in_kind(kind), type);
	if (op < MARGAY_SUM || op > MARGAY_XOR)
		return margay_in_fail("%s: there is no operation %d", margay_in_kind(kind), op);
	if (!numbers[type].combine[op])
		return margay_in_fail("%s: there is no %s of %s", margay_in_kind(kind), margay_in_op(op), margay_in_type(type));
	int err = reduction(c, kind, root, in, out, count, numbers[type].size, numbers[type].combine[op], NULL);
	c->type = type;
	c->op = op;
	return err;
}

/* CALLS defines the three functions of an operation: of all ranks, of a group, and its start. The
 * parameters are in parentheses; make makes the call c. */
#define UNWRAP(...) __VA_ARGS__
#define CALLS(name, parameters, make)                                                                \
	int margay_##name(UNWRAP parameters, int timeout_ms)                                         \
	{                                                                                            \
		struct call c;                                                                       \
		return make ? -1 : margay_in_call(&c, MARGAY_WORLD, timeout_ms);                    \
	}                                                                                            \
	int margay_group_##name(margay_group group, UNWRAP parameters, int timeout_ms)               \
	{                                                                                            \
		struct call c;                                                                       \
		return make ? -1 : margay_in_call(&c, group, timeout_ms);                           \
	}                                                                                            \
	int margay_group_##name##_nb(margay_group group, UNWRAP parameters, margay_request *request) \
	{                                                                                            \
		struct call c;                                                                       \
		*request = 0;                                                                        \
		return make ? -1 : margay_in_start(&c, group, request);                             \
	}

CALLS(broadcast, (int root, void *data, size_t length), plain(&c, WIRE_CALL_BROADCAST, root, NULL, data, length))
CALLS(reduce, (int root, const void *in, void *out, size_t count, enum margay_type type, enum margay_op op),
      numeric(&c, WIRE_CALL_REDUCE, root, in, out, count, type, op))
CALLS(allreduce, (const void *in, void *out, size_t count, enum margay_type type, enum margay_op op),
      numeric(&c, WIRE_CALL_ALL_REDUCE, 0, in, out, count, type, op))
CALLS(scan, (const void *in, void *out, size_t count, enum margay_type type, enum margay_op op),
      numeric(&c, WIRE_CALL_SCAN, 0, in, out, count, type, op))
CALLS(reduce_by, (int root, const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data),
      reduction(&c, WIRE_CALL_REDUCE, root, in, out, count, size, combine, data))
CALLS(allreduce_by, (const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data),
      reduction(&c, WIRE_CALL_ALL_REDUCE, 0, in, out, count, size, combine, data))
CALLS(scan_by, (const void *in, void *out, size_t count, size_t size, margay_combiner combine, void *data),
      reduction(&c, WIRE_CALL_SCAN, 0, in, out, count, size, combine, data))
CALLS(gather, (int root, const void *in, size_t length, void *out), plain(&c, WIRE_CALL_GATHER, root, in, out, length))
CALLS(allgather, (const void *in, size_t length, void *out), plain(&c, WIRE_CALL_ALL_GATHER, 0, in, out, length))
CALLS(alltoall, (const void *in, size_t length, void *out), plain(&c, WIRE_CALL_ALL_TO_ALL, 0, in, out, length))

int margay_group_barrier(margay_group group, int timeout_ms)
{
	struct call c;
	plain(&c, WIRE_CALL_BARRIER, 0, NULL, NULL, 1);
	return margay_in_call(&c, group, timeout_ms);
}

int margay_group_barrier_nb(margay_group group, margay_request *request)
{
	struct call c;
	plain(&c, WIRE_CALL_BARRIER, 0, NULL, NULL, 1);
	return margay_in_start(&c, group, request);
}
