/* The C side of the application interface. A test compares its layouts with the Go package
 * kernel/abi/wire. */
#define _GNU_SOURCE
#include "margay.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "barrier.h"
#include "channel.h"
#include "far.h"
#include "internal.h"
#include "pace.h"
#include "piece.h"
#include "serve.h"
#include "wire.h"

/* Functions that other files of the library use (internal.h). */
#define fail margay_in_fail
#define no_job margay_in_no_job
#define now_ns margay_in_now
#define mask margay_in_mask
#define unmask margay_in_unmask
#define wait_until margay_in_wait

/* The signal of upcalls is never lost, is ignored by default, and is hardly used otherwise. */
#define UPCALL_SIGNAL SIGURG
#define UPCALL_STACK (256 << 10) /* bytes */
#define DATAGRAMS_EACH 64        /* that a poll takes, so that strangers cannot keep it busy */
#define ACKNOWLEDGE_EACH 8       /* messages between two looks whether an acknowledgement is late */
#define UPCALL_DEPTH 8           /* handlers that run at a time, each in the middle of another */
#define FAMILIAR 256             /* datagrams from the one other end after which the socket is connected to it */
#define TRAIN_BYTES 60000        /* of datagrams that are sent at a time, without headers */
#define CALM_MS 100              /* that a message waits at most until it can take a mirrored channel */
#define HASTY 64                 /* messages behind one that has waited in vain that do not wait */
#define NOT_JOINED "margay_init has not been called"
#define BATCH (WIRE_CHANNEL_RING / 2) /* bytes of a long message that are written before they are sent */

/* The area before margay_init: each field of its header is -1, so the functions that return the
 * place of this process need no check. */
static uint32_t nowhere[WIRE_MEETS / 4 + 1] = {[0 ... WIRE_MEETS / 4] = -1};

static struct {
	int socket; /* for requests */
	int doorbell;
	int upcall_doorbell;
	int rung; /* the doorbell's bytes have not been read yet */
	int finalized;
	int forked;    /* this process is a child of the one that has joined */
	int abandoned; /* a barrier that this rank had entered */
	int meets;     /* this rank is in a barrier */
	char *area;
	uint32_t call; /* number of the last request */
	uint64_t tail; /* of the send ring: this side's own position */
	uint64_t head; /* of the receive ring: likewise */

	/* The other ranks of this node. */
	char *board;
	int peer_doorbell;
	int *peer_doorbells;           /* by local rank, -1: not fetched */
	struct channel **to;      /* by rank */
	struct channel **from;    /* by rank */
	struct channel **sources; /* the entries of from, in the order of fetching */
	uint32_t source_count;
	uint32_t turn;     /* the one of sources to look at first */
	uint32_t known;    /* channels that were fetched */
	int datagrams;     /* socket of the mirrored channels, -1: there are none */
	const struct sockaddr_in *connected; /* the one end's address to which the socket is connected, or NULL */
	unsigned familiar; /* datagrams of mirrored channels since the last request by datagrams */
	struct far **fars; /* by rank */
	struct far **ends; /* the entries of fars, in the order of fetching */
	struct far **numbers; /* the same by the number of this end, NULL: it was not fetched */
	uint32_t end_count;
	unsigned answered; /* answers about windows that have come */
	int stalled; /* a message waits for others that have not arrived */
	int handled; /* records since a call that waits has looked for datagrams */
	struct assembler assembler;
	unsigned parts;   /* of long messages that have come, but for the last part of each, and stopped messages */
	const struct long_message *sending; /* NULL: there is none */
	uint16_t numbered;		    /* the number of the last one */
	unsigned mirrored; /* messages handled of mirrored channels */
	int in_vain; /* calls of margay_poll since one has handled a message */

	/* Barriers. */
	uint64_t barriers; /* that were tried on the board */
	int arrived;       /* local ranks before this one are known to have entered the last of them */
	struct turns turns;
	struct exchange exchange;
	/* Positions of the send ring behind messages that passed the node kernel, but for notes: the
	 * last one, the last one to another node, and that before which all had arrived at a barrier of
	 * the node kernels. */
	uint64_t spoken, strayed, cleared;

	/* State of upcalls, which may interrupt at any point. */
	volatile uint64_t upcall_head; /* of the upcall ring: likewise */
	volatile int upcalls;          /* they may interrupt */
	volatile int masked;           /* but not now */
	volatile int missed;           /* one wanted to */
	volatile int running;          /* handlers, each called while the one before it runs */
	volatile int depth;            /* handlers of the signal, likewise */
	volatile int unblocked;        /* the innermost handler has let the signal come */
	struct sigaction action;       /* of UPCALL_SIGNAL, as it was before */

	struct {
		margay_handler f;
		void *data;
	} handlers[MARGAY_MAX_HANDLERS];
	void *fixed[64]; /* regions mapped at their fixed address; a job has at most this many */
	size_t fixed_count;
	char error[512];
} self = {.socket = -1, .doorbell = -1, .upcall_doorbell = -1, .peer_doorbell = -1, .datagrams = -1, .area = (char *)nowhere, .error = NOT_JOINED};

int margay_in_fail(const char *format, ...)
{
	va_list args;
	if (self.depth > 0)
		return -1; /* printf is not safe in a signal handler */
	va_start(args, format);
	vsnprintf(self.error, sizeof self.error, format, args);
	va_end(args);
	return -1;
}

int margay_in_no_job(void)
{
	if (self.finalized)
		return fail("the job is finalized");
	if (self.forked)
		return fail("a forked process does not have its parent's place in the job");
	return self.area != (char *)nowhere ? 0 : fail(NOT_JOINED);
}

const char *margay_error(void) { return self.error; }

static uint32_t header(size_t offset) { return *(uint32_t *)(self.area + offset); }

static _Atomic uint64_t *word64(size_t offset) { return (_Atomic uint64_t *)(self.area + offset); }

static _Atomic uint32_t *word32(size_t offset) { return (_Atomic uint32_t *)(self.area + offset); }

int margay_job(void) { return header(WIRE_JOB); }
int margay_rank(void) { return header(WIRE_RANK); }
int margay_size(void) { return header(WIRE_SIZE); }
int margay_node(void) { return header(WIRE_NODE); }
int margay_nodes(void) { return header(WIRE_NODES); }
int margay_local_rank(void) { return header(WIRE_LOCAL_RANK); }
int margay_local_size(void) { return header(WIRE_LOCAL_SIZE); }

int margay_node_of(int rank)
{
	if (self.area == (char *)nowhere)
		return fail(NOT_JOINED);
	if (rank < 0 || rank >= margay_size())
		return fail("the job has no rank %d", rank);
	return header(header(WIRE_TABLE) + 4 * (size_t)rank);
}

/* ---- Requests ---- */

/* send_request sends a request, with a file unless that is -1. */
static int send_request(const void *request, size_t size, int file)
{
	struct iovec data = {(void *)request, size};
	union {
		char space[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1};
	if (file >= 0) {
		memset(&control, 0, sizeof control);
		message.msg_control = control.space;
		message.msg_controllen = sizeof control.space;
		struct cmsghdr *c = CMSG_FIRSTHDR(&message);
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(int));
		memcpy(CMSG_DATA(c), &file, sizeof file);
	}
	ssize_t n;
	do
		n = sendmsg(self.socket, &message, MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n == (ssize_t)size ? 0 : fail("ask the node kernel: %s", strerror(errno));
}

/* The descriptors of a reply. */
#define MAX_FILES 5

/* receive_reply waits for the reply and stores its descriptors in files, -1 for none. */
static int receive_reply(struct wire_reply *reply, int files[MAX_FILES])
{
	struct iovec data = {reply, sizeof *reply};
	union {
		char space[CMSG_SPACE(MAX_FILES * sizeof(int))];
		struct cmsghdr align;
	} control;
	struct msghdr message = {.msg_iov = &data, .msg_iovlen = 1, .msg_control = control.space, .msg_controllen = sizeof control.space};
	ssize_t n;
	do
		n = recvmsg(self.socket, &message, MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n != sizeof *reply)
		return fail("the node kernel's answer: %s", n < 0 ? strerror(errno) : "it is no reply");
	for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
		if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
			memcpy(files, CMSG_DATA(c), c->cmsg_len - CMSG_LEN(0));
	}
	return 0;
}

static void no_files(int files[MAX_FILES])
{
	for (int i = 0; i < MAX_FILES; i++)
		files[i] = -1;
}

static void close_files(int files[MAX_FILES])
{
	for (int i = 0; i < MAX_FILES; i++)
		if (files[i] >= 0)
			close(files[i]);
}

/* ask makes a request. The descriptors of the reply go to files, which may be NULL. An idempotent
 * request is repeated if the node kernel was restarted before it answered. */
static int ask(void *request, size_t size, int file, struct wire_reply *reply, int files[MAX_FILES])
{
	struct wire_request *r = request;
	int none[MAX_FILES];
	int *got = files ? files : none;
	if (self.socket < 0 || self.finalized)
		return no_job();
	do {
		r->call = ++self.call;
		no_files(got);
		if (send_request(request, size, file) != 0 || receive_reply(reply, got) != 0)
			return -1;
		/* Any other reply is a duplicate from the node kernel. */
		while (reply->call != r->call) {
			close_files(got);
			no_files(got);
			if (receive_reply(reply, got) != 0)
				return -1;
		}
	} while (reply->status == WIRE_AGAIN && r->op != WIRE_INSERT && r->op != WIRE_REMOVE);
	if (reply->status != WIRE_OK) {
		close_files(got);
		return fail("%.*s", (int)sizeof reply->text, reply->text);
	}
	if (!files)
		close_files(got);
	return 0;
}

static int put_name(char *to, const char *name)
{
	if (strlen(name) >= WIRE_MAX_NAME)
		return fail("the name %s is too long", name);
	strcpy(to, name);
	return 0;
}

