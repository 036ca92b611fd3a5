/* Upcalls in the middle of what a program can do: upcall MODE N, for N upcalls in modes that count them. Each mode ends with a line
 * that says how many came and the sum of their first arguments. */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include "margay.h"

enum { PLAIN = 1, WRITES, OPENS, STOPS, DIVES, OVER_THE_MACHINE = 200 };

static volatile uint64_t count, sum;
static volatile int running, deepest, stopped, pipe_end;
static pthread_t computing;

static void check(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
}

/* die is errx for handlers. */
static void die(const char *why)
{
	if (write(2, why, strlen(why)) < 0)
		_exit(2);
	_exit(1);
}

/* spoil changes everything that a handler may change. */
static void spoil(void)
{
	errno = EXDEV;
#ifdef __x86_64__
	_mm_setcsr(_mm_getcsr() ^ 0x6000); /* another rounding */
	__asm__ volatile("fninit; fldz; fldpi; std; cld" ::: "memory");
	__asm__ volatile("pcmpeqd %%xmm0, %%xmm0; movdqa %%xmm0, %%xmm1; movdqa %%xmm0, %%xmm7; movdqa %%xmm0, %%xmm15" ::
			     : "xmm0", "xmm1", "xmm7", "xmm15");
	if (__builtin_cpu_supports("avx2"))
		__asm__ volatile("vpcmpeqd %%ymm0, %%ymm0, %%ymm0; vmovdqa %%ymm0, %%ymm1; vmovdqa %%ymm0, %%ymm7; vmovdqa %%ymm0, %%ymm15" ::
				     : "xmm0", "xmm1", "xmm7", "xmm15");
	if (__builtin_cpu_supports("avx512f"))
		__asm__ volatile("vpternlogd $255, %%zmm0, %%zmm0, %%zmm0; vmovdqa64 %%zmm0, %%zmm1; vmovdqa64 %%zmm0, %%zmm15;"
				 "vmovdqa64 %%zmm0, %%zmm31; kxnorw %%k1, %%k1, %%k1; kxnorw %%k2, %%k2, %%k2" ::
				     : "xmm0", "xmm1", "xmm15");
#endif
}

static void on_upcall(const struct margay_am *m, void *data)
{
	(void)data;
	int opens = m->handler == OPENS || m->handler == DIVES;
	if (running && !deepest)
		die("a handler interrupts another that has not allowed it\n");
	if (!pthread_equal(pthread_self(), computing))
		die("an upcall interrupts another thread\n");
	running++;
	spoil();
	count++;
	sum += m->args[0];
	if (m->handler == WRITES && write(pipe_end, "x", 1) != 1)
		die("write fails\n");
	if (opens) {
		deepest = running > deepest ? running : deepest;
		margay_mask(0);
	}
	while (m->handler == OPENS && !stopped)
		;
	if (m->handler == STOPS)
		stopped = 1;
	running--;
}

/* ---- What is interrupted ---- */

#define ROUNDS 4000

static uint64_t mix(uint64_t h, uint64_t v) { return (h ^ v) * 0x9e3779b97f4a7c15u; }

static uint64_t mix_bytes(const void *bytes, size_t n)
{
	uint64_t h = n, v;
	for (size_t i = 0; i + 8 <= n; i += 8) {
		memcpy(&v, (const char *)bytes + i, 8);
		h = mix(h, v);
	}
	return h;
}

/* floats computes with a rounding of its own, in the unit for vectors and, on x86, in that of the 8087. */
static uint64_t floats(void)
{
	double d[4] = {1, 2, 3, 4};
	long double l = 1;
	fesetround(FE_UPWARD);
	for (volatile int i = 0; i < ROUNDS; i++) {
		for (int j = 0; j < 4; j++)
			d[j] = sqrt(d[j] * 1.1 + 1.0 / 3);
		l = sqrtl(l * 1.1L + 1.0L / 3);
	}
	if (fegetround() != FE_UPWARD)
		errx(1, "the rounding was changed");
	fesetround(FE_TONEAREST);
	d[0] += (double)(l * 1e6L);
	return mix_bytes(d, sizeof d);
}

