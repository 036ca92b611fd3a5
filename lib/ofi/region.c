/* region.c: memory that other ranks may read or write. It belongs to the process, whatever
 * endpoints it has, and its keys are the program's. */
#define _GNU_SOURCE
#include "provider.h"

#include <search.h>
#include <stdlib.h>

struct region {
	struct fid_mr mr;
	struct rma_region region;
};

static int by_key(const void *a, const void *b)
{
	uint64_t left = ((const struct rma_region *)a)->key, right = ((const struct rma_region *)b)->key;
	return left < right ? -1 : left > right;
}

const struct rma_region *region_find(void *io, uint64_t key)
{
	struct rma_region wanted = {.key = key};
	struct rma_region **found = tfind(&wanted, &port.regions, by_key);
	(void)io;
	return found ? *found : NULL;
}

static int region_close(struct fid *fid)
{
	struct region *r = list_of(fid, struct region, mr.fid);
	lock();
	tdelete(&r->region, &port.regions, by_key);
	if (r->region.access & RMA_MAY_READ)
		port_withdraw(); /* an answer may be on its way that names it */
	unlock();
	free(r);
	return 0;
}

/* insert adds a region unless there is one of its key. */
static int insert(struct region *r)
{
	struct rma_region **at = tsearch(&r->region, &port.regions, by_key);
	return !at ? -FI_ENOMEM : *at != &r->region ? -FI_ENOKEY : 0;
}

static int region_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **mr)
{
	static struct fi_ops fid_ops = {sizeof fid_ops, region_close, no_bind, no_control, no_ops_open, NULL, NULL};
	struct region *r;
	if (fid->fclass != FI_CLASS_DOMAIN || attr->offset || attr->auth_key_size || attr->iface != FI_HMEM_SYSTEM)
		return -FI_EINVAL;
	if (flags)
		return -FI_EBADFLAGS;
	if (!(r = calloc(1, sizeof *r)))
		return -FI_ENOMEM;
	r->region.key = attr->requested_key;
	r->region.access = (attr->access & FI_REMOTE_READ ? RMA_MAY_READ : 0) | (attr->access & FI_REMOTE_WRITE ? RMA_MAY_WRITE : 0);
	r->mr = (struct fid_mr){{FI_CLASS_MR, attr->context, &fid_ops}, NULL, attr->requested_key};
	int err = memory_set(&r->region.memory, attr->mr_iov, attr->iov_count) ? 0 : -FI_EINVAL;
	lock();
	if (!err)
		err = insert(r);
	unlock();
	if (err)
		free(r);
	else
		*mr = &r->mr;
	return err;
}

static int region_regv(struct fid *fid, const struct iovec *parts, size_t count, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
		       struct fid_mr **mr, void *context)
{
	struct fi_mr_attr attr = {.mr_iov = parts, .iov_count = count, .access = access, .offset = offset, .requested_key = key, .context = context};
	return region_regattr(fid, &attr, flags, mr);
}

static int region_reg(struct fid *fid, const void *buffer, size_t length, uint64_t access, uint64_t offset, uint64_t key, uint64_t flags,
		      struct fid_mr **mr, void *context)
{
	return region_regv(fid, &(struct iovec){(void *)buffer, length}, 1, access, offset, key, flags, mr, context);
}

struct fi_ops_mr region_ops = {sizeof region_ops, region_reg, region_regv, region_regattr};
