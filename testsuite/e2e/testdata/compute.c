/* compute computes for some seconds, or until SIGTERM, without asking the system for anything. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	struct timespec start, now;
	unsigned long long sum = 0, i = 0;

	signal(SIGTERM, end);
	puts("computing");
	fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		for (int k = 0; k < 1000000; k++)
			sum = sum * 6364136223846793005ull + ++i;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (!ended && now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
	printf("computed %llu\n", sum);
	return 0;
}