/* map_file maps the whole of a file of shared memory. */
static char *map_file(int file)
{
	struct stat info;
	void *memory = MAP_FAILED;
	if (fstat(file, &info) == 0)
		memory = mmap(NULL, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
	if (memory != MAP_FAILED)
		return memory;
	fail("map shared memory: %s", strerror(errno));
	return NULL;
}

/* meet_neighbours makes the tables of the other ranks of this node. */
static int meet_neighbours(void)
{
	self.to = calloc(margay_size(), sizeof *self.to);
	self.from = calloc(margay_size(), sizeof *self.from);
	self.sources = calloc(margay_size(), sizeof *self.sources);
	self.fars = calloc(margay_size(), sizeof *self.fars);
	self.ends = calloc(margay_size(), sizeof *self.ends);
	self.numbers = calloc(margay_size(), sizeof *self.numbers);
	self.peer_doorbells = calloc(margay_local_size(), sizeof *self.peer_doorbells);
	if (!self.to || !self.from || !self.sources || !self.fars || !self.ends || !self.numbers || !self.peer_doorbells)
		return fail("no memory for the tables of %d ranks", margay_size());
	for (int i = 0; i < margay_local_size(); i++)
		self.peer_doorbells[i] = -1;
	return 0;
}

/* prepare_barriers prepares the rank for barriers. */
static int prepare_barriers(void)
{
	struct exchange *e = &self.exchange;
	self.turns.left = margay_nodes() > 1 ? WIRE_UNTRIED : 0;
	if (margay_nodes() == 1 || !header(WIRE_MEETS) || margay_local_rank() != 0)
		return 0;
	int *leaders = calloc(margay_nodes(), sizeof *leaders);
	if (!leaders)
		return fail("no memory for the leaders of %d nodes", margay_nodes());
	for (int rank = 0; rank < margay_size() && e->count < margay_nodes(); rank++) {
		int known = 0;
		for (int place = 0; place < e->count && !known; place++)
			known = margay_node_of(leaders[place]) == margay_node_of(rank);
		if (known)
			continue;
		if (rank == margay_rank())
			e->place = e->count;
		leaders[e->count++] = rank;
	}
	e->leaders = leaders;
	exchange_open(e);
	return 0;
}

static void forked(void) { self.forked = 1; }

/* join does what margay_init does, but leaves the area when it fails. */
static int join(void)
{
	const char *text = getenv("MARGAY_FD");
	struct stat info;
	if (!text || fstat(atoi(text), &info) != 0 || !S_ISSOCK(info.st_mode))
		return fail("this process is not a rank of a job: start it with margay run");
	self.socket = atoi(text);
	fcntl(self.socket, F_SETFD, FD_CLOEXEC);
	struct wire_request request = {.op = WIRE_HELLO, .value = WIRE_VERSION};
	struct wire_reply reply;
	int files[MAX_FILES];
	if (ask(&request, sizeof request, -1, &reply, files) != 0)
		return -1;
	if (files[4] < 0)
		return fail("the node kernel sent no area");
	char *area = map_file(files[0]), *board = map_file(files[3]);
	close(files[0]);
	close(files[3]);
	if (!area || !board)
		return -1;
	self.area = area;
	self.board = board;
	self.doorbell = files[1];
	self.upcall_doorbell = files[2];
	self.peer_doorbell = files[4];
	if (header(WIRE_OFF_MAGIC) != WIRE_MAGIC || header(WIRE_OFF_VERSION) != WIRE_VERSION || header(WIRE_RING_BYTES) != WIRE_RING_SIZE)
		return fail("the node kernel's area is not of version %d", WIRE_VERSION);
	if (atomic_exchange(word32(WIRE_JOINED), 1))
		return fail("another process of this rank has joined the job: one process of each rank can, once");
	pthread_atfork(NULL, NULL, forked);
	self.tail = atomic_load(word64(WIRE_SEND_CONTROL + WIRE_TAIL));
	self.head = atomic_load(word64(WIRE_RECEIVE_CONTROL + WIRE_HEAD));
	self.upcall_head = atomic_load(word64(WIRE_UPCALL_CONTROL + WIRE_HEAD));
	return meet_neighbours() != 0 ? -1 : prepare_barriers();
}

int margay_init(void)
{
	if (self.area != (char *)nowhere)
		return fail("margay_init has been called before");
	if (join() != 0) {
		self.area = (char *)nowhere;
		return -1;
	}
	self.error[0] = 0;
	return 0;
}

/* is_mapped reports whether a region has been mapped at its fixed address. */
static int is_mapped(const void *at)
{
	for (size_t i = 0; i < self.fixed_count; i++)
		if (self.fixed[i] == at)
			return 1;
	return 0;
}

/* map_region maps a region anywhere, or at the address that the node kernel assigns to all ranks.
 * */
static void *map_region(const char *name, size_t size, size_t *actual, int fixed)
{
	struct wire_request request = {.op = WIRE_REGION, .value = size};
	struct wire_reply reply;
	int files[MAX_FILES];
	if (put_name(request.name, name) != 0 || ask(&request, sizeof request, -1, &reply, files) != 0)
		return NULL;
	void *at = fixed ? (void *)(uintptr_t)reply.values[3] : NULL;
	void *memory = at;
	if (!fixed || !is_mapped(at))
		memory = mmap(at, reply.values[0], PROT_READ | PROT_WRITE, MAP_SHARED | (fixed ? MAP_FIXED_NOREPLACE : 0), files[0], 0);
	close_files(files);
	if (memory == MAP_FAILED) {
		fail("map region %s at %p: %s", name, at, errno == EEXIST ? "this process has something else there" : strerror(errno));
		return NULL;
	}
	if (fixed && !is_mapped(at) && self.fixed_count < sizeof self.fixed / sizeof self.fixed[0])
		self.fixed[self.fixed_count++] = at;
	if (actual)
		*actual = reply.values[0];
	return memory;
}

void *margay_region(const char *name, size_t size, size_t *actual) { return map_region(name, size, actual, 0); }

void *margay_fixed_region(const char *name, size_t size, size_t *actual) { return map_region(name, size, actual, 1); }

/* memory_file makes a file in memory. */
static int memory_file(const void *content, size_t size)
{
	int file = memfd_create("object", MFD_CLOEXEC);
	if (file < 0)
		return fail("make file in memory: %s", strerror(errno));
	if (pwrite(file, content, size, 0) != (ssize_t)size) {
		fail("write file in memory: %s", strerror(errno));
		close(file);
		return -1;
	}
	return file;
}

int margay_insert(const char *name, const char *slot, const void *object, size_t size, const struct margay_setting *settings, int count)
{
	struct {
		struct wire_request head;
		struct wire_setting settings[WIRE_MAX_SETTINGS];
	} request = {.head = {.op = WIRE_INSERT, .settings = count}};
	struct wire_reply reply;
	if (count < 0 || count > WIRE_MAX_SETTINGS)
		return fail("%d settings, at most %d are allowed", count, WIRE_MAX_SETTINGS);
	if (put_name(request.head.name, name ? name : "") != 0 || put_name(request.head.where, slot ? slot : "") != 0)
		return -1;
	for (int i = 0; i < count; i++) {
		request.settings[i].value = settings[i].value;
		request.settings[i].kind = settings[i].entries ? WIRE_SET_ENTRIES : WIRE_SET_CONSTANT;
		if (put_name(request.settings[i].name, settings[i].name) != 0)
			return -1;
	}
	int file = memory_file(object, size);
	if (file < 0)
		return -1;
	int err = ask(&request, sizeof request.head + count * sizeof request.settings[0], file, &reply, NULL);
	close(file);
	return err ? err : (int)reply.handle;
}

int margay_remove(int extension)
{
	struct wire_request request = {.op = WIRE_REMOVE, .handle = extension};
	struct wire_reply reply;
	return ask(&request, sizeof request, -1, &reply, NULL);
}

int margay_stats(int extension, struct margay_stats *stats)
{
	struct wire_request request = {.op = WIRE_STATS, .handle = extension};
	struct wire_reply reply;
	if (ask(&request, sizeof request, -1, &reply, NULL) != 0)
		return -1;
	stats->runs = reply.values[0];
	stats->instructions = reply.values[1];
	stats->faults = reply.values[2];
	stats->nanoseconds = reply.values[3];
	memcpy(stats->last_fault, reply.text, sizeof stats->last_fault);
	stats->last_fault[sizeof stats->last_fault - 1] = 0;
	return 0;
}

int margay_state(int extension, const char *map, struct margay_state *state)
{
	struct wire_request request = {.op = WIRE_STATE, .handle = extension};
	struct wire_reply reply;
	int files[MAX_FILES];
	if (put_name(request.name, map) != 0 || ask(&request, sizeof request, -1, &reply, files) != 0)
		return -1;
	state->size = reply.values[0];
	state->entries = reply.values[1];
	state->stride = reply.values[2];
	state->bytes = mmap(NULL, state->size, PROT_READ | PROT_WRITE, MAP_SHARED, files[0], 0);
	close_files(files);
	return state->bytes == MAP_FAILED ? fail("map %s: %s", map, strerror(errno)) : 0;
}

/* ---- Messages ---- */

/* ring wakes the node kernel. A full doorbell needs no further byte. */
static void ring(void)
{
	char one = 1;
	if (send(self.doorbell, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
		return;
}

static size_t record_length(size_t payload) { return (sizeof(struct wire_record) + payload + 7) & ~(size_t)7; }

/* send_room returns how many bytes of the send ring are free. */
static size_t send_room(void)
{
	return WIRE_RING_SIZE - (self.tail - atomic_load(word64(WIRE_SEND_CONTROL + WIRE_HEAD)));
}

/* mask masks upcalls and returns the previous state, for unmask. It keeps them out of this
 * library's own work. */
int mask(void)
{
	int was = self.masked;
	self.masked = 1;
	atomic_signal_fence(memory_order_seq_cst);
	return was;
}

static void interruptible(void);

/* unmask restores the state before mask, and handles an upcall that arrived since. */
void unmask(int was)
{
	atomic_signal_fence(memory_order_seq_cst);
	self.masked = was;
	if (!was && self.missed)
		interruptible();
}

/* put puts a message into the send ring and reports whether there was room. */
static int put(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	struct channel *c = self.to[rank];
	char *ring_bytes = self.area + header(WIRE_SEND);
	size_t at = self.tail & (WIRE_RING_SIZE - 1), need = record_length(length), pad = 0;
	if (at + need > WIRE_RING_SIZE)
		pad = WIRE_RING_SIZE - at;
	if (pad + need > send_room())
		return 0;
	if (pad) {
		struct wire_record *r = (struct wire_record *)(ring_bytes + at);
		r->length = pad;
		r->kind = WIRE_PAD;
		at = 0;
	}
	struct wire_record *r = (struct wire_record *)(ring_bytes + at);
	*r = (struct wire_record){.length = need, .kind = WIRE_MESSAGE, .handler = handler, .peer = rank, .size = length,
				  .after = c ? channel_mark(c) : 0, .args = {arg0, arg1}};
	if (length)
		memcpy(r + 1, payload, length);
	self.tail += pad + need;
	if (c) {
		c->kernel = self.tail;
		c->through = 1;
	}
	if (handler != WIRE_HANDLER_BARRIER) {
		self.spoken = self.tail;
		if (margay_node_of(rank) != margay_node())
			self.strayed = self.tail;
	}
	atomic_store(word64(WIRE_SEND_CONTROL + WIRE_TAIL), self.tail);
	if (atomic_load(word32(WIRE_SEND_CONTROL + WIRE_CONSUMER_WAITING)))
		ring();
	return 1;
}

/* ---- Channels ---- */

static void handle(const struct margay_am *message);
__attribute__((noreturn)) static void die(const char *format, int a, int b, int c);

/* may_pass_by reports whether messages to the rank of a channel may pass no node kernel when the
 * messages before are settled. */
static int may_pass_by(struct channel *c)
{
	return (atomic_load(word32(WIRE_PATH)) & (c->local < 0 ? WIRE_FAR : WIRE_DIRECT)) && !atomic_load(channel_word(c, WIRE_CHANNEL_CLOSED));
}

/* takes_channel reports whether a message to a handler takes a channel, which may be NULL. Node
 * kernels carry out requests about windows of other nodes (window.c). Notes of barriers take any
 * channel. */
static int takes_channel(struct channel *c, int handler)
{
	if (c && handler == WIRE_HANDLER_BARRIER)
		return atomic_load(channel_word(c, WIRE_CHANNEL_CLOSED)) != WIRE_CHANNEL_ENDED;
	if (!c || (c->local < 0 && handler == WIRE_HANDLER_REMOTE) || !may_pass_by(c))
		return 0;
	_Atomic uint64_t *settled = c->local < 0 ? channel_word64(c, WIRE_CHANNEL_SETTLED) : word64(WIRE_SETTLED);
	if (c->through && atomic_load(settled) < c->kernel)
		return 0;
	c->through = c->hasty = 0;
	return 1;
}

static _Atomic uint32_t *asleep(int local) { return (_Atomic uint32_t *)(self.board + WIRE_BOARD_RANK * local + WIRE_BOARD_ASLEEP); }

/* wake_local wakes a rank of this node if it sleeps and is not being woken. */
static void wake_local(int local)
{
	uint64_t one = 1;
	if (!atomic_load(asleep(local)) || !atomic_exchange(asleep(local), 0))
		return;
	/* It fails when the doorbell was rung often enough. */
	if (write(self.peer_doorbells[local], &one, sizeof one) < 0)
		return;
}

struct direct *margay_in_direct(int rank, int *allowed)
{
	struct far *f = self.fars[rank];
	if (!f || !f->direct.address.sin_port)
		return NULL;
	*allowed = may_pass_by(&f->out);
	return &f->direct;
}

/* send_train sends n parts as datagrams of length bytes, but the last may be shorter. It reports
 * whether Linux sends trains on this way. */
static int send_train(struct iovec *parts, int n, uint16_t length, struct sockaddr_in *to)
{
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof length)];
	} control = {.header = {.cmsg_level = IPPROTO_UDP, .cmsg_type = UDP_SEGMENT, .cmsg_len = CMSG_LEN(sizeof length)}};
	struct msghdr m = {.msg_name = to, .msg_namelen = sizeof *to, .msg_iov = parts, .msg_iovlen = n, .msg_control = &control,
			   .msg_controllen = sizeof control};
	memcpy(CMSG_DATA(&control.header), &length, sizeof length);
	if (sendmsg(self.datagrams, &m, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return 1;
	return errno != EINVAL && errno != EIO && errno != EMSGSIZE && errno != EOPNOTSUPP && errno != ENOPROTOOPT;
}

/* disconnect makes the socket receive datagrams from everywhere. */
static void disconnect(void)
{
	struct sockaddr none = {.sa_family = AF_UNSPEC};
	self.familiar = 0;
	if (self.connected && connect(self.datagrams, &none, sizeof none) == 0)
		self.connected = NULL;
}

/* is_shared reports whether the socket serves other ends, too, which this rank may not know yet. */
static int is_shared(const struct far *f) { return atomic_load(channel_word(&f->out, WIRE_CHANNEL_SHARED)) != 0; }

/* acquaint connects the socket to the only rank with which this one has exchanged datagrams for a
 * while. Linux then looks up no route for a datagram, neither on its way out nor on its way in. */
static void acquaint(void)
{
	struct far *f = self.ends[0];
	if (self.end_count > 1 || self.connected || self.familiar < FAMILIAR || !direct_idle(&f->direct))
		return;
	self.familiar = 0;
	if (is_shared(f) || connect(self.datagrams, (const struct sockaddr *)&f->address, sizeof f->address) != 0)
		return;
	self.connected = &f->address;
	if (is_shared(f)) /* the node kernel may have disconnected it before */
		disconnect();
}

/* send_one sends a datagram. */
static void send_one(const void *b, size_t n, const struct sockaddr_in *to)
{
	const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
	if (to == self.connected) {
		if (send(self.datagrams, b, n, flags) >= 0)
			return;
		if (errno == EDESTADDRREQ) /* the node kernel has disconnected it */
			self.connected = NULL;
	}
	if (sendto(self.datagrams, b, n, flags, (const struct sockaddr *)to, sizeof *to) < 0)
		return;
}

/* send_datagrams sends n datagrams as send_train does, alone if need be. Each is so many of the
 * parts. Datagrams that Linux does not take are lost, like any others. */
static void send_datagrams(struct iovec *parts, int n, int each, struct sockaddr_in *to)
{
	static int alone; /* Linux refuses trains */
	static char b[MIRROR_MOST];
	size_t length = 0;
	for (int i = 0; i < each; i++)
		length += parts[i].iov_len;
	if (n > 1 && !alone && send_train(parts, n * each, length, to))
		return;
	alone |= n > 1;
	for (; n > 0; n--, parts += each) {
		length = 0;
		for (int i = 0; i < each; length += parts[i++].iov_len)
			memcpy(b + length, parts[i].iov_base, parts[i].iov_len);
		send_one(b, length, to);
	}
}

/* transmit sends the datagrams of an end that are due, in trains. */
static void transmit(struct far *f)
{
	static struct mirror_header heads[MIRROR_MOST_WINDOW];
	struct iovec parts[2 * MIRROR_MOST_WINDOW], data;
	struct mirror_header h;
	size_t all = 0;
	int64_t now = now_ns();
	int n = 0;
	while (far_emit(f, &h, &data, now)) {
		if (n == MIRROR_MOST_WINDOW || (n > 0 && (data.iov_len > parts[1].iov_len || parts[2 * n - 1].iov_len < parts[1].iov_len)) ||
		    all + sizeof h + data.iov_len > TRAIN_BYTES) {
			send_datagrams(parts, n, 2, &f->address);
			n = 0;
			all = 0;
		}
		heads[n] = h;
		parts[2 * n] = (struct iovec){&heads[n], sizeof h};
		parts[2 * n + 1] = data;
		n++;
		all += sizeof h + data.iov_len;
	}
	if (n > 0)
		send_datagrams(parts, n, 2, &f->address);
}

/* ask_due sends the requests of a direct that are due. The caller has masked upcalls. */
static void ask_due(struct direct *d)
{
	static struct iovec train[ONESIDED_OUTSTANDING];
	int64_t now = now_ns();
	for (int n; (n = direct_emit(d, train, now)) > 0;) {
		int to_kernel = direct_to_kernel(d);
		if (to_kernel)
			disconnect(); /* the answers come from it */
		send_datagrams(train, n, 1, to_kernel ? &d->address : &self.fars[d->target]->address);
	}
}

void margay_in_ask(struct direct *d)
{
	int was = mask();
	ask_due(d);
	unmask(was);
}

static int is_same(const struct sockaddr_in *a, const struct sockaddr_in *b)
{
	return a->sin_port == b->sin_port && a->sin_addr.s_addr == b->sin_addr.s_addr;
}

/* take_answer takes an answer about a window from an address. */
static void take_answer(const struct onesided_answer *a, const char *data, const struct sockaddr_in *from, int64_t now)
{
	if (a->source != (uint32_t)margay_rank() || a->target >= (uint32_t)margay_size())
		return;
	struct far *f = self.fars[a->target];
	int by_rank = f && is_same(&f->address, from);
	if (!f || a->key != f->own_key || (!by_rank && !is_same(&f->direct.address, from)))
		return;
	if (by_rank)
		self.familiar++;
	direct_arrive(&f->direct, a, data, by_rank, now, margay_in_land);
	self.answered++;
}

/* replies are the answers to the requests of a train, which have one source. */
static struct {
	char bytes[ONESIDED_OUTSTANDING][ONESIDED_MOST];
	struct iovec all[ONESIDED_OUTSTANDING];
	int n;
	struct far *to;
} replies;

/* take_request takes a request about a window of this rank from an address. The node kernel takes
 * those about windows that this process has not mapped. */
static void take_request(const struct onesided_request *q, const char *data, const struct sockaddr_in *from)
{
	size_t size = 0;
	if (q->target != (uint32_t)margay_rank() || q->source >= (uint32_t)margay_size() || replies.n == ONESIDED_OUTSTANDING)
		return;
	struct far *f = self.fars[q->source];
	char *window = f && q->key == f->own_key && is_same(&f->address, from) ? margay_in_mapped(q->window, &size) : NULL;
	if (!window)
		return;
	char *b = replies.bytes[replies.n];
	size_t n = serve_carry(f->journal, q, data, f->key, window, size, b);
	replies.to = f;
	self.familiar++;
	if (replies.n && n == sizeof(struct onesided_answer) && replies.all[replies.n - 1].iov_len == n) /* it says all that the last one says */
		memcpy(replies.all[replies.n - 1].iov_base, b, n);
	else if (n)
		replies.all[replies.n++] = (struct iovec){b, n};
}

/* reply sends the answers to the requests of a train, in trains. */
static void reply(void)
{
	for (int i = 0, n; i < replies.n; i += n) {
		const struct iovec *first = &replies.all[i];
		size_t all = first->iov_len;
		for (n = 1; i + n < replies.n && first[n - 1].iov_len == first->iov_len && first[n].iov_len <= first->iov_len &&
			    all + first[n].iov_len <= TRAIN_BYTES;
		     n++)
			all += first[n].iov_len;
		send_datagrams(&replies.all[i], n, 1, &replies.to->address);
	}
	replies.n = 0;
}

/* take_direct takes n bytes from an address if they are about a window, and reports whether they
 * are none of a mirrored channel's. */
static int take_direct(const char *b, size_t n, const struct sockaddr_in *from, int64_t now)
{
	uint16_t magic = 0;
	struct onesided_answer a;
	struct onesided_request q;
	if (n >= sizeof magic)
		memcpy(&magic, b, sizeof magic);
	if (magic != ONESIDED_MAGIC)
		return 0;
	if (direct_parse(&a, b, n))
		take_answer(&a, b + sizeof a, from, now);
	else if (serve_parse(&q, b, n))
		take_request(&q, b + sizeof q, from);
	return 1;
}

/* take_datagram takes a datagram of n bytes from an address, which may be a stranger's. */
static void take_datagram(const char *b, size_t n, const struct sockaddr_in *from, int64_t now)
{
	struct mirror_header h;
	if (take_direct(b, n, from, now) || !far_parse(&h, b, n) || h.number >= (uint32_t)margay_size())
		return;
	struct far *f = self.numbers[h.number];
	if (f && (h.key ^ far_load(&f->in, WIRE_CHANNEL_SEAL)) == f->own_key && is_same(&f->address, from)) {
		far_arrive(f, &h, b + sizeof h, n - sizeof h, now);
		self.familiar++;
	}
}

/* receive_train takes datagrams of one length, but the last may be shorter, that have come
 * together, and returns their number, 0 if there are none. */
static int receive_train(void)
{
	static char b[1 << 16];
	union {
		struct cmsghdr header;
		char bytes[CMSG_SPACE(sizeof(int))];
	} control;
	struct sockaddr_in from;
	struct iovec data = {b, sizeof b};
	struct msghdr m = {.msg_name = &from, .msg_namelen = sizeof from, .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control,
			   .msg_controllen = sizeof control};
	ssize_t all = recvmsg(self.datagrams, &m, MSG_DONTWAIT);
	if (all < 0)
		return 0;
	size_t each = all > 0 ? all : 1;
	int n = 0, length;
	int64_t now = now_ns();
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (c && c->cmsg_level == IPPROTO_UDP && c->cmsg_type == UDP_GRO) {
		memcpy(&length, CMSG_DATA(c), sizeof length);
		if (length > 0)
			each = length;
	}
	for (size_t at = 0; at < (size_t)all; at += each, n++)
		take_datagram(b + at, (size_t)all - at < each ? (size_t)all - at : each, &from, now);
	reply();
	return n > 0 ? n : 1; /* an empty one */
}

/* transmit_due sends the datagrams that are due. The caller has masked upcalls. */
static void transmit_due(void)
{
	for (uint32_t i = 0; i < self.end_count; i++) {
		if (far_busy(self.ends[i]))
			transmit(self.ends[i]);
		if (!direct_idle(&self.ends[i]->direct))
			ask_due(&self.ends[i]->direct);
	}
}

/* receive_datagrams takes a train, if one has come, and returns the number of its datagrams. The
 * caller has masked upcalls. */
static int receive_datagrams(void)
{
	if (self.end_count == 0)
		return 0;
	int n = receive_train();
	acquaint();
	return n;
}

/* transmit_all sends the datagrams and requests that are due before the rank sleeps. */
static void transmit_all(void)
{
	for (uint32_t i = 0; i < self.end_count; i++) {
		far_rest(self.ends[i]);
		if (far_busy(self.ends[i]) || far_due(self.ends[i])) /* the time-out may have lost its reason */
			transmit(self.ends[i]);
		ask_due(&self.ends[i]->direct);
	}
}

/* has_settled reports whether all messages in mirrored channels have arrived, but for notes and
 * those to ranks that have ended, and all requests by datagrams are answered. */
static int has_settled(int n, uint64_t arg)
{
	(void)n;
	(void)arg;
	for (uint32_t i = 0; i < self.end_count; i++) {
		struct far *f = self.ends[i];
		if (f->acked < f->spoken && atomic_load(channel_word(&f->out, WIRE_CHANNEL_CLOSED)) != WIRE_CHANNEL_ENDED)
			return 0;
		if (!direct_idle(&f->direct))
			return 0;
	}
	return 1;
}

/* settle waits until all messages in mirrored channels have arrived, and has the other ends answer
 * at once. */
static int settle(int timeout_ms)
{
	if (has_settled(0, 0))
		return 0;
	int was = mask();
	for (uint32_t i = 0; i < self.end_count; i++) {
		if (self.ends[i]->acked < self.ends[i]->spoken) {
			self.ends[i]->ask = 1;
			transmit(self.ends[i]);
		}
	}
	unmask(was);
	return wait_until(has_settled, 0, timeout_ms) < 0 ? -1 : 0;
}

/* no_sense fails because the consumer of a channel has written nonsense. */
static int no_sense(const struct channel *c)
{
	return fail("channel to rank %d: the area was written over: the channel's consumer is beyond its producer", c->rank);
}

/* put_channel puts a message into a channel and reports whether there was room. */
static int put_channel(struct channel *c, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	int sent = channel_put(c, handler, arg0, arg1, payload, length);
	if (sent > 0 && c->local < 0) {
		if (handler != WIRE_HANDLER_BARRIER)
			self.fars[c->rank]->spoken = c->position;
		/* Ranks wait for what the library sends. */
		if (handler >= WIRE_HANDLER_COLLECTIVE || !far_gathers(self.fars[c->rank]))
			transmit(self.fars[c->rank]);
	} else if (sent > 0)
		wake_local(c->local);
	return sent < 0 ? no_sense(c) : sent;
}

/* next_channel returns a channel that has a message, NULL if there is none. */
static struct channel *next_channel(void)
{
	for (uint32_t i = 0; i < self.source_count; i++) {
		if (channel_ready(self.sources[self.turn]))
			return self.sources[self.turn];
		self.turn = (self.turn + 1) % self.source_count;
	}
	return NULL;
}

/* acknowledge sends acknowledgements that should have left: handlers may take long, and the other
 * rank would send all again. The caller has masked upcalls. */
static void acknowledge(void)
{
	int64_t now = now_ns();
	for (uint32_t i = 0; i < self.end_count; i++)
		if (far_late(self.ends[i], now))
			transmit(self.ends[i]);
}

/* run_channel runs the handler of the next message of a channel and returns the number of
 * messages handled. */
static int run_channel(struct channel *c)
{
	struct margay_am message = {.node = margay_node_of(c->rank)};
	int next = channel_next(c, &message), wake = 0;
	if (next < 0)
		die("margay: rank %d: channel from rank %d: the area was written over at %d\n", margay_rank(), c->rank, (int)c->position);
	if (next == 0)
		return 0;
	int later = channel_later(message.handler, message.args[0]);
	handle(&message);
	if (channel_done(c, message.length, &wake))
		self.turn = (self.turn + 1) % self.source_count; /* each rank's messages get their turn */
	if (c->local < 0 && !later) /* its producer counts at the other end */
		atomic_store_explicit(channel_word64(c, WIRE_CHANNEL_COUNT), ++c->count, memory_order_relaxed);
	else if (c->local >= 0 && wake)
		wake_local(c->local);
	if (c->local < 0 && ++self.mirrored % ACKNOWLEDGE_EACH == 0)
		acknowledge();
	return 1;
}

/* add_mirror maps mirrored channels whose fetching was answered. */
static int add_mirror(const struct wire_reply *reply, const int files[MAX_FILES])
{
	uint64_t rank = reply->values[0], where = reply->values[6];
	size_t largest = where & 0xffff;
	if (files[1] < 0 || rank >= (uint64_t)margay_size() || reply->values[2] >= (uint64_t)margay_size() || largest < MIRROR_LEAST || largest > MIRROR_MOST)
		return fail("the node kernel sent no mirrored channels");
	if (self.datagrams < 0)
		self.datagrams = fcntl(files[1], F_DUPFD_CLOEXEC, 0);
	if (self.datagrams < 0)
		return fail("duplicate a socket: %s", strerror(errno));
	struct far *f = calloc(1, sizeof *f);
	char *memory = f ? map_file(files[0]) : NULL;
	if (!memory) {
		free(f);
		return -1;
	}
	f->address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(where >> 16 & 0xffff), .sin_addr.s_addr = htonl(where >> 32)};
	f->number = reply->values[3];
	f->own_key = reply->values[4];
	f->key = reply->values[5];
	f->most = (largest - sizeof(struct mirror_header)) & ~(size_t)7;
	f->window = MIRROR_FIRST_WINDOW;
	direct_open(&f->direct, largest);
	f->direct.address = f->address;
	f->direct.address.sin_port = htons(reply->values[7]);
	f->direct.source = margay_rank();
	f->direct.target = rank;
	f->direct.key = f->key;
	f->out = (struct channel){.memory = memory, .rank = rank, .local = -1, .room = WIRE_CHANNEL_RING, .kernel = self.tail, .through = 1,
				  .limit = f->most - WIRE_CHANNEL_HEADER < WIRE_CHANNEL_PAYLOAD ? f->most - WIRE_CHANNEL_HEADER : WIRE_CHANNEL_PAYLOAD};
	f->in = (struct channel){.memory = memory + WIRE_CHANNEL_SIZE, .rank = rank, .local = -1};
	f->journal = (struct onesided_journal *)(f->in.memory + WIRE_CHANNEL_JOURNAL);
	disconnect();
	self.fars[rank] = self.numbers[reply->values[2]] = self.ends[self.end_count++] = f;
	self.to[rank] = &f->out;
	self.from[rank] = self.sources[self.source_count++] = &f->in;
	return 0;
}

/* add_channel maps a channel whose fetching was answered. */
static int add_channel(const struct wire_reply *reply, const int files[MAX_FILES])
{
	uint64_t rank = reply->values[0], local = reply->values[2];
	if (reply->values[1] == WIRE_MIRROR)
		return add_mirror(reply, files);
	if (files[1] < 0 || rank >= (uint64_t)margay_size() || local >= (uint64_t)margay_local_size())
		return fail("the node kernel sent no channel");
	if (self.peer_doorbells[local] < 0)
		self.peer_doorbells[local] = fcntl(files[1], F_DUPFD_CLOEXEC, 0);
	if (self.peer_doorbells[local] < 0)
		return fail("duplicate a doorbell: %s", strerror(errno));
	struct channel *c = calloc(1, sizeof *c);
	if (!c || !(c->memory = map_file(files[0]))) {
		free(c);
		return -1;
	}
	c->rank = rank;
	c->local = local;
	c->limit = WIRE_CHANNEL_PAYLOAD;
	c->room = WIRE_CHANNEL_RING;
	c->kernel = self.tail;
	c->through = 1;
	if (reply->values[1]) {
		self.to[rank] = c;
	} else {
		self.from[rank] = c;
		self.sources[self.source_count++] = c;
	}
	return 0;
}

/* fetch_channels fetches the channels that the node kernel has made since. The caller has masked
 * upcalls. */
static int fetch_channels(void)
{
	while (atomic_load(word32(WIRE_CHANNELS)) != self.known) {
		struct wire_request request = {.op = WIRE_CHANNEL, .value = self.known};
		struct wire_reply reply;
		int files[MAX_FILES];
		if (ask(&request, sizeof request, -1, &reply, files) != 0)
			return -1;
		int err = add_channel(&reply, files);
		close_files(files);
		if (err)
			return -1;
		self.known++;
	}
	return 0;
}

/* fetch_doorbell fetches the doorbell of a local rank to which there is no channel. */
static int fetch_doorbell(int local)
{
	struct wire_request request = {.op = WIRE_DOORBELL, .value = local};
	struct wire_reply reply;
	int files[MAX_FILES];
	if (self.peer_doorbells[local] >= 0)
		return 0;
	if (ask(&request, sizeof request, -1, &reply, files) != 0)
		return -1;
	self.peer_doorbells[local] = files[0];
	return 0;
}

void margay_in_wake(int rank)
{
	int local = 0, was = mask();
	for (int other = 0; other < rank; other++)
		local += margay_node_of(other) == margay_node();
	if (rank != margay_rank() && atomic_load(asleep(local)) && fetch_doorbell(local) == 0)
		wake_local(local);
	unmask(was);
}

/* ---- Sending and receiving ---- */

/* check fails if the application cannot send a message of that length, at most most bytes, to a
 * handler of a rank. */
static int check(int rank, int handler, size_t length, size_t most)
{
	if (no_job() != 0)
		return -1;
	if (rank < 0 || rank >= margay_size())
		return fail("there is no rank %d, but ranks 0 to %d", rank, margay_size() - 1);
	if (handler < 0 || handler >= MARGAY_MAX_HANDLERS)
		return fail("there is no handler %d, but handlers 0 to %d", handler, MARGAY_MAX_HANDLERS - 1);
	if (length > most)
		return fail("a message %scarries at most %zu bytes", most == MARGAY_MAX_PAYLOAD ? "that is posted " : "", most);
	return 0;
}

int margay_post(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	return check(rank, handler, length, MARGAY_MAX_PAYLOAD) != 0 ? -1 : margay_in_post(rank, handler, arg0, arg1, payload, length);
}

int margay_in_post(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	int was = mask();
	struct channel *c = self.to[rank];
	int sent = takes_channel(c, handler) ? put_channel(c, handler, arg0, arg1, payload, length)
				    : put(rank, handler, arg0, arg1, payload, length);
	unmask(was);
	return sent;
}

int margay_handle(int number, margay_handler handler, void *data)
{
	if (number < 0 || number >= MARGAY_MAX_HANDLERS)
		return fail("there is no handler %d", number);
	int was = mask();
	self.handlers[number].f = handler;
	self.handlers[number].data = data;
	unmask(was);
	return 0;
}

/* die aborts the process after a message that it cannot handle. */
static void die(const char *format, int a, int b, int c)
{
	char text[128]; /* stdio may be what an upcall has interrupted */
	int n = snprintf(text, sizeof text, format, a, b, c);
	if (write(STDERR_FILENO, text, n) < 0)
		_exit(1);
	abort();
}

static void block_upcalls(int how)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, UPCALL_SIGNAL);
	sigprocmask(how, &set, NULL);
}

