/* played.h: the library of Margay, played for rank 0 of a job on one node. Messages to itself go round,
 * and those to other ranks are kept for the test. It takes no lock: the provider must call it from
 * one thread at a time. */
#ifndef PLAYED_H
#define PLAYED_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "margay.h"
#include "provider.h"

#define CHECK(what)                                                                                                                                         \
	do {                                                                                                                                                \
		if (!(what)) {                                                                                                                              \
			fprintf(stderr, "line %d: not true: %s\n", __LINE__, #what);                                                                        \
			exit(1);                                                                                                                            \
		}                                                                                                                                           \
	} while (0)

#define ROOM 16 /* messages on their way */

struct message {
	int rank, handler;
	uint64_t args[2];
	size_t length;
	char payload[MARGAY_MAX_PAYLOAD];
};

static struct message way[ROOM];
static unsigned first, count;
static struct message last; /* to another rank */
static int refusals;	    /* how many to other ranks have no room */
static int posts[MARGAY_MAX_HANDLERS];
static int played_size = 1;
static margay_handler handlers[MARGAY_MAX_HANDLERS];

int margay_init(void) { return 0; }
const char *margay_error(void) { return "none"; }
int margay_job(void) { return 1; }
int margay_rank(void) { return 0; }
int margay_size(void) { return played_size; }
int margay_node(void) { return 0; }

int margay_node_of(int rank)
{
	(void)rank;
	return 0;
}

int margay_handle(int number, margay_handler handler, void *data)
{
	(void)data;
	handlers[number] = handler;
	return 0;
}

/* play passes a message of a rank to the provider. */
static void play(int source, const struct message *m)
{
	struct margay_am am = {.source = source, .handler = m->handler, .args = {m->args[0], m->args[1]}, .payload = m->payload, .length = m->length};
	handlers[m->handler](&am, NULL);
}

int margay_post(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	struct message *m = rank == 0 ? &way[(first + count) % ROOM] : &last;
	CHECK(rank < played_size && length <= sizeof m->payload);
	if (rank == 0 ? count == ROOM : refusals > 0) {
		refusals -= rank;
		return 0;
	}
	posts[handler]++;
	*m = (struct message){.rank = rank, .handler = handler, .args = {arg0, arg1}, .length = length};
	if (length)
		memcpy(m->payload, payload, length);
	count += rank == 0;
	return 1;
}

int margay_poll(void)
{
	int n = 0;
	for (unsigned most = count; most > 0; most--, n++) {
		struct message m = way[first++ % ROOM];
		count--;
		play(0, &m);
	}
	return n;
}

/* An endpoint, opened as libfabric does. */
static struct fid_domain *domain;
static struct fid_av *av;
static struct fid_cq *cq;
static struct fid_ep *ep;

static void open_all(void)
{
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fi_av_attr attr = {.type = FI_AV_TABLE};
	struct fi_cq_attr queue = {.format = FI_CQ_FORMAT_TAGGED};
	struct address address;
	size_t length = sizeof address;
	int ends[2];
	char number[16];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0); /* this process looks like a rank */
	snprintf(number, sizeof number, "%d", ends[0]);
	setenv("MARGAY_FD", number, 1);
	CHECK(provider.getinfo(FI_VERSION(1, 9), NULL, NULL, 0, NULL, &info) == 0 && info->domain_attr->threading == FI_THREAD_SAFE);
	CHECK(provider.fabric(info->fabric_attr, &fabric, NULL) == 0);
	CHECK(fi_domain(fabric, info, &domain, NULL) == 0);
	CHECK(fi_av_open(domain, &attr, &av, NULL) == 0);
	CHECK(fi_cq_open(domain, &queue, &cq, NULL) == 0);
	CHECK(fi_endpoint(domain, info, &ep, NULL) == 0);
	CHECK(fi_ep_bind(ep, &av->fid, 0) == 0);
	CHECK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV) == 0);
	CHECK(fi_enable(ep) == 0);
	CHECK(fi_getname(&ep->fid, &address, &length) == 0);
	for (int rank = 0; rank < played_size; rank++) {
		address.rank = rank;
		CHECK(fi_av_insert(av, &address, 1, NULL, 0, NULL) == 1);
	}
}

#endif
