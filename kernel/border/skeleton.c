//go:build ignore

/* The skeleton judges messages between ranks on the interface of a node (package border). It takes
 * datagrams of mirrored channels (kernel/abi/mirror) apart, and asks the extensions in the slots
 * packet and message about each message in them. The chain of extensions is spliced in before it is
 * loaded.
 *
 * Every frame is hostile until it has the key of the pair of ranks that it names, and the other
 * rank's address as its source. A frame that is not understood passes unchanged: no rank takes it
 * whose channel has a seal.
 */
#include "margay_ext.h"

#define noinline __attribute__((noinline))

#define MAP_HASH MAP_TYPE(1)
#define MAP_FLAGS(number) int (*map_flags)[number]
#define BPF_F_NO_PREALLOC 1
#define BPF_F_MMAPABLE 1024

struct xdp_md {
	__u32 data;
	__u32 data_end;
	__u32 data_meta;
	__u32 ingress_ifindex;
	__u32 rx_queue_index;
	__u32 egress_ifindex;
};

#define XDP_PASS 2

static __s64 (*const csum_diff)(const __u32 *from, __u32 from_size, const __u32 *to, __u32 to_size, __u32 seed) = (void *)28;
static long (*const loop)(__u32 times, void *f, void *context, __u64 flags) = (void *)181;
static __u64 (*const frame_length)(struct xdp_md *frame) = (void *)188;
static long (*const load)(struct xdp_md *frame, __u32 offset, void *to, __u32 length) = (void *)189;
static long (*const store)(struct xdp_md *frame, __u32 offset, const void *from, __u32 length) = (void *)190;

/* Offsets in a frame without tags and IP options. */
#define ETHERNET 14
#define IP 20
#define UDP 8
#define TOTAL (ETHERNET + 2)
#define HEADER_CHECKSUM (ETHERNET + 10)
#define LENGTH (ETHERNET + IP + 4)
#define CHECKSUM (ETHERNET + IP + 6)
#define HEADER (ETHERNET + IP + UDP)
#define KEY (HEADER + 8)
#define DATA (HEADER + 40)

/* Of kernel/abi/mirror and kernel/abi/wire. */
#define MAGIC 0x4d4d
#define VERSION 1
#define FLAGS 1
#define MOST_DATA 8960
#define RING 131072
#define MESSAGE 1
#define PAD 2
#define RECORD 24
#define MOST_PAYLOAD (RING / 16 - RECORD)
#define PIECE 259
#define PIECE_ARGS 16
#define STOPPED 261
#define MOST_LONG (1 << 20)

#define RECORDS (RING / RECORD + 1) /* that begin in a ring */
#define MOST_RECORDS (MOST_DATA / RECORD + 1)
#define NOWHERE (~7ull) /* a position that no rank takes */
#define FAULTS 16	/* after so many an extension is not asked any more */
#define FORGED 16	/* after so many nothing of a peer is judged any more */
#define TRIES 256	/* to have the extensions, some microseconds */
#define SLOW_TIME 500000
#define SLOW_COST 4
#define TURNS 256
#define SHARE 2		/* extensions of a job get one part in so many of a processor */
#define DEBT 100000000	/* nanoseconds by which they may be ahead of that */
#define CHUNK 512 /* bytes whose sum Linux computes at once */
#define SOME 128  /* bytes of a digest at once: Linux verifies each word */

struct headers {
	__u16 unused;
	__u8 to[6];
	__u8 from[6];
	__u16 type;
	__u8 version;
	__u8 tos;
	__u16 total;
	__u16 identification;
	__u16 fragment;
	__u8 ttl;
	__u8 protocol;
	__u16 header_checksum;
	__u32 source;
	__u32 target;
	__u16 source_port;
	__u16 target_port;
	__u16 length;
	__u16 checksum;
};

struct mirror_header {
	__u16 magic;
	__u8 version;
	__u8 flags;
	__u32 number;
	__u64 key;
	__u64 offset;
	__u64 arrived;
	__u64 taken;
};

/* An end of mirrored channels on this node. */
struct end {
	__u32 number;
	__u16 port; /* as in a frame */
	__u16 unused;
};