/* take_note takes a note of a barrier. The sender may have written anything. */
static int take_note(const struct margay_am *message)
{
	return exchange_arrive(&self.exchange, message->source, message->args, message->length);
}

/* take_piece takes a piece of a long message. The sender may have written anything. */
static int take_piece(const struct margay_am *message)
{
	struct margay_am whole;
	switch (assembler_arrive(&self.assembler, message, margay_size(), &whole)) {
	case PIECE_NO_MEMORY:
		die("margay: rank %d has no memory for a message of %d bytes from rank %d\n", margay_rank(), (int)(uint32_t)message->args[0],
		    message->source);
	case PIECE_NONSENSE:
		return -1;
	case PIECE_TAKEN:
		self.parts++;
		return 0;
	case PIECE_WHOLE:
		break;
	}
	handle(&whole);
	return 0;
}

/* take_stopped ignores a message that an extension has stopped. */
static int take_stopped(const struct margay_am *message)
{
	(void)message;
	self.parts++;
	return 0;
}

/* handle runs the handler of a message with upcalls masked, and leaves them masked. */
static void handle(const struct margay_am *message)
{
	if (message->handler >= WIRE_HANDLER_COLLECTIVE && message->handler <= WIRE_HANDLER_STOPPED) {
		static int (*const take[])(const struct margay_am *) = {margay_in_arrive, margay_in_answer,	 take_note,
									take_piece,	  margay_in_take_commit, take_stopped};
		if (self.depth > 0 || take[message->handler - WIRE_HANDLER_COLLECTIVE](message) != 0)
			die("margay: rank %d got a message for handler %d from rank %d, which makes no sense\n", margay_rank(), message->handler,
			    message->source);
		return;
	}
	margay_handler f = message->handler < MARGAY_MAX_HANDLERS ? self.handlers[message->handler].f : NULL;
	if (!f)
		die("margay: rank %d got a message for handler %d from rank %d, and has no such handler\n", margay_rank(), message->handler,
		    message->source);
	int unblocked = self.unblocked;
	self.unblocked = 0;
	self.running++;
	f(message, self.handlers[message->handler].data);
	self.running--;
	self.masked = 1;
	if (self.unblocked && !unblocked)
		block_upcalls(SIG_BLOCK);
	self.unblocked = unblocked;
}

