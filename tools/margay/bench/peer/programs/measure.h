/* measure.h: the common part of the programs that margay bench fabric compares.
 *
 * Each program is measure.c and one transport: margay.c, mpi.c or sockets.c. measure.c has main,
 * decides how often an operation is repeated, takes the times and prints them. A transport joins
 * the ranks and has a table of operations. An operation checks each result that it gets, so that
 * only equal work is compared.
 *
 * Standard output of rank 0 has three lines: "begin" and "end" around the measured repetitions, and
 * a report in JSON. A transport without the operation prints only the report. Times are in
 * nanoseconds. */
#ifndef MEASURE_H
#define MEASURE_H

#include <stddef.h>
#include <stdint.h>

/* An operation of a transport. */
struct operation {
	const char *name;
	/* run makes n repetitions. All ranks call it. Rank 0 calls lap after each repetition. */
	void (*run)(size_t bytes, int n);
	/* messages returns how many messages all ranks send in a repetition; NULL: one. */
	int (*messages)(size_t bytes);
	int ranks;         /* number of ranks that it is for; 0: any */
	size_t most;       /* bytes of a message at most; 0: any number */
	const char *limit; /* why not more */
};

/* ---- A transport ---- */

/* The operations, known after join. The last one has no name. */
extern const struct operation *operations;

/* join connects the ranks. It returns the number of arguments after the program's name that were
 * for the transport. */
int join(int argc, char **argv);
void leave(void);
int my_rank(void);
int all_ranks(void);

/* meet is a barrier of all ranks. */
void meet(void);

/* agree returns rank 0's value on every rank. */
uint64_t agree(uint64_t value);

/* collect returns the values of all ranks in all[], on rank 0. Ranks agree before they collect
 * again. */
void collect(uint64_t value, uint64_t *all);

/* ---- measure.c ---- */

enum { MOST_RANKS = 64 };

/* Messages of one repetition to one target: at most LONG_TRAIN, see train. EACH is for all to all.
 */
enum { LONG_TRAIN = 1000, EACH = 20 };

/* lap records the end of a repetition. */
void lap(void);

/* train returns how many messages of so many bytes one repetition of rate sends. */
int train(size_t bytes);

/* all_to_all returns how many messages one repetition of alltoall sends. */
int all_to_all(size_t bytes);

/* barrier is the operation that repeats meet. While the program warms up it checks that no rank
 * leaves before all have entered, which takes one clock for all ranks. */
void barrier(size_t bytes, int n);

/* buffer returns memory with the contents of messages of so many bytes. It is made on the first
 * call with this place: a process measures one operation of one size, and keeps its buffers. */
unsigned char *buffer(unsigned char **place, size_t bytes);

/* stamp makes a message number n: its first and its last word (or bytes). */
void stamp(void *message, size_t bytes, uint64_t n);

/* expect ends the program unless a message is number n. While the program warms up it compares all
 * bytes, later the first and the last word. */
void expect(const void *message, size_t bytes, uint64_t n);

/* must ends the program unless a result is as expected. */
void must(int right, const char *what);

#endif
