/* atomic.c: no endpoint has atomic operations, and says so. */
#include "provider.h"

static ssize_t no_write(struct fid_ep *ep, const void *buffer, size_t count, void *desc, fi_addr_t to, uint64_t address, uint64_t key,
			enum fi_datatype type, enum fi_op op, void *context)
{
	(void)ep, (void)buffer, (void)count, (void)desc, (void)to, (void)address, (void)key, (void)type, (void)op, (void)context;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_writev(struct fid_ep *ep, const struct fi_ioc *parts, void **desc, size_t count, fi_addr_t to, uint64_t address, uint64_t key,
			 enum fi_datatype type, enum fi_op op, void *context)
{
	(void)ep, (void)parts, (void)count, (void)desc, (void)to, (void)address, (void)key, (void)type, (void)op, (void)context;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_writemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, uint64_t flags)
{
	(void)ep, (void)m, (void)flags;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_inject(struct fid_ep *ep, const void *buffer, size_t count, fi_addr_t to, uint64_t address, uint64_t key, enum fi_datatype type,
			 enum fi_op op)
{
	(void)ep, (void)buffer, (void)count, (void)to, (void)address, (void)key, (void)type, (void)op;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_readwrite(struct fid_ep *ep, const void *buffer, size_t count, void *desc, void *result, void *result_desc, fi_addr_t to,
			    uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	(void)ep, (void)buffer, (void)count, (void)desc, (void)result, (void)result_desc, (void)to, (void)address, (void)key, (void)type, (void)op,
		(void)context;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_readwritev(struct fid_ep *ep, const struct fi_ioc *parts, void **desc, size_t count, struct fi_ioc *results, void **result_desc,
			     size_t result_count, fi_addr_t to, uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	(void)ep, (void)parts, (void)desc, (void)count, (void)results, (void)result_desc, (void)result_count, (void)to, (void)address, (void)key,
		(void)type, (void)op, (void)context;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_readwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, struct fi_ioc *results, void **result_desc, size_t result_count,
			       uint64_t flags)
{
	(void)ep, (void)m, (void)results, (void)result_desc, (void)result_count, (void)flags;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_compwrite(struct fid_ep *ep, const void *buffer, size_t count, void *desc, const void *compare, void *compare_desc, void *result,
			    void *result_desc, fi_addr_t to, uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	(void)ep, (void)buffer, (void)count, (void)desc, (void)compare, (void)compare_desc, (void)result, (void)result_desc, (void)to, (void)address,
		(void)key, (void)type, (void)op, (void)context;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_compwritev(struct fid_ep *ep, const struct fi_ioc *parts, void **desc, size_t count, const struct fi_ioc *compares,
			     void **compare_desc, size_t compare_count, struct fi_ioc *results, void **result_desc, size_t result_count, fi_addr_t to,
			     uint64_t address, uint64_t key, enum fi_datatype type, enum fi_op op, void *context)
{
	(void)ep, (void)parts, (void)desc, (void)count, (void)compares, (void)compare_desc, (void)compare_count, (void)results, (void)result_desc,
		(void)result_count, (void)to, (void)address, (void)key, (void)type, (void)op, (void)context;
	return -FI_EOPNOTSUPP;
}

static ssize_t no_compwritemsg(struct fid_ep *ep, const struct fi_msg_atomic *m, const struct fi_ioc *compares, void **compare_desc,
			       size_t compare_count, struct fi_ioc *results, void **result_desc, size_t result_count, uint64_t flags)
{
	(void)ep, (void)m, (void)compares, (void)compare_desc, (void)compare_count, (void)results, (void)result_desc, (void)result_count, (void)flags;
	return -FI_EOPNOTSUPP;
}

static int no_valid(struct fid_ep *ep, enum fi_datatype type, enum fi_op op, size_t *count)
{
	(void)ep, (void)type, (void)op, (void)count;
	return -FI_EOPNOTSUPP;
}

struct fi_ops_atomic atomic_none = {sizeof atomic_none, no_write, no_writev, no_writemsg, no_inject, no_readwrite, no_readwritev, no_readwritemsg,
				    no_compwrite, no_compwritev, no_compwritemsg, no_valid, no_valid, no_valid};
