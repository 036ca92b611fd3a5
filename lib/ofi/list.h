/* list.h: doubly linked lists whose links are in their elements. A list is a link of its own. */
#ifndef MARGAY_OFI_LIST_H
#define MARGAY_OFI_LIST_H

#include <stddef.h>

struct link {
	struct link *next, *prev;
};

/* list_of is the element that has a link as a member. */
#define list_of(at, type, member) ((type *)((char *)(at) - offsetof(type, member)))

static inline void list_open(struct link *list) { list->next = list->prev = list; }

static inline int list_empty(const struct link *list) { return list->next == list; }

/* list_add adds an element at the end. */
static inline void list_add(struct link *list, struct link *l)
{
	l->next = list;
	l->prev = list->prev;
	list->prev->next = l;
	list->prev = l;
}

/* list_remove removes an element, which may be removed again then. */
static inline void list_remove(struct link *l)
{
	l->prev->next = l->next;
	l->next->prev = l->prev;
	list_open(l);
}

#endif