/* The other end, and what the extensions have answered about messages from there. */
struct peer {
	__u64 key;  /* of this end */
	__u64 seal; /* changes it */
	__u32 address; /* as in a frame */
	__u16 port;    /* the same */
	__u16 forged;  /* datagrams with other bytes than those that were judged */
	__u32 job;
	__u32 source_node;
	__u32 source_rank;
	__u32 target_rank;
	__u64 judged;  /* position up to which messages were judged */
	__u64 trusted; /* the rank has the bytes before, which may not have been */
	__u32 total;  /* bytes of a long message that was stopped; 0: there is none */
	__u32 next;   /* offset of its next piece */
	__u32 digests[RECORDS]; /* of the records that were judged last; bit 0: it was stopped */
};

/* What the program and the node kernel share. */
struct common {
	__u32 busy; /* extensions run: 1 here, 2 the machine's in the node kernel */
	__u32 unused;
	__u64 budget;  /* nanoseconds that extensions may take for a frame, but for their last run */
	__u64 met;     /* frames that were not judged because they ran, or had run for too long */
	__u64 refused; /* frames of a peer that made no sense */
	__u64 judged;  /* frames that were judged */
	__u64 late;    /* of these, frames that took all of the budget */
	__u32 turns[TURNS]; /* the same as busy for the extensions of a job, by its number */
	__u64 due[TURNS];   /* when these have had no more than their share */
};

/* Of an extension. */
struct tally {
	__u64 begun; /* start of the last run */
	__u64 runs;
	__u64 time; /* of all runs, in nanoseconds */
	__u64 drops;
	__u64 faults;
	__u64 answer; /* of the last fault */
	__u32 handler;
	__u32 source;
	__u32 target;
	__u32 slow; /* a measure of slow runs: each adds SLOW_COST, each other one takes 1 back */
	__u32 off;  /* it was removed */
	__u32 late; /* runs with which a frame had taken all of the budget */
	__u32 own;  /* 1: a job's */
	__u32 unused;
};

struct { MAP_HASH; struct end *key; MAP_VALUE(struct peer); MAP_ENTRIES(16384); MAP_FLAGS(BPF_F_NO_PREALLOC); } peers SEC(".maps");
struct { MAP_ARRAY; MAP_VALUE(struct common); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } states SEC(".maps");
struct { MAP_ARRAY; MAP_VALUE(struct margay_packet); MAP_ENTRIES(1); } contexts SEC(".maps");
/* Each extension has such a map. The one here is a placeholder. */
struct { MAP_ARRAY; MAP_VALUE(struct tally); MAP_ENTRIES(1); MAP_FLAGS(BPF_F_MMAPABLE); } tallies SEC(".maps");

/* walk is the way through a frame. */
struct walk {
	struct xdp_md *frame;
	struct peer *peer;
	struct numbers *is;
};

/* numbers has the numbers of a walk. They are in a map, of whose contents Linux assumes nothing: on
 * the stack it would follow each way through the program for the numbers to which it leads. */
struct numbers {
	__u64 position; /* in the ring, of the record at `at` */
	__u32 at;	/* in the frame */
	__u32 end;
	__u32 sum; /* change of the checksum */
	__u32 bad;
	__u32 late;
	__u32 job;
	__u64 spent; /* nanoseconds in extensions */
	__u64 own;   /* of these, in the job's */
	__u64 budget;

	/* The message about which the extensions are asked. */
	__u32 payload; /* in the frame */
	__u32 length;  /* of it, as far as they see it */
	__u32 total;
	__u32 handler;
	__u64 args[2];

	/* The digest of a record. */
	__u64 v[4];
	__u32 from; /* in the frame */
	__u32 to;
};

struct { MAP_ARRAY; MAP_VALUE(struct numbers); MAP_ENTRIES(1); } walks SEC(".maps");

/* fill writes the context of the slot. */
static noinline int fill(struct walk *w, struct margay_packet *p)
{
	struct margay_message *m = &p->message;
	__u32 length = w->is->length;

	m->job = w->peer->job;
	m->source_node = w->peer->source_node;
	m->source_rank = w->peer->source_rank;
	m->target_rank = w->peer->target_rank;
	m->handler = w->is->handler;
	m->length = length;
	m->args[0] = w->is->args[0];
	m->args[1] = w->is->args[1];
	m->total = w->is->total;
	p->from_node = w->peer->source_node;
	p->hops = 0;
	__builtin_memset(m->data, 0, sizeof m->data);
	asm volatile("" : "+r"(length));
	if (length > 0 && length <= sizeof m->data)
		load(w->frame, w->is->payload, m->data, length);
	return 0;
}

