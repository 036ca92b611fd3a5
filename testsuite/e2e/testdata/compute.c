/* compute computes for some seconds without asking the system for anything. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
	double seconds = argc > 1 ? atof(argv[1]) : 1;
	struct timespec start, now;
	unsigned long long sum = 0, i = 0;

	puts("computing");
	fflush(stdout);
	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		for (int k = 0; k < 1000000; k++)
			sum = sum * 6364136223846793005ull + ++i;
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while (now.tv_sec - start.tv_sec + (now.tv_nsec - start.tv_nsec) / 1e9 < seconds);
	printf("computed %llu\n", sum);
	return 0;
}