/* run_handler handles the message of a record. */
static void run_handler(const struct wire_record *r)
{
	struct margay_am message = {.source = r->peer, .node = r->node & ~WIRE_NODE_EXTENSION, .handler = r->handler,
				    .args = {r->args[0], r->args[1]}, .payload = r + 1, .length = r->size,
				    .extension = (r->node & WIRE_NODE_EXTENSION) != 0};
	handle(&message);
}

/* consumed advances a ring's head and wakes the node kernel if it waits for room. */
static void consumed(size_t control, uint64_t head)
{
	atomic_store(word64(control + WIRE_HEAD), head);
	if (atomic_load(word32(control + WIRE_PRODUCER_WAITING)))
		ring();
}

static int upcalls_wait(void) { return atomic_load(word64(WIRE_UPCALL_CONTROL + WIRE_TAIL)) != self.upcall_head; }

/* run_upcalls runs the handlers of all pending upcalls. The caller has masked them. */
static int run_upcalls(void)
{
	struct {
		struct wire_record head;
		char payload[MARGAY_MAX_PAYLOAD];
	} copy; /* since the handler may let other upcalls come */
	char *ring_bytes = self.area + header(WIRE_UPCALL);
	int n = 0;
	while (upcalls_wait()) {
		const struct wire_record *r = (struct wire_record *)(ring_bytes + (self.upcall_head & (WIRE_RING_SIZE - 1)));
		uint32_t length = r->length, kind = r->kind;
		if (kind == WIRE_MESSAGE)
			memcpy(&copy, r, sizeof copy.head + r->size);
		self.upcall_head += length;
		consumed(WIRE_UPCALL_CONTROL, self.upcall_head);
		if (kind == WIRE_MESSAGE) {
			run_handler(&copy.head);
			n++;
		}
	}
	return n;
}