/* begin begins a run of an extension, and reports whether it is asked. */
static noinline int begin(struct tally *k)
{
	if (k->off || k->faults >= FAULTS)
		return 0;
	k->begun = time_ns();
	return 1;
}

/* judge ends the run of an extension, and returns its verdict, if that is allowed. */
static noinline __u64 judge(struct walk *w, struct margay_packet *p, struct tally *k, __u64 answer)
{
	__u64 took = time_ns() - k->begun;
	__u64 left = w->is->budget - w->is->spent + w->is->own * (1 - k->own); /* the machine's do not answer for the job's */

	k->runs += 1;
	k->time += took;
	/* Without branches: Linux follows each one. */
	k->late += ((left - took) >> 63) - (left >> 63);
	w->is->spent += took;
	w->is->own += took * k->own;
	if (took > SLOW_TIME)
		k->slow += SLOW_COST;
	else if (k->slow)
		k->slow -= 1;
	if (answer == MARGAY_PASS)
		return MARGAY_PASS;
	if ((answer == MARGAY_CONSUME || answer == MARGAY_DROP) && w->is->handler < MARGAY_HANDLERS) {
		k->drops += answer == MARGAY_DROP;
		return answer;
	}
	k->faults += 1;
	k->answer = answer;
	k->handler = w->is->handler;
	k->source = w->peer->source_rank;
	k->target = w->peer->target_rank;
	fill(w, p); /* without what it has written there */
	return MARGAY_PASS;
}

/* handled begins the part of the chain with the extensions in slot message, and reports whether
 * they see the message: the libraries' they do not. */
static noinline int handled(struct walk *w, struct margay_packet *p)
{
	if (w->is->handler >= MARGAY_HANDLERS)
		return 0;
	fill(w, p); /* extensions in slot packet may have written there */
	return 1;
}

/* is_of reports whether extensions of a job see the message. */
static noinline int is_of(struct walk *w, __u32 job) { return w->is->job == job; }

/* chain asks the extensions in turn until one stops the message. The code here is a placeholder. */
static noinline __u64 chain(struct walk *w, struct margay_packet *p)
{
	__u32 first = 0;
	struct tally *k = map_lookup(&tallies, &first);

	if (!k || !is_of(w, p->hops) || !handled(w, p) || !begin(k))
		return MARGAY_PASS;
	return judge(w, p, k, p->hops);
}

/* asked returns the verdict about the message that w describes. */
static inline_always __u64 asked(struct walk *w)
{
	__u32 first = 0;
	struct margay_packet *p = map_lookup(&contexts, &first);

	if (!p)
		return MARGAY_PASS;
	fill(w, p);
	return chain(w, p);
}

/* piece is what arguments of a record for PIECE say (kernel/abi/wire, Piece). */
struct piece {
	__u32 total;
	__u32 offset;
	__u32 handler;
};

#define PASSES 0
#define STOPS 1
#define ASKS 2

/* describe_piece is describe for a piece. The first one decides about the others. */
static inline_always int describe_piece(struct walk *w, __u32 size)
{
	struct piece piece = { .total = w->is->args[0], .offset = w->is->args[0] >> 32, .handler = w->is->args[1] >> 32 & 0xffff };
	struct peer *p = w->peer;

	if (piece.offset > 0) {
		int stops = p->total > 0 && p->total == piece.total && p->next == piece.offset;

		p->next = piece.offset + size;
		p->total = stops && p->next < piece.total ? piece.total : 0;
		return stops ? STOPS : PASSES;
	}
	if (piece.handler >= MARGAY_HANDLERS || piece.total <= MARGAY_MESSAGE_MAX || piece.total > MOST_LONG || size <= PIECE_ARGS)
		return PASSES; /* nonsense, about which the rank complains */
	load(w->frame, w->is->at + RECORD, w->is->args, sizeof w->is->args);
	size -= PIECE_ARGS;
	w->is->payload = w->is->at + RECORD + PIECE_ARGS;
	w->is->length = size < MARGAY_MESSAGE_MAX - PIECE_ARGS ? size : MARGAY_MESSAGE_MAX - PIECE_ARGS;
	w->is->total = piece.total;
	w->is->handler = piece.handler;
	p->next = size;
	p->total = size < piece.total ? piece.total : 0; /* if it is stopped */
	return ASKS;
}

/* describe describes the message in the record at `at`, with a payload of size bytes, and returns
 * whether the extensions are asked about it. */