#ifdef __x86_64__
__attribute__((target("avx2"))) static uint64_t avx2(void)
{
	__m256i a = _mm256_set1_epi32(1), b = _mm256_set1_epi32(2), c = _mm256_set1_epi32(3), d = _mm256_set1_epi32(4);
	__m256d f = _mm256_set1_pd(1.5), g = _mm256_set1_pd(0.7);
	const __m256i k = _mm256_setr_epi32(3, 5, 7, 11, 13, 17, 19, 23);
	for (int i = 0; i < ROUNDS; i++) {
		a = _mm256_add_epi32(_mm256_mullo_epi32(a, k), b);
		b = _mm256_xor_si256(b, _mm256_slli_epi32(a, 7));
		c = _mm256_add_epi32(_mm256_mullo_epi32(c, k), d);
		d = _mm256_xor_si256(d, _mm256_srli_epi32(c, 3));
		f = _mm256_sqrt_pd(_mm256_add_pd(_mm256_mul_pd(f, g), _mm256_set1_pd(1.0 / 3)));
		g = _mm256_div_pd(_mm256_add_pd(f, _mm256_set1_pd(2)), _mm256_set1_pd(3));
	}
	char out[192];
	_mm256_storeu_si256((void *)out, _mm256_add_epi32(a, b));
	_mm256_storeu_si256((void *)(out + 32), _mm256_add_epi32(c, d));
	_mm256_storeu_pd((void *)(out + 64), f);
	_mm256_storeu_pd((void *)(out + 96), g);
	return mix_bytes(out, 128);
}

__attribute__((target("avx512f"))) static uint64_t avx512(void)
{
	__m512i v[20];
	__mmask16 mask = 0x5aa5;
	const __m512i k = _mm512_set_epi32(3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59);
	for (int j = 0; j < 20; j++)
		v[j] = _mm512_set1_epi32(j + 1);
	for (int i = 0; i < ROUNDS / 4; i++) {
		for (int j = 0; j < 20; j++) {
			v[j] = _mm512_add_epi32(_mm512_mullo_epi32(v[j], k), v[(j + 7) % 20]);
			v[j] = _mm512_mask_xor_epi32(v[j], mask, v[j], v[(j + 1) % 20]);
		}
		mask ^= _mm512_cmplt_epu32_mask(v[3], v[4]);
	}
	return mix_bytes(v, sizeof v) ^ mask;
}
#endif

/* vectors computes with all that this processor has; the names of that go to what, unless it is NULL. */
static uint64_t vectors(char *what)
{
	uint64_t h = floats();
	if (what)
		strcpy(what, "floating point");
#ifdef __x86_64__
	if (__builtin_cpu_supports("avx2")) {
		h = mix(h, avx2());
		if (what)
			strcat(what, ", AVX2");
	}
	if (__builtin_cpu_supports("avx512f")) {
		h = mix(h, avx512());
		if (what)
			strcat(what, ", AVX-512");
	}
#endif
	return h;
}

/* blocks takes and gives back memory, and looks whether it stays as it was. */
static uint64_t blocks(void)
{
	enum { N = 64 };
	static unsigned char *block[N];
	size_t size[N];
	uint64_t h = 1;
	memset(block, 0, sizeof block);
	for (int i = 0; i < ROUNDS; i++) {
		h = mix(h, i);
		int at = h >> 58;
		if (block[at]) {
			for (size_t j = 0; j < size[at]; j++)
				if (block[at][j] != (unsigned char)at)
					errx(1, "memory from malloc was changed");
			free(block[at]);
			block[at] = NULL;
			continue;
		}
		size[at] = h >> 20 & 511;
		if (!(block[at] = malloc(size[at] + 1)))
			err(1, "malloc");
		memset(block[at], at, size[at]);
		h += size[at];
	}
	for (int i = 0; i < N; i++)
		free(block[i]);
	return h;
}

static volatile int end;

static void *other_thread(void *data)
{
	while (!end)
		usleep(1000);
	return data;
}

/* until computes until n upcalls have come, and holds each result to one that was computed alone. */
static void until(uint64_t n, int with_vectors, int with_blocks)
{
	char what[100] = "";
	uint64_t alone_vectors = vectors(what), alone_blocks = blocks(), rounds = 0;
	pthread_t other;
	if (pthread_create(&other, NULL, other_thread, NULL) != 0)
		errx(1, "no thread");
	check(margay_upcalls(1));
	errno = EDOM;
	while (count < n) {
		if (with_vectors && vectors(NULL) != alone_vectors)
			errx(1, "a result was changed in round %llu, after %llu upcalls", (unsigned long long)rounds, (unsigned long long)count);
		if (errno != EDOM)
			errx(1, "errno was changed");
		if (with_blocks && blocks() != alone_blocks)
			errx(1, "malloc gave something else");
		rounds++;
	}
	end = 1;
	pthread_join(other, NULL);
	if (with_vectors)
		printf("%s; ", what);
}

/* ---- Modes ---- */

/* restart: a read is gone on with, a nanosleep is not. */
static void restart(void)
{
	int ends[2];
	char c;
	struct timespec long_time = {20, 0};
	if (pipe(ends) != 0)
		err(1, "pipe");
	pipe_end = ends[1];
	check(margay_upcalls(1));
	if (read(ends[0], &c, 1) != 1) /* until the one of several upcalls that writes */
		err(1, "read");
	while (nanosleep(&long_time, NULL) == 0)
		errx(1, "nanosleep was gone on with");
	if (errno != EINTR)
		err(1, "nanosleep");
}