static int received_wait(void) { return atomic_load(word64(WIRE_RECEIVE_CONTROL + WIRE_TAIL)) != self.head; }

/* run_received runs the handler of the next message in the receive ring, or of one in a channel
 * that was sent before it. It returns the number of messages handled. */
static int run_received(void)
{
	while (received_wait()) {
		const struct wire_record *r = (struct wire_record *)(self.area + header(WIRE_RECEIVE) + (self.head & (WIRE_RING_SIZE - 1)));
		uint32_t length = r->length;
		int message = r->kind == WIRE_MESSAGE;
		if (message && r->after) {
			if (!self.from[r->peer] && fetch_channels() != 0)
				return 0;
			struct channel *c = self.from[r->peer];
			int before = c && channel_before(c, r->after);
			if (before && channel_ready(c))
				return run_channel(c);
			if (before && c->local < 0) {
				self.stalled = 1; /* it has not arrived yet */
				return 0;
			}
		}
		if (message)
			run_handler(r);
		self.head += length;
		consumed(WIRE_RECEIVE_CONTROL, self.head);
		if (message)
			return 1;
	}
	return 0;
}

/* run_some runs handlers of messages in the order that the paths demand, and returns the number
 * of messages handled, 0 if there is none. The caller has masked upcalls. */
static int run_some(void)
{
	self.stalled = 0;
	for (;;) {
		/* An upcall sent before the message in the ring has arrived before it. */
		int some = received_wait(), n = run_upcalls();
		if (n > 0)
			return n;
		if (some)
			return run_received();
		struct channel *c = next_channel();
		if (!c)
			return 0;
		/* What the same rank sent before through the node kernel is in the rings by now. */
		if (!upcalls_wait() && !received_wait())
			return run_channel(c);
	}
}