static noinline int describe(struct walk *w, __u32 handler, __u32 size)
{
	load(w->frame, w->is->at + 8, w->is->args, sizeof w->is->args);
	if (handler == PIECE)
		return describe_piece(w, size);
	w->is->payload = w->is->at + RECORD;
	w->is->length = size < MARGAY_MESSAGE_MAX ? size : MARGAY_MESSAGE_MAX;
	w->is->total = size;
	w->is->handler = handler;
	return ASKS;
}

/* stops returns whether a new message is stopped. */
static inline_always int stops(struct walk *w, __u32 handler, __u32 size)
{
	int answer = describe(w, handler, size);

	if (answer != ASKS)
		return answer;
	if (asked(w) != MARGAY_PASS)
		return STOPS;
	if (handler == PIECE)
		w->peer->total = 0;
	return PASSES;
}

/* place returns the place of the digest of a record. Records that are in the ring together have
 * different ones, since each takes RECORD bytes, but for the last one in the ring. */
static inline_always __u32 *place(struct peer *p, __u64 position)
{
	__u32 at = position % RING / RECORD;

	asm volatile("" : "+r"(at));
	return &p->digests[at < RECORDS ? at : 0];
}

#define ROTATE(x, bits) ((x) << (bits) | (x) >> (64 - (bits)))

static inline_always void sip_round(__u64 v[4])
{
	v[0] += v[1];
	v[1] = ROTATE(v[1], 13) ^ v[0];
	v[0] = ROTATE(v[0], 32);
	v[2] += v[3];
	v[3] = ROTATE(v[3], 16) ^ v[2];
	v[0] += v[3];
	v[3] = ROTATE(v[3], 21) ^ v[0];
	v[2] += v[1];
	v[1] = ROTATE(v[1], 17) ^ v[2];
	v[2] = ROTATE(v[2], 32);
}

/* absorb adds a word to a digest: SipHash-1-3, whose key the sender does not know. */
static inline_always void absorb(__u64 v[4], __u64 word)
{
	v[3] ^= word;
	sip_round(v);
	v[0] ^= word;
}

/* absorb_some adds some of the bytes from `from` to `to`. */
static long absorb_some(__u32 index, struct walk *w)
{
	__u32 first = 0, length = w->is->to - w->is->from;
	struct margay_packet *p = map_lookup(&contexts, &first);
	__u64 v[4];

	(void)index;
	if (!p || w->is->from >= w->is->to)
		return 1;
	if (length > SOME)
		length = SOME;
	asm volatile("" : "+r"(length));
	if (length == 0 || length > SOME || load(w->frame, w->is->from, p->message.data, length))
		return 1;
	w->is->from += length;
	__builtin_memcpy(v, w->is->v, sizeof v);
	for (__u32 i = 0; i < SOME / 8 && 8 * i < length; i++)
		absorb(v, ((__u64 *)p->message.data)[i]);
	__builtin_memcpy(w->is->v, v, sizeof v);
	return 0;
}

/* digest returns the digest of length bytes at `at`, which determine the length. */
static noinline __u32 digest(struct walk *w, __u32 length)
{
	__u64 key = w->peer->key, seal = w->peer->seal, *v = w->is->v;

	v[0] = key ^ 0x736f6d6570736575;
	v[1] = seal ^ 0x646f72616e646f6d;
	v[2] = key ^ 0x6c7967656e657261;
	v[3] = seal ^ 0x7465646279746573;
	absorb(v, w->is->position);
	w->is->from = w->is->at;
	w->is->to = w->is->at + length;
	loop((RECORD + MOST_PAYLOAD) / SOME + 1, absorb_some, w, 0);
	v[2] ^= 0xff;
	for (int i = 0; i < 3; i++)
		sip_round(v);
	return (v[0] ^ v[1] ^ v[2] ^ v[3]) & ~1u;
}

/* change writes 8 bytes over others of a frame. */
static inline_always void change(struct walk *w, __u32 at, __u64 from, __u64 to)
{
	__u64 both[2] = { from, to };

	w->is->sum = csum_diff((__u32 *)&both[0], 8, (__u32 *)&both[1], 8, w->is->sum);
	store(w->frame, at, &both[1], 8);
}

/* crosses reports whether a position is within a record. */
static inline_always int crosses(__u64 record, __u32 length, __u64 position)
{
	return record < position && record + length > position;
}

