/* The tree of a job's nodes, for collective operations of extensions: each node has up to
 * TREE_WIDTH children. A node is named by its distance from the root's node among the places of the
 * job's nodes, modulo their number. Messages for a node go to its first rank. */
#ifndef MARGAY_TREE_H
#define MARGAY_TREE_H

#include "margay_ext.h"

#define TREE_WIDTH 8

/* A node of the tree. */
struct tree {
	__u32 rank;  /* of this node, that the handled message has come to */
	__u32 first; /* the first rank of this node */
	__u32 ranks; /* of this node */
	__u32 nodes; /* of the job */
	__u32 root;  /* place of the root's node */
	__u32 at;    /* of this node in the tree, 0: it is the root's */
};

/* tree_find describes this node in the tree with a root. It returns 0 or a negative error. */
static inline_always long tree_find(struct tree *t, const struct margay_message *m, __u32 root)
{
	struct margay_job_rank own, other;
	struct margay_job_node node;
	long err = job_rank(m->target_rank, &own, sizeof own);

	if (!err)
		err = job_rank(root, &other, sizeof other);
	if (!err)
		err = job_node(own.node, &node, sizeof node);
	if (err)
		return err;
	t->rank = m->target_rank;
	t->first = node.first;
	t->ranks = node.ranks;
	t->nodes = own.nodes;
	t->root = other.node;
	t->at = (own.node + own.nodes - other.node) % own.nodes;
	return 0;
}

/* tree_first returns the first rank of the node at a place of the tree, or MARGAY_NO_RANK. */
static inline_always __u32 tree_first(const struct tree *t, __u32 at)
{
	struct margay_job_node node;

	if (at >= t->nodes || job_node((t->root + at) % t->nodes, &node, sizeof node) != 0)
		return MARGAY_NO_RANK;
	return node.first;
}

/* tree_children returns the number of this node's children. */
static inline_always __u32 tree_children(const struct tree *t)
{
	__u32 begin = t->at * TREE_WIDTH + 1;

	if (begin >= t->nodes)
		return 0;
	return t->nodes - begin < TREE_WIDTH ? t->nodes - begin : TREE_WIDTH;
}

/* tree_up sends a message to the parent. */
static inline_always long tree_up(const struct tree *t, __u32 handler, __u64 arg0, __u64 arg1, const void *payload, __u64 length)
{
	return send(tree_first(t, (t->at - 1) / TREE_WIDTH), handler, arg0, arg1, payload, length);
}

/* tree_down passes the handled message, which has come to the first rank of its node, on to the
 * children and to all other ranks of the node. It returns 0, or the error of one that was not sent.
 * */
static inline_always long tree_down(const struct tree *t, const struct margay_message *m)
{
	struct margay_job_rank r;
	long err = 0;

	for (__u32 i = 1; i <= TREE_WIDTH; i++) {
		__u32 to = tree_first(t, t->at * TREE_WIDTH + i);
		long failed = to == MARGAY_NO_RANK ? 0 : send(to, m->handler, m->args[0], m->args[1], m->data, m->length);

		if (failed)
			err = failed;
	}
	r.next = t->rank;
	for (__u32 i = 0; i < MARGAY_MAX_SENDS; i++) {
		if (job_rank(r.next, &r, sizeof r) != 0 || r.next == MARGAY_NO_RANK)
			break;
		struct margay_send to = {.rank = r.next, .handler = m->handler, .args = {m->args[0], m->args[1]}, .last = 1};
		long failed = message_send(&to, sizeof to, m->data, m->length);

		if (failed)
			err = failed;
	}
	return err;
}

#endif
