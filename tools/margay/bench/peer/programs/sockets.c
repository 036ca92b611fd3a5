/* The transport of plain sockets between two processes: the least that Linux asks for a message.
 *
 *	sockets udp|tcp poll|block listen ADDRESS OPERATION BYTES MILLISECONDS
 *	sockets udp|tcp poll|block connect ADDRESS:PORT OPERATION BYTES MILLISECONDS
 *
 * The process that listens is rank 1, and prints its port first. With poll a process that waits
 * calls Linux again and again, with block it sleeps there. UDP has no flow control here but an
 * acknowledgement of each WINDOW messages, and a lost datagram ends the measurement. */
#include <arpa/inet.h>
#include <err.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "measure.h"

enum { WINDOW = 64 };

static int stream, flags, rank, fd;
static unsigned char *memory;

/* ---- Messages ---- */

static int again(void) { return errno == EAGAIN || errno == EINTR; }

static void send_all(const void *message, size_t bytes)
{
	const char *at = message;
	while (bytes > 0) {
		ssize_t n = send(fd, at, bytes, flags);
		if (n < 0 && !again())
			err(1, "send");
		if (n > 0) {
			at += n;
			bytes -= n;
		}
	}
}

/* receive_all receives a message of so many bytes. */
static void receive_all(void *message, size_t bytes)
{
	char *at = message;
	while (bytes > 0) {
		ssize_t n = recv(fd, at, bytes, flags | (stream ? 0 : MSG_TRUNC));
		if (n < 0 && again())
			continue;
		if (n < 0)
			err(1, "receive");
		must(n > 0 && (stream || (size_t)n == bytes), "the length of a message");
		at += n;
		bytes -= n;
	}
}

static void roundtrip(size_t bytes, int n)
{
	unsigned char *message = buffer(&memory, bytes);
	for (int i = 0; i < n; i++) {
		if (rank == 0) {
			stamp(message, bytes, i);
			send_all(message, bytes);
			receive_all(message, bytes);
			expect(message, bytes, i);
			lap();
		} else {
			receive_all(message, bytes);
			expect(message, bytes, i);
			send_all(message, bytes);
		}
	}
}

/* acknowledge sends or receives the number of messages so far. */
static void acknowledge(uint64_t n)
{
	uint64_t number = n;
	if (rank == 1) {
		send_all(&number, sizeof number);
		return;
	}
	receive_all(&number, sizeof number);
	must(number == n, "the number of an acknowledgement");
}

static void rate(size_t bytes, int n)
{
	unsigned char *message = buffer(&memory, bytes);
	int length = train(bytes);
	uint64_t number = 0;
	for (int i = 0; i < n; i++) {
		for (int j = 1; j <= length; j++, number++) {
			if (rank == 0) {
				stamp(message, bytes, number);
				send_all(message, bytes);
			} else {
				receive_all(message, bytes);
				expect(message, bytes, number);
			}
			if (j == length || (!stream && j % WINDOW == 0))
				acknowledge(number);
		}
		if (rank == 0)
			lap();
	}
}

#define LIMIT 65507, "a datagram holds 65,507 bytes"

static const struct operation udp[] = {
	{"roundtrip", roundtrip, NULL, 2, LIMIT},
	{"rate", rate, train, 2, LIMIT},
	{"barrier", barrier, NULL, 0, 0, NULL},
	{NULL, NULL, NULL, 0, 0, NULL},
}, tcp[] = {
	{"roundtrip", roundtrip, NULL, 2, 0, NULL},
	{"rate", rate, train, 2, 0, NULL},
	{"barrier", barrier, NULL, 0, 0, NULL},
	{NULL, NULL, NULL, 0, 0, NULL},
};

const struct operation *operations;

/* ---- The transport ---- */

/* address reads ADDRESS or ADDRESS:PORT. */
static struct sockaddr_in address(char *text)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	char *colon = strchr(text, ':');
	if (colon) {
		*colon = 0;
		a.sin_port = htons(atoi(colon + 1));
	}
	if (inet_pton(AF_INET, text, &a.sin_addr) != 1)
		errx(2, "%s is not an address", text);
	return a;
}

/* listen_at makes the socket of rank 1 and waits for rank 0. */
static void listen_at(struct sockaddr_in a)
{
	socklen_t length = sizeof a;
	if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || (stream && listen(fd, 1) != 0) ||
	    getsockname(fd, (struct sockaddr *)&a, &length) != 0)
		err(1, "listen");
	printf("%d\n", ntohs(a.sin_port));
	fflush(stdout);
	if (stream) {
		if ((fd = accept(fd, NULL, NULL)) < 0)
			err(1, "accept");
		return;
	}
	char hello;
	length = sizeof a;
	if (recvfrom(fd, &hello, 1, 0, (struct sockaddr *)&a, &length) != 1 || connect(fd, (struct sockaddr *)&a, length) != 0)
		err(1, "receive the first datagram");
}

int join(int argc, char **argv)
{
	if (argc < 4)
		errx(2, "it takes udp|tcp poll|block listen|connect ADDRESS[:PORT]");
	stream = strcmp(argv[0], "tcp") == 0;
	operations = stream ? tcp : udp;
	rank = strcmp(argv[2], "listen") == 0;
	struct sockaddr_in a = address(argv[3]);
	if ((fd = socket(AF_INET, stream ? SOCK_STREAM : SOCK_DGRAM, 0)) < 0)
		err(1, "socket");
	if (rank == 1)
		listen_at(a);
	else if (connect(fd, (struct sockaddr *)&a, sizeof a) != 0 || (!stream && send(fd, "", 1, 0) != 1))
		err(1, "connect");
	if (stream && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)) != 0)
		err(1, "TCP_NODELAY");
	flags = MSG_NOSIGNAL | (strcmp(argv[1], "poll") == 0 ? MSG_DONTWAIT : 0);
	return 4;
}

void meet(void)
{
	char byte = 0;
	send_all(&byte, 1);
	receive_all(&byte, 1);
}

void leave(void) { close(fd); }
int my_rank(void) { return rank; }
int all_ranks(void) { return 2; }

uint64_t agree(uint64_t value)
{
	if (rank == 0)
		send_all(&value, sizeof value);
	else
		receive_all(&value, sizeof value);
	return value;
}

void collect(uint64_t value, uint64_t *all)
{
	if (rank == 1) {
		send_all(&value, sizeof value);
		return;
	}
	all[0] = value;
	receive_all(&all[1], sizeof all[1]);
}