/* step judges one record, and returns 1 after the last one. One that was judged before must be the
 * same. */
static long step(__u32 index, struct walk *w)
{
	struct peer *p = w->peer;
	__u32 left, length, size, kind, handler, is, *was = place(p, w->is->position);
	__u64 head = 0;

	(void)index;
	if (w->is->at >= w->is->end || w->is->at > DATA + MOST_DATA)
		return 1;
	if (w->is->position >= p->judged && w->is->spent > w->is->budget)
		return 1;
	w->is->bad = 1;
	left = w->is->end - w->is->at;
	if (load(w->frame, w->is->at, &head, sizeof head))
		return 1;
	size = head;
	kind = head >> 32 & 0xffff;
	handler = head >> 48;
	length = (RECORD + size + 7) & ~7u;
	if (kind == PAD)
		length = RING - w->is->position % RING;
	else if (kind != MESSAGE || size > MOST_PAYLOAD || w->is->position % RING + length > RING)
		return 1;
	if (length > left || crosses(w->is->position, length, p->judged) || crosses(w->is->position, length, p->trusted))
		return 1;
	if (w->is->position >= p->trusted) {
		is = digest(w, kind == PAD ? sizeof head : length);
		if (w->is->position >= p->judged) {
			*was = is | (kind == MESSAGE && stops(w, handler, size));
			p->judged = w->is->position + length;
		} else if ((*was & ~1u) != is) {
			p->forged += 1;
			return 1;
		}
		if (*was & 1)
			change(w, w->is->at, head, (head & ~(0xffffull << 48)) | (__u64)STOPPED << 48);
	}
	w->is->bad = 0;
	w->is->at += length;
	w->is->position += length;
	return w->is->at >= w->is->end;
}

/* folded returns the sum of the halves of a sum. */
static inline_always __u16 folded(__u32 sum)
{
	sum = (sum & 0xffff) + (sum >> 16);
	return (sum & 0xffff) + (sum >> 16);
}

/* cut ends a datagram behind the messages that were judged, and takes its checksum away. Linux
 * drops bytes behind a packet. */
static inline_always void cut(struct walk *w, struct headers *h)
{
	__u32 less = w->is->end - w->is->at;
	__u16 total = __builtin_bswap16(__builtin_bswap16(h->total) - less);
	__u16 checksum = ~folded((__u16)~h->header_checksum + (__u16)~h->total + (__u32)total);
	__u16 udp[2] = { __builtin_bswap16(__builtin_bswap16(h->length) - less) };

	store(w->frame, TOTAL, &total, sizeof total);
	store(w->frame, HEADER_CHECKSUM, &checksum, sizeof checksum);
	store(w->frame, LENGTH, udp, sizeof udp);
	h->checksum = 0;
}

/* walk_through judges the data of a datagram, and reports whether they make sense. If the
 * extensions have no time for all of them, the rank takes those that were judged, and the others
 * when they are sent again. */
static inline_always int walk_through(struct walk *w, struct headers *h, struct mirror_header *m)
{
	if (w->is->end == DATA)
		return 1;
	if (m->offset % 8 || m->offset > w->peer->judged || w->peer->judged - m->offset > RING) {
		change(w, HEADER + 16, m->offset, NOWHERE);
		return 1;
	}
	w->is->position = m->offset;
	loop(MOST_RECORDS, step, w, 0);
	if (w->is->bad)
		return 0;
	if (w->is->at < w->is->end) {
		w->is->late = 1;
		cut(w, h);
	}
	return 1;
}

