/* match.h: which message a receive gets. A message goes to the oldest posted receive that it fits,
 * and a receive gets the oldest unexpected message that fits it. There is no I/O and no memory is
 * allocated: receives and messages have these structures as members. */
#ifndef MARGAY_OFI_MATCH_H
#define MARGAY_OFI_MATCH_H

#include <stdint.h>

#include "list.h"

#define MATCH_ANY (-1) /* every rank, as the source that a receive wants */

/* What a receive wants. */
struct match_want {
	struct link link;
	uint64_t tag, ignore; /* bits that are set in ignore may differ */
	int source;
};

/* What a message has. */
struct match_came {
	struct link link;
	uint64_t tag;
	int source;
};

struct matcher {
	struct link posted;     /* match_want, oldest first */
	struct link unexpected; /* match_came, oldest first */
};

static inline void match_open(struct matcher *m)
{
	list_open(&m->posted);
	list_open(&m->unexpected);
}

static inline int match_fits(const struct match_want *want, const struct match_came *came)
{
	return (want->source == MATCH_ANY || want->source == came->source) && !((want->tag ^ came->tag) & ~want->ignore);
}

/* match_unexpected returns the message for a receive, NULL if there is none. The message stays
 * there. */
static inline struct match_came *match_unexpected(struct matcher *m, const struct match_want *want)
{
	for (struct link *l = m->unexpected.next; l != &m->unexpected; l = l->next) {
		struct match_came *came = list_of(l, struct match_came, link);
		if (match_fits(want, came))
			return came;
	}
	return NULL;
}

/* match_posted returns the receive for a message, NULL if there is none. The receive stays
 * posted. */
static inline struct match_want *match_posted(struct matcher *m, const struct match_came *came)
{
	for (struct link *l = m->posted.next; l != &m->posted; l = l->next) {
		struct match_want *want = list_of(l, struct match_want, link);
		if (match_fits(want, came))
			return want;
	}
	return NULL;
}

/* match_post returns the message for a receive and removes it from the unexpected ones. If there is
 * none, the receive is posted. */
static inline struct match_came *match_post(struct matcher *m, struct match_want *want)
{
	struct match_came *came = match_unexpected(m, want);
	if (came)
		list_remove(&came->link);
	else
		list_add(&m->posted, &want->link);
	return came;
}

/* match_arrive returns the receive for a message and removes it from the posted ones. If there is
 * none, the caller keeps the message with match_keep. */
static inline struct match_want *match_arrive(struct matcher *m, const struct match_came *came)
{
	struct match_want *want = match_posted(m, came);
	if (want)
		list_remove(&want->link);
	return want;
}

static inline void match_keep(struct matcher *m, struct match_came *came) { list_add(&m->unexpected, &came->link); }

#endif
