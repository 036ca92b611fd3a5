/* The ranks of MPI compute pi, each a part of the sum, and pass a token around. The results do not
 * depend on where the ranks are.
 *
 *	mpicc.mpich -O2 examples/mpi/allreduce.c -o bin/mpi-allreduce
 *	margay run -n 4 bin/mpi-allreduce
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { STEPS = 1 << 20, WORDS = 1 << 16 };

/* pi integrates 4/(1+x^2) from 0 to 1. */
static double pi(int rank, int size)
{
	double part = 0, sum;

	for (int i = rank; i < STEPS; i += size) {
		double x = (i + 0.5) / STEPS;
		part += 4 / (1 + x * x);
	}
	MPI_Allreduce(&part, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	return sum / STEPS;
}

/* reduced adds up arrays that are too large for one packet, and returns a checksum. */
static long reduced(int rank)
{
	long *words = malloc(WORDS * sizeof *words), check = 0;

	if (words == NULL)
		MPI_Abort(MPI_COMM_WORLD, 1);
	for (int i = 0; i < WORDS; i++)
		words[i] = (long)rank * i;
	MPI_Allreduce(MPI_IN_PLACE, words, WORDS, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < WORDS; i++)
		check = check * 31 % 1000000007 + words[i];
	free(words);
	return check;
}

/* ring passes a token from rank to rank, and each adds its number. */
static int ring(int rank, int size)
{
	int token = 0;

	if (rank > 0)
		MPI_Recv(&token, 1, MPI_INT, rank - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	token += rank;
	MPI_Send(&token, 1, MPI_INT, (rank + 1) % size, 0, MPI_COMM_WORLD);
	if (rank == 0)
		MPI_Recv(&token, 1, MPI_INT, size - 1, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Bcast(&token, 1, MPI_INT, 0, MPI_COMM_WORLD);
	return token;
}

int main(int argc, char **argv)
{
	int rank, size;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	double sum = pi(rank, size);
	long check = reduced(rank);
	int token = size > 1 ? ring(rank, size) : 0;
	printf("rank %d of %d: pi %.9f, checksum %ld, token %d\n", rank, size, sum, check, token);
	fflush(stdout); /* MPICH 4.0 may hang in MPI_Finalize (docs/mpi.md) */
	MPI_Finalize();
	return 0;
}