/* seal_up changes the key of a datagram, and its checksum. */
static inline_always void seal_up(struct walk *w, struct headers *h, struct mirror_header *m)
{
	__u32 sum;
	__u16 checksum;

	change(w, KEY, m->key, m->key ^ w->peer->seal);
	if (!h->checksum)
		return;
	sum = (__u16)~h->checksum;
	sum += (w->is->sum & 0xffff) + (w->is->sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	checksum = ~sum;
	if (!checksum)
		checksum = 0xffff;
	store(w->frame, CHECKSUM, &checksum, sizeof checksum);
}

/* adding is the way through the bytes of a sum. */
struct adding {
	struct xdp_md *frame;
	__u32 at, end; /* in the frame */
	__u32 sum;
};

static long add(__u32 index, struct adding *a)
{
	__u32 first = 0, length = a->end - a->at;
	struct margay_packet *p = map_lookup(&contexts, &first);

	(void)index;
	if (!p || a->at >= a->end)
		return 1;
	if (length > CHUNK)
		length = CHUNK;
	asm volatile("" : "+r"(length));
	if (length == 0 || length > CHUNK || load(a->frame, a->at, p->message.data, length))
		return 1;
	a->sum = csum_diff(0, 0, (__u32 *)p->message.data, length, a->sum);
	a->at += length;
	return 0;
}

/* sound reports whether the checksum of a datagram is right. One that an interface is to complete
 * is the sum of the pseudo header: Linux has not sent it over a wire. */
static noinline int sound(struct xdp_md *frame, struct headers *h, __u32 end)
{
	__u32 pseudo[3] = { h->source, h->target, 0x1100u | (__u32)h->length << 16 };
	struct adding a = { .frame = frame, .at = ETHERNET + IP, .end = end };

	if (!h->checksum)
		return 1;
	a.sum = csum_diff(0, 0, pseudo, sizeof pseudo, 0);
	if (folded(a.sum) == h->checksum)
		return 1;
	loop((UDP + KEY + MOST_DATA) / CHUNK + 1, add, &a, 0);
	return folded(a.sum) == 0xffff;
}

/* take reports whether extensions are this frame's, until it gives them back. It waits a moment for
 * a frame on another core. It is global: Linux verifies the tries once, and not for each caller. */
noinline int take(__u32 *busy)
{
	for (int i = 0; busy && i < TRIES; i++)
		if (!__sync_val_compare_and_swap(busy, 0, 1))
			return 1;
	return 0;
}

/* give_back ends take. */
static inline_always void give_back(__u32 *busy) { __sync_lock_test_and_set(busy, 0); }

/* judge_frame judges a frame of a peer. */
static inline_always void judge_frame(struct walk *w, struct headers *h, struct mirror_header *m, struct common *s, __u32 end)
{
	__u32 at = w->peer->job % TURNS;
	__u32 *turn = &s->turns[at];
	__u64 *due = &s->due[at];
	__u64 now = time_ns();

	if (w->peer->forged >= FORGED) {
		s->refused += 1;
		return;
	}
	if (*due > now + DEBT || !take(turn)) {
		__sync_fetch_and_add(&s->met, 1);
		return;
	}
	*w->is = (struct numbers){ .at = DATA, .end = end, .job = w->peer->job, .budget = s->budget };
	if (sound(w->frame, h, end) && walk_through(w, h, m)) {
		s->judged += 1;
		s->late += w->is->late;
		seal_up(w, h, m);
	} else {
		s->refused += 1;
	}
	*due = (*due > now ? *due : now) + SHARE * w->is->own;
	give_back(turn);
}

SEC("xdp.frags") int border(struct xdp_md *frame)
{
	struct headers h = {};
	struct mirror_header m;
	struct walk w = { .frame = frame };
	struct end end = {};
	struct common *s;
	__u32 total, length, first = 0;

	if (load(frame, 0, &h.to, HEADER))
		return XDP_PASS;
	total = __builtin_bswap16(h.total);
	length = __builtin_bswap16(h.length);
	if (h.type != __builtin_bswap16(0x0800) || h.version != 0x45 || h.protocol != 17 || h.fragment & __builtin_bswap16(0x3fff) ||
	    total != IP + length || length < UDP + sizeof m || length % 8 || length > UDP + sizeof m + MOST_DATA || ETHERNET + total > frame_length(frame))
		return XDP_PASS;
	if (load(frame, HEADER, &m, sizeof m) || m.magic != MAGIC || m.version != VERSION || m.flags & ~FLAGS)
		return XDP_PASS;
	end.number = m.number;
	end.port = h.target_port;
	s = map_lookup(&states, &first);
	if (!s)
		return XDP_PASS;
	if (!take(&s->busy)) {
		__sync_fetch_and_add(&s->met, 1);
		return XDP_PASS;
	}
	w.peer = map_lookup(&peers, &end); /* now that the node kernel does not replace it */
	w.is = map_lookup(&walks, &first);
	if (w.is && w.peer && w.peer->key == m.key && w.peer->address == h.source && w.peer->port == h.source_port)
		judge_frame(&w, &h, &m, s, ETHERNET + total);
	give_back(&s->busy);
	return XDP_PASS;
}

char _license[] SEC("license") = "Dual BSD/GPL";