/* poll_all handles the messages that have come, of at most most datagrams and of the train that
 * exceeds them, and returns the number of those and of parts of messages. It handles each train
 * before it looks for another: Linux takes as long to say that there is none as to copy one.
 * Strangers may have sent some. */
static int poll_all(int most)
{
	int was = mask(), n = 0, came = 0;
	if (fetch_channels() == 0) {
		do {
			if (most > 0)
				most -= came = receive_datagrams();
			for (int some; (some = run_some()) > 0;)
				n += some;
			transmit_due(); /* acknowledgements with the room that the handlers have made */
		} while (came > 0 && most > 0);
	}
	margay_in_progress();
	margay_in_collect();
	margay_in_commit();
	unmask(was);
	return n;
}

int margay_poll(void)
{
	if (no_job() != 0)
		return -1;
	unsigned parts = self.parts;
	int n = poll_all(self.in_vain ? 1 : DATAGRAMS_EACH); /* a program that has polled in vain polls again */
	if (pace_polled(&self.in_vain, atomic_load(word32(WIRE_PATH)), n > 0))
		sched_yield();
	return n - (int)(self.parts - parts);
}

/* ---- Upcalls ---- */

static void arm(int armed) { atomic_store(word32(WIRE_UPCALL_CONTROL + WIRE_CONSUMER_WAITING), armed); }

/* interruptible handles pending upcalls and lets further ones interrupt. */
static void interruptible(void)
{
	for (;;) {
		self.masked = 1;
		atomic_signal_fence(memory_order_seq_cst);
		self.missed = 0;
		if (self.upcalls && run_upcalls() > 0)
			transmit_due();
		atomic_signal_fence(memory_order_seq_cst);
		self.masked = 0;
		if (!self.upcalls)
			return;
		arm(1);
		if (!upcalls_wait() && !self.missed)
			return;
	}
}

/* on_alarm is the signal handler of upcalls. Linux blocks the next signal until it returns. */
static void on_alarm(int number)
{
	int error = errno, unblocked = self.unblocked;
	char rung[64];
	(void)number;
	if (self.masked || !self.upcalls) {
		self.missed = 1;
	} else {
		self.depth++;
		self.unblocked = 0;
		interruptible();
		self.unblocked = unblocked;
		self.depth--;
	}
	/* Last, because this wakes the node kernel. A byte that arrived since has raised its own
	 * signal. */
	while (recv(self.upcall_doorbell, rung, sizeof rung, MSG_DONTWAIT) == sizeof rung)
		;
	errno = error;
}

/* alternate_stack gives this thread a stack for signal handlers, with a guard page. */
static int alternate_stack(void)
{
	const size_t guard = 4096;
	char *stack = mmap(NULL, guard + UPCALL_STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED || mprotect(stack, guard, PROT_NONE) != 0)
		return fail("make a stack for upcalls: %s", strerror(errno));
	stack_t s = {.ss_sp = stack + guard, .ss_size = UPCALL_STACK};
	if (sigaltstack(&s, NULL) != 0) {
		munmap(stack, guard + UPCALL_STACK);
		return fail("use a stack for upcalls: %s", strerror(errno));
	}
	return 0;
}

/* start_upcalls makes Linux signal this thread when the upcall doorbell becomes readable. */
static int start_upcalls(void)
{
	struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART | SA_ONSTACK};
	struct f_owner_ex owner = {F_OWNER_TID, syscall(SYS_gettid)};
	stack_t stack;
	sigemptyset(&action.sa_mask);
	if (sigaltstack(NULL, &stack) != 0 || (stack.ss_flags & SS_DISABLE) || stack.ss_size < UPCALL_STACK)
		if (alternate_stack() != 0)
			return -1;
	if (sigaction(UPCALL_SIGNAL, &action, &self.action) != 0)
		return fail("handle upcalls: %s", strerror(errno));
	if (fcntl(self.upcall_doorbell, F_SETOWN_EX, &owner) != 0 || fcntl(self.upcall_doorbell, F_SETSIG, UPCALL_SIGNAL) != 0 ||
	    fcntl(self.upcall_doorbell, F_SETFL, fcntl(self.upcall_doorbell, F_GETFL) | O_ASYNC) != 0) {
		fail("have upcalls interrupt: %s", strerror(errno));
		sigaction(UPCALL_SIGNAL, &self.action, NULL);
		return -1;
	}
	block_upcalls(SIG_UNBLOCK);
	self.upcalls = 1;
	if (!self.masked)
		interruptible();
	return 0;
}

int margay_upcalls(int on)
{
	if (no_job() != 0)
		return -1;
	if (self.depth > 0)
		return -1;
	if (!on == !self.upcalls)
		return 0;
	if (on)
		return start_upcalls();
	self.upcalls = 0;
	arm(0);
	fcntl(self.upcall_doorbell, F_SETFL, fcntl(self.upcall_doorbell, F_GETFL) & ~O_ASYNC);
	sigaction(UPCALL_SIGNAL, &self.action, NULL);
	return 0;
}

int margay_mask(int masked)
{
	if (no_job() != 0)
		return -1;
	int was = mask();
	if (masked) {
		arm(0);
		return was;
	}
	if (self.running >= UPCALL_DEPTH)
		return was;
	if (self.depth > 0 && !self.unblocked) {
		block_upcalls(SIG_UNBLOCK);
		self.unblocked = 1;
	}
	interruptible();
	return was;
}

/* ---- Waiting ---- */

int64_t now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

/* linger waits for a moment and returns 1, or returns 0 when it is time to sleep. */
static int linger(struct pace *p, int64_t deadline)
{
	uint32_t path = atomic_load(word32(WIRE_PATH));
	int64_t now = pace_looks(p, path) ? now_ns() : 0;
	switch (pace_next(p, path, now, deadline)) {
	case PACE_SPIN:
		relax();
		return 1;
	case PACE_YIELD:
		sched_yield();
		return 1;
	}
	return 0;
}

/* hush empties the doorbell and the peer doorbell and reports whether the node kernel is still
 * connected. Reading the doorbell wakes the node kernel, so do it when no message is pending. */
static int hush(void)
{
	char rung[256];
	uint64_t count;
	if (!self.rung)
		return 1;
	self.rung = 0;
	if (read(self.peer_doorbell, &count, sizeof count) > 0)
		return 1;
	return recv(self.doorbell, rung, sizeof rung, MSG_DONTWAIT) != 0;
}

/* next_due returns when a datagram must be sent again, or a rank be probed, at the earliest; -1:
 * never. */
static int64_t next_due(void)
{
	int64_t next = margay_in_probe(), commits = margay_in_probe_commits();
	if (commits >= 0 && (next < 0 || commits < next))
		next = commits;
	for (uint32_t i = 0; i < self.end_count; i++) {
		int64_t due = far_due(self.ends[i]), ask = direct_due(&self.ends[i]->direct);
		if (due && (next < 0 || due < next))
			next = due;
		if (ask && (next < 0 || ask < next))
			next = ask;
	}
	return next;
}

/* sleep_until waits for the doorbell, the peer doorbell, a datagram, the time of next_due, a signal
 * or the deadline (-1: none). It returns 0 after the deadline. */
static int sleep_until(int64_t deadline)
{
	int64_t due = next_due();
	for (;;) {
		struct timespec wait;
		int64_t end = deadline < 0 || (due >= 0 && due < deadline) ? due : deadline;
		if (end >= 0) {
			int64_t left = end - now_ns();
			if (left <= 0)
				return end == due;
			wait = (struct timespec){left / 1000000000, left % 1000000000};
		}
		struct pollfd p[] = {{.fd = self.doorbell, .events = POLLIN}, {.fd = self.peer_doorbell, .events = POLLIN},
				     {.fd = self.datagrams, .events = POLLIN}};
		int n = ppoll(p, 3, end >= 0 ? &wait : NULL, NULL);
		if (n > 0 && (p[0].revents || p[1].revents))
			self.rung = 1;
		if (n != 0)
			return 1;
	}
}

/* announce says that this rank sleeps, or no longer does. */
static void announce(int sleeps)
{
	atomic_store(word32(WIRE_RECEIVE_CONTROL + WIRE_CONSUMER_WAITING), sleeps);
	atomic_store(asleep(margay_local_rank()), sleeps);
}

