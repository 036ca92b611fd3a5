/* Carries out one operation a line, and prints what it gives:
 *
 *	post ID TAG IGNORE SOURCE    the message for a receive, or -
 *	arrive ID TAG SOURCE         the receive for a message, or -
 *	peek TAG IGNORE SOURCE       the message that a receive would get, or -
 *	cancel ID                    nothing */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "match.h"

struct receive {
	struct match_want want;
	long id;
};

struct message {
	struct match_came came;
	long id;
};

#define MOST 100000

static struct receive *receives[MOST];

static void *make(size_t size)
{
	void *p = calloc(1, size);
	if (!p)
		abort();
	return p;
}

static void print(const struct message *m)
{
	if (m)
		printf("%ld\n", m->id);
	else
		puts("-");
}

static struct message *message_of(struct match_came *came) { return came ? list_of(came, struct message, came) : NULL; }

int main(void)
{
	struct matcher m;
	char word[16];
	match_open(&m);
	while (scanf("%15s", word) == 1) {
		struct match_want want = {0};
		struct match_came came = {0};
		long id = 0;
		if (strcmp(word, "post") == 0 && scanf("%ld %" SCNx64 " %" SCNx64 " %d", &id, &want.tag, &want.ignore, &want.source) == 4 && id < MOST) {
			struct receive *r = receives[id] = make(sizeof *r);
			r->want = want;
			r->id = id;
			print(message_of(match_post(&m, &r->want)));
		} else if (strcmp(word, "arrive") == 0 && scanf("%ld %" SCNx64 " %d", &id, &came.tag, &came.source) == 3) {
			struct message *made = make(sizeof *made);
			made->came = came;
			made->id = id;
			struct match_want *got = match_arrive(&m, &made->came);
			if (got) {
				printf("%ld\n", list_of(got, struct receive, want)->id);
			} else {
				match_keep(&m, &made->came);
				puts("-");
			}
		} else if (strcmp(word, "peek") == 0 && scanf("%" SCNx64 " %" SCNx64 " %d", &want.tag, &want.ignore, &want.source) == 3) {
			print(message_of(match_unexpected(&m, &want)));
		} else if (strcmp(word, "cancel") == 0 && scanf("%ld", &id) == 1 && id < MOST) {
			list_remove(&receives[id]->want.link);
		} else {
			return 1;
		}
	}
	return 0;
}
