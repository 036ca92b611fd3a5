/* vector.c: address vectors. */
#include "provider.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "margay.h"

int vector_rank(const struct vector *v, fi_addr_t at) { return at < v->count ? v->ranks[at] : -1; }

static int vector_close(struct fid *fid)
{
	struct vector *v = list_of(fid, struct vector, av.fid);
	lock();
	int users = v->users;
	unlock();
	if (users)
		return -FI_EBUSY;
	free(v->ranks);
	free(v->of);
	free(v);
	return 0;
}

/* append adds a rank and returns its entry, FI_ADDR_NOTAVAIL if there is no memory. */
static fi_addr_t append(struct vector *v, int rank)
{
	if (v->count == v->room) {
		size_t room = v->room ? 2 * v->room : 16;
		int *ranks = realloc(v->ranks, room * sizeof *ranks);
		if (!ranks)
			return FI_ADDR_NOTAVAIL;
		v->ranks = ranks;
		v->room = room;
	}
	v->ranks[v->count] = rank;
	if (v->of[rank] == FI_ADDR_NOTAVAIL)
		v->of[rank] = v->count;
	return v->count++;
}

static int vector_insert(struct fid_av *av, const void *addresses, size_t count, fi_addr_t *at, uint64_t flags, void *context)
{
	struct vector *v = list_of(av, struct vector, av);
	int *errors = flags & FI_SYNC_ERR ? context : NULL, inserted = 0;
	lock();
	for (size_t i = 0; i < count; i++) {
		struct address a;
		memcpy(&a, (const char *)addresses + i * sizeof a, sizeof a);
		int rank = port_rank(&a);
		fi_addr_t entry = rank < 0 ? FI_ADDR_NOTAVAIL : append(v, rank);
		if (at)
			at[i] = entry;
		if (errors)
			errors[i] = rank < 0 ? FI_EINVAL : entry == FI_ADDR_NOTAVAIL ? FI_ENOMEM : 0;
		inserted += entry != FI_ADDR_NOTAVAIL;
	}
	unlock();
	return inserted;
}

static int no_insertsvc(struct fid_av *av, const char *node, const char *service, fi_addr_t *at, uint64_t flags, void *context)
{
	(void)av, (void)node, (void)service, (void)at, (void)flags, (void)context;
	return -FI_ENOSYS;
}

static int no_insertsym(struct fid_av *av, const char *node, size_t nodes, const char *service, size_t services, fi_addr_t *at, uint64_t flags,
			void *context)
{
	(void)av, (void)node, (void)nodes, (void)service, (void)services, (void)at, (void)flags, (void)context;
	return -FI_ENOSYS;
}

static int vector_remove(struct fid_av *av, fi_addr_t *at, size_t count, uint64_t flags)
{
	struct vector *v = list_of(av, struct vector, av);
	int err = 0;
	(void)flags;
	lock();
	for (size_t i = 0; i < count; i++) {
		int rank = vector_rank(v, at[i]);
		if (rank < 0) {
			err = -FI_EINVAL;
			continue;
		}
		v->ranks[at[i]] = -1;
		if (v->of[rank] == at[i])
			v->of[rank] = FI_ADDR_NOTAVAIL;
	}
	unlock();
	return err;
}

static int vector_lookup(struct fid_av *av, fi_addr_t at, void *address, size_t *length)
{
	lock();
	struct address a = port_address();
	int rank = vector_rank(list_of(av, struct vector, av), at);
	unlock();
	if (rank < 0)
		return -FI_EINVAL;
	a.rank = rank;
	memcpy(address, &a, *length < sizeof a ? *length : sizeof a);
	*length = sizeof a;
	return 0;
}

static const char *vector_straddr(struct fid_av *av, const void *address, char *buffer, size_t *length)
{
	struct address a;
	(void)av;
	memcpy(&a, address, sizeof a);
	int n = snprintf(buffer, *length, "job %u rank %u", a.job, a.rank);
	*length = n + 1;
	return buffer;
}

int vector_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **av, void *context)
{
	static struct fi_ops fid_ops = {sizeof fid_ops, vector_close, no_bind, no_control, no_ops_open, NULL, NULL};
	static struct fi_ops_av ops = {.size = sizeof ops, .insert = vector_insert, .insertsvc = no_insertsvc, .insertsym = no_insertsym,
				       .remove = vector_remove, .lookup = vector_lookup, .straddr = vector_straddr};
	(void)domain;
	if (attr->name || attr->rx_ctx_bits || (attr->flags & FI_EVENT))
		return -FI_ENOSYS;
	struct vector *v = calloc(1, sizeof *v);
	fi_addr_t *of = malloc(margay_size() * sizeof *of);
	if (!v || !of) {
		free(v);
		free(of);
		return -FI_ENOMEM;
	}
	for (int rank = 0; rank < margay_size(); rank++)
		of[rank] = FI_ADDR_NOTAVAIL;
	v->of = of;
	v->av = (struct fid_av){{FI_CLASS_AV, context, &fid_ops}, &ops};
	if (attr->type == FI_AV_UNSPEC)
		attr->type = FI_AV_TABLE;
	*av = &v->av;
	return 0;
}