/* Requests that this rank serves do not keep it from sleeping, nor messages from looking at the
 * deadline: others may send them without end. */
int wait_until(int (*done)(int n, uint64_t arg), uint64_t arg, int timeout_ms)
{
	int64_t deadline = timeout_ms < 0 ? -1 : now_ns() + timeout_ms * 1000000LL;
	int n = 0, was = mask(), there = 1, rung = 1, moved = 0, late = 0;
	struct pace pace = {0};
	for (;;) {
		unsigned answered = self.answered, parts = self.parts;
		int there_is = fetch_channels() == 0, more = there_is ? run_some() : 0;
		if (there_is && (!more || self.handled >= DATAGRAMS_EACH)) {
			transmit_due(); /* as in poll_all */
			receive_datagrams();
			self.handled = 0;
			more += run_some();
		}
		self.handled += more;
		n += more - (int)(self.parts - parts);
		margay_in_progress();
		margay_in_collect();
		margay_in_commit();
		if (done(n, arg))
			break;
		if (!rung) {
			n = there ? fail("nothing came in %d ms", timeout_ms) : fail("the node kernel is gone") - 1;
			break;
		}
		if (more || answered != self.answered) {
			pace = (struct pace){0};
			late = deadline >= 0 && ++moved % DATAGRAMS_EACH == 0 && now_ns() >= deadline;
			if (!late)
				continue;
		}
		if (!late && linger(&pace, deadline))
			continue;
		there = hush();
		transmit_all();
		/* Messages and upcalls that arrive after this ring, and datagrams end the sleep. */
		announce(1);
		arm(0);
		parts = self.parts;
		more = poll_all(0);
		n += more - (int)(self.parts - parts);
		rung = done(n, arg) || (!late && (more || (there && sleep_until(deadline))));
		announce(0);
		pace = (struct pace){0};
	}
	transmit_due();
	if (!was)
		interruptible();
	return n;
}

static int some_came(int n, uint64_t arg)
{
	(void)arg;
	return n > 0;
}

int margay_wait(int timeout_ms)
{
	if (no_job() != 0)
		return -1;
	int n = wait_until(some_came, 0, timeout_ms);
	return n < 0 ? 0 : n;
}

/* The condition of margay_wait_for. */
struct condition {
	int (*done)(void *data);
	void *data;
};

static int is_done(int n, uint64_t arg)
{
	const struct condition *c = (const struct condition *)(uintptr_t)arg;
	(void)n;
	return c->done(c->data);
}

int margay_wait_for(int (*done)(void *data), void *data, int timeout_ms)
{
	struct condition c = {done, data};
	if (no_job() != 0)
		return -1;
	return wait_until(is_done, (uintptr_t)&c, timeout_ms) < 0 ? -1 : 0;
}

static int is_released(int n, uint64_t number)
{
	(void)n;
	return atomic_load(word64(WIRE_RELEASED)) >= number;
}

/* board_word is the word of a local rank for a barrier. */
static _Atomic uint64_t *board_word(int local, uint64_t number)
{
	return (_Atomic uint64_t *)(self.board + WIRE_BOARD_RANK * local + WIRE_BOARD_BARRIER + 8 * (number & 1));
}

/* all_met reports whether all local ranks have entered a barrier on the board. */
static int all_met(int n, uint64_t number)
{
	(void)n;
	while (self.arrived < margay_local_size() && atomic_load(board_word(self.arrived, number)) >> WIRE_BARRIER_SHIFT >= number)
		self.arrived++;
	return self.arrived == margay_local_size();
}

/* inside returns the outcome about a barrier that all local ranks have entered, as far as they
 * know. A rank that is at a later barrier has left this one. If a rank had not been quiet, it would
 * still wait for all others. */
static int inside(uint64_t number)
{
	int outcome = WIRE_OUTCOME_QUIET;
	for (int local = 0; local < margay_local_size(); local++) {
		uint64_t word = atomic_load(board_word(local, number));
		if (word >> WIRE_BARRIER_SHIFT > number)
			return WIRE_OUTCOME_QUIET;
		if (word & WIRE_BARRIER_LOUD)
			outcome = WIRE_OUTCOME_LOUD;
	}
	return outcome;
}

/* wake_asleep wakes a local rank if it sleeps. */
static void wake_asleep(int local)
{
	if (local != margay_local_rank() && atomic_load(asleep(local)) && fetch_doorbell(local) == 0)
		wake_local(local);
}

static void wake_node(void)
{
	for (int local = 0; local < margay_local_size(); local++)
		wake_asleep(local);
}

/* send_notes sends the notes that are due, and publishes and returns the outcome, 0 while there is
 * none. A leader that has ended needs no note. */
static int send_notes(void)
{
	struct exchange *e = &self.exchange;
	uint64_t args[2];
	for (int to; (to = exchange_next(e, args)) >= 0;) {
		struct channel *c = self.to[to];
		int sent = 1;
		if (!c || atomic_load(channel_word(c, WIRE_CHANNEL_CLOSED)) != WIRE_CHANNEL_ENDED)
			sent = margay_in_post(to, WIRE_HANDLER_BARRIER, args[0], args[1], NULL, 0);
		if (sent > 0)
			exchange_sent(e);
		else if (sent < 0 || !margay_in_room(to, WIRE_HANDLER_BARRIER, 0))
			return 0;
	}
	int outcome = exchange_decided(e);
	if (outcome) {
		atomic_store((_Atomic uint64_t *)(self.board + WIRE_BOARD_OUTCOME), e->number << WIRE_BARRIER_SHIFT | outcome);
		wake_node();
	}
	return outcome;
}

/* is_bounded reports whether a leader has ended whose part in a barrier is missing. */
static int is_bounded(uint64_t number)
{
	uint64_t bound = atomic_load(word64(WIRE_BOUND));
	return bound && number >= bound;
}

/* lead advances the exchange about a barrier when all local ranks have entered it, and returns the
 * outcome, 0 while there is none. */
static int lead(uint64_t number)
{
	if (self.exchange.number < number) {
		if (!all_met(0, number) || is_bounded(number))
			return 0;
		exchange_begin(&self.exchange, number, inside(number), (atomic_load(word32(WIRE_PATH)) & WIRE_STREWN) != 0);
	}
	return send_notes();
}

/* look returns the outcome about a barrier that this rank has entered, 0 while there is none. If a
 * leader has ended whose part in it is missing, the node kernels decide. */
static int look(uint64_t number)
{
	uint64_t word;
	int outcome = 0;
	if (margay_nodes() == 1)
		return all_met(0, number) ? inside(number) : 0;
	if (self.exchange.leaders) {
		outcome = lead(number);
	} else {
		word = atomic_load((_Atomic uint64_t *)(self.board + WIRE_BOARD_OUTCOME));
		if (word >> WIRE_BARRIER_SHIFT >= number)
			outcome = word >> WIRE_BARRIER_SHIFT > number ? WIRE_OUTCOME_QUIET : word & ((1 << WIRE_BARRIER_SHIFT) - 1);
	}
	return !outcome && is_bounded(number) ? WIRE_OUTCOME_LOUD : outcome;
}

static int is_decided(int n, uint64_t arg)
{
	int *outcome = (int *)(uintptr_t)arg;
	(void)n;
	*outcome = look(self.barriers);
	return *outcome != 0;
}

/* abandon notes that this rank does not wait any longer in a barrier that it has entered. */
static int abandon(void)
{
	self.abandoned = 1;
	return -1;
}

/* NAMED is how many ranks an error names. */
#define NAMED 8

/* overdue fails a barrier for its time-out, and names the ranks of this node that have not entered
 * it on the boards, and one that is in a collective call instead; number is 0 for a barrier of the
 * node kernels. */
static int overdue(uint64_t number, int timeout_ms)
{
	char text[16 * NAMED] = "", early[256] = ", and ";
	int missing = 0, local = 0;
	size_t length = 0;
	for (int rank = 0; number && rank < margay_size(); rank++) {
		if (margay_node_of(rank) != margay_node())
			continue;
		if (atomic_load(board_word(local++, number)) >> WIRE_BARRIER_SHIFT < number && missing++ < NAMED)
			length += snprintf(text + length, sizeof text - length, "%s%d", length ? ", " : "", rank);
	}
	if (!margay_in_early(early + 6, sizeof early - 6))
		early[0] = 0;
	if (missing > NAMED)
		return fail("the barrier is not complete after %d ms: ranks %s and %d more of this node have not entered it%s", timeout_ms, text,
			    missing - NAMED, early);
	if (missing > 0)
		return fail("the barrier is not complete after %d ms: %s %s of this node %s not entered it%s", timeout_ms, missing == 1 ? "rank" : "ranks",
			    text, missing == 1 ? "has" : "have", early);
	return fail("the barrier is not complete after %d ms: a rank%s has not entered it%s", timeout_ms, number && margay_nodes() > 1 ? " of another node" : "",
		    early);
}

/* meet enters a barrier on the board and returns the outcome about it, WIRE_OUTCOME_LOUD if all
 * ranks must enter one of the node kernels, or -1. */
static int meet(int64_t deadline, int timeout_ms)
{
	uint64_t number = ++self.barriers;
	int outcome = 0;
	int quiet = (atomic_load(word32(WIRE_PATH)) & WIRE_MEET) && atomic_load(word64(WIRE_SETTLED)) >= self.spoken && self.strayed <= self.cleared;
	self.arrived = 0;
	atomic_store(board_word(margay_local_rank(), number), number << WIRE_BARRIER_SHIFT | (quiet ? 0 : WIRE_BARRIER_LOUD));
	/* The last rank to enter wakes those that wait for that. */
	if (all_met(0, number)) {
		if (margay_nodes() == 1)
			wake_node();
		else
			wake_asleep(0);
	}
	int n = wait_until(is_decided, (uintptr_t)&outcome, margay_in_left(deadline));
	if (n >= 0)
		return outcome;
	if (n == -1)
		overdue(number, timeout_ms);
	if (self.exchange.leaders) { /* the others do not wait for it */
		exchange_abandon(&self.exchange, number);
		send_notes();
	}
	return -1;
}