/* rendezvous waits for the node kernel of the test. */
static void rendezvous(void)
{
	if (!margay_region("rendezvous", 4096, NULL))
		errx(1, "%s", margay_error());
}

static void expect(uint64_t n, const char *when)
{
	if (count != n)
		errx(1, "%llu upcalls have come %s, not %llu", (unsigned long long)count, when, (unsigned long long)n);
}

static void masks(void)
{
	check(margay_upcalls(1));
	rendezvous(); /* 1 */
	expect(1, "when none is masked");
	if (margay_mask(1) != 0)
		errx(1, "upcalls were masked");
	rendezvous(); /* 10 */
	expect(1, "while they are masked");
	if (margay_mask(1) != 1)
		errx(1, "upcalls were not masked");
	margay_mask(0);
	expect(11, "after that");
	rendezvous(); /* 1 */
	expect(12, "when none is masked any more");
	margay_mask(1);
	rendezvous(); /* 5 */
	if (margay_poll() != 5)
		errx(1, "polling does not take what is masked");
	expect(17, "by polling");
	if (margay_mask(0) != 1)
		errx(1, "polling has changed the mask");
	check(margay_upcalls(0));
	rendezvous(); /* 3 */
	expect(17, "without margay_upcalls");
	struct sigaction action;
	if (sigaction(SIGURG, NULL, &action) != 0 || action.sa_handler != SIG_DFL)
		errx(1, "the signal is still handled");
	check(margay_upcalls(1));
	expect(20, "with the call of margay_upcalls");
	rendezvous(); /* 2 */
	expect(22, "with margay_upcalls again");
}

static int all_came(void *n) { return count >= *(uint64_t *)n; }

/* waits: one that waits in the library gets upcalls there. */
static void waits(uint64_t n)
{
	check(margay_upcalls(1));
	check(margay_wait_for(all_came, &n, 20000));
}

/* nests: a handler that allows it is interrupted, and no more than eight of them. */
static void nests(uint64_t n)
{
	check(margay_upcalls(1));
	while (!stopped) /* one handler waits for another */
		;
	while (count < n)
		;
	if (deepest < 2 || deepest > 8)
		errx(1, "%d handlers ran at a time", deepest);
}

/* job: rank 0 sends n upcalls to each other rank, which computes. The file holds an extension that makes them upcalls. */
static void job(uint64_t n, const char *file, int microseconds)
{
	static char object[1 << 16];
	FILE *f = fopen(file, "rb");
	size_t size = f ? fread(object, 1, sizeof object, f) : 0;
	if (margay_local_rank() == 0)
		check(margay_insert("upcall", NULL, object, size, NULL, 0));
	check(margay_barrier(-1));
	if (margay_rank() != 0) {
		until(n, 1, 1);
		return;
	}
	puts("sending");
	fflush(stdout);
	for (uint64_t i = 0; i < n; i++) {
		for (int rank = 1; rank < margay_size(); rank++)
			check(margay_send(rank, OVER_THE_MACHINE, i, 0, &i, sizeof i));
		if (microseconds)
			usleep(microseconds);
	}
}

int main(int argc, char **argv)
{
	if (argc < 3)
		errx(2, "usage: upcall MODE N [FILE MICROSECONDS]");
	const char *mode = argv[1];
	uint64_t n = atoll(argv[2]);
	computing = pthread_self();
	check(margay_init());
	for (int i = PLAIN; i <= DIVES; i++)
		check(margay_handle(i, on_upcall, NULL));
	check(margay_handle(OVER_THE_MACHINE, on_upcall, NULL));
	if (strcmp(mode, "vectors") == 0)
		until(n, 1, 0);
	else if (strcmp(mode, "malloc") == 0)
		until(n, 0, 1);
	else if (strcmp(mode, "all") == 0)
		until(n, 1, 1);
	else if (strcmp(mode, "restart") == 0)
		restart();
	else if (strcmp(mode, "mask") == 0)
		masks();
	else if (strcmp(mode, "wait") == 0)
		waits(n);
	else if (strcmp(mode, "nest") == 0)
		nests(n);
	else if (strcmp(mode, "job") == 0 && argc == 5)
		job(n, argv[3], atoi(argv[4]));
	else
		errx(2, "there is no mode %s", mode);
	check(margay_finalize(-1));
	printf("rank %d: %llu upcalls, sum %llu\n", margay_rank(), (unsigned long long)count, (unsigned long long)sum);
	return 0;
}