/* pass_kernels enters a barrier of the node kernels and leaves it. */
static int pass_kernels(int64_t deadline, int timeout_ms)
{
	uint64_t passed = self.tail, number = atomic_fetch_add(word64(WIRE_ENTERED), 1) + 1;
	/* The node kernel polls for it when awake, and must be woken when asleep. */
	if (atomic_load(word32(WIRE_SEND_CONTROL + WIRE_CONSUMER_WAITING)))
		ring();
	int n = wait_until(is_released, number, margay_in_left(deadline));
	if (n < 0)
		return n == -1 ? overdue(0, timeout_ms) : -1;
	self.cleared = passed;
	return 0;
}

/* pass_any enters a barrier, on the boards if it can be completed there, and leaves it. */
static int pass_any(int64_t deadline, int timeout_ms)
{
	if ((margay_nodes() == 1 || header(WIRE_MEETS)) && turns_try(&self.turns)) {
		int outcome = meet(deadline, timeout_ms);
		if (outcome < 0)
			return -1;
		if (outcome == WIRE_OUTCOME_ABANDONED)
			return fail("another rank has abandoned this barrier: the job has no barriers any more");
		turns_judge(&self.turns, outcome == WIRE_OUTCOME_QUIET);
		if (outcome == WIRE_OUTCOME_QUIET)
			return 0;
	}
	return pass_kernels(deadline, timeout_ms);
}

/* pass is pass_any, for ranks that wait for this one in a collective call. */
static int pass(int64_t deadline, int timeout_ms)
{
	self.meets = 1;
	int err = pass_any(deadline, timeout_ms);
	self.meets = 0;
	return err;
}

int margay_in_meets(void) { return self.meets; }

static int flows(int n, uint64_t arg)
{
	(void)n;
	(void)arg;
	return !self.stalled;
}

/* catch_up handles the messages that have come. While one waits for others that were sent before
 * it and have not arrived, those behind it wait, too. */
static int catch_up(int64_t deadline)
{
	for (poll_all(0); self.stalled;)
		if (wait_until(flows, 0, margay_in_left(deadline)) < 0)
			return -1;
	return 0;
}

/* synchronise carries out a barrier. Afterwards it is known which puts before it were refused. */
static int synchronise(int timeout_ms)
{
	if (no_job() != 0)
		return -1;
	int64_t deadline = timeout_ms < 0 ? -1 : now_ns() + timeout_ms * 1000000LL;
	if (self.abandoned)
		return fail("an earlier barrier was abandoned: the job has no barriers any more");
	if (margay_in_drain(timeout_ms) != 0 || settle(margay_in_left(deadline)) != 0)
		return -1;
	if (pass(deadline, timeout_ms) != 0 || catch_up(deadline) != 0 || margay_in_answered(margay_in_left(deadline)) != 0)
		return abandon();
	return 0;
}

int margay_barrier(int timeout_ms) { return synchronise(timeout_ms) != 0 ? -1 : margay_in_refused(); }

int margay_finalize(int timeout_ms)
{
	int64_t deadline = timeout_ms < 0 ? -1 : now_ns() + timeout_ms * 1000000LL;
	if (no_job() != 0 || margay_in_settle_commits(timeout_ms) != 0 || synchronise(margay_in_left(deadline)) != 0 || margay_upcalls(0) != 0)
		return -1;
	self.finalized = 1;
	return margay_in_refused();
}

/* A message that waits for room. */
struct posted {
	int rank;
	int handler;
	size_t length;
};

/* ring_wait announces that this side waits for room in the send ring, and reports whether there is
 * room for a payload of a length. */
static int ring_wait(size_t length)
{
	_Atomic uint32_t *waiting = word32(WIRE_SEND_CONTROL + WIRE_PRODUCER_WAITING);
	atomic_store(waiting, 1);
	if (send_room() < 2 * record_length(length)) /* with the largest pad that may come before it */
		return 0;
	atomic_store(waiting, 0);
	return 1;
}

/* has_room announces that this side waits for room for a message, and reports whether there is
 * room. */
static int has_room(int n, uint64_t arg)
{
	const struct posted *m = (const struct posted *)(uintptr_t)arg;
	(void)n;
	if (takes_channel(self.to[m->rank], m->handler))
		return channel_wait(self.to[m->rank], m->length);
	return ring_wait(m->length);
}

int margay_in_room(int rank, int handler, size_t length)
{
	struct posted m = {rank, handler, length};
	int was = mask(), room = has_room(0, (uintptr_t)&m);
	unmask(was);
	return room;
}

/* takes_channel_long is takes_channel for the next piece of a long message. Behind one that has
 * passed the node kernel all do: its extensions may have kept the first one from the rank. */
static int takes_channel_long(const struct long_message *m) { return !m->passes && takes_channel(self.to[m->rank], WIRE_HANDLER_PIECE); }

/* is_calm reports whether messages to a rank of another node take a mirrored channel, or could not
 * take one even if those that passed the node kernels were settled. */
static int is_calm(int n, uint64_t arg)
{
	struct channel *c = (struct channel *)(uintptr_t)arg;
	(void)n;
	return !may_pass_by(c) || takes_channel(c, WIRE_HANDLER_PIECE);
}

/* calm_down waits a moment, at most until a deadline, until the messages to a rank of another node
 * that passed the node kernels are settled. Otherwise a rank that sends without a pause would send
 * through them forever. */
static void calm_down(int rank, int64_t deadline)
{
	struct channel *c = self.to[rank];
	int left = margay_in_left(deadline);
	char before[sizeof self.error];
	int was = mask(), calm = !c || c->local >= 0 || is_calm(0, (uintptr_t)c) || (c->hasty && c->hasty--);
	unmask(was);
	if (calm)
		return;
	memcpy(before, self.error, sizeof before);
	if (wait_until(is_calm, (uintptr_t)c, left >= 0 && left < CALM_MS ? left : CALM_MS) < 0) {
		memcpy(self.error, before, sizeof before); /* the call has not failed */
		c->hasty = HASTY;
	}
}

/* push_long sends some pieces of a long message, and reports whether there was room for any. */
static int push_long(struct long_message *m)
{
	static char first[WIRE_CHANNEL_PAYLOAD];
	size_t begin = m->sent;
	int sent = 1, was = mask();
	struct channel *c = self.to[m->rank];
	int direct = takes_channel_long(m);
	while (sent > 0 && m->sent < m->length && m->sent - begin < BATCH && direct == takes_channel_long(m)) {
		struct piece p = piece_next(m, direct ? c->limit : MARGAY_MAX_PAYLOAD, first);
		sent = direct ? channel_put(c, WIRE_HANDLER_PIECE, p.args[0], p.args[1], p.payload, p.length)
			      : put(m->rank, WIRE_HANDLER_PIECE, p.args[0], p.args[1], p.payload, p.length);
		if (sent > 0) {
			m->sent += p.data;
			m->passes = !direct;
		}
		if (sent > 0 && direct && c->local >= 0)
			wake_local(c->local);
	}
	if (direct && c->local < 0 && m->sent > begin) {
		self.fars[c->rank]->spoken = c->position;
		transmit(self.fars[c->rank]);
	}
	unmask(was);
	if (sent < 0)
		return no_sense(c);
	return m->sent > begin;
}

/* long_room returns for how large a record a long message must wait for room, twice: for the next
 * piece, or where that is a datagram for a batch, because a train takes hardly longer. */
static size_t long_room(const struct long_message *m, const struct channel *c)
{
	size_t rest = m->length - m->sent, batch = rest < BATCH / 2 ? rest : BATCH / 2;
	return c->local < 0 && batch > c->limit ? batch : c->limit;
}

/* has_long_room is has_room for the next pieces of a long message. */
static int has_long_room(int n, uint64_t arg)
{
	const struct long_message *m = (const struct long_message *)(uintptr_t)arg;
	struct channel *c = self.to[m->rank];
	(void)n;
	return takes_channel_long(m) ? channel_wait(c, long_room(m, c)) : ring_wait(MARGAY_MAX_PAYLOAD);
}

/* send_long sends a message in pieces. */
static int send_long(struct long_message *m)
{
	calm_down(m->rank, -1);
	while (m->sent < m->length) {
		int sent = push_long(m);
		if (sent < 0 || (sent == 0 && wait_until(has_long_room, (uintptr_t)m, -1) < 0))
			return -1;
	}
	return 0;
}

int margay_send(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length)
{
	if (check(rank, handler, length, MARGAY_MAX_MESSAGE) != 0)
		return -1;
	if (length <= MARGAY_MAX_PAYLOAD)
		return margay_in_send(rank, handler, arg0, arg1, payload, length, -1);
	if (self.running > 0 || self.sending)
		return fail("a message of %zu bytes cannot be sent by a handler, or while another one is", length);
	struct long_message m = {.rank = rank, .handler = handler, .number = ++self.numbered, .args = {arg0, arg1}, .payload = payload, .length = length};
	self.sending = &m;
	int err = send_long(&m);
	self.sending = NULL;
	return err;
}

int margay_in_send(int rank, int handler, uint64_t arg0, uint64_t arg1, const void *payload, size_t length, int64_t deadline)
{
	for (;;) {
		int sent = margay_in_post(rank, handler, arg0, arg1, payload, length);
		if (sent != 0)
			return sent < 0 ? -1 : 0;
		calm_down(rank, deadline);
		struct posted m = {rank, handler, length};
		if (wait_until(has_room, (uintptr_t)&m, margay_in_left(deadline)) < 0)
			return -1;
	}
}

int margay_in_left(int64_t deadline)
{
	if (deadline < 0)
		return -1;
	int64_t left = (deadline - now_ns() + 999999) / 1000000;
	return left <= 0 ? 0 : left > 1 << 30 ? 1 << 30 : (int)left;
}

int margay_in_handler(void) { return self.running > 0; }
