/* Each rank of MPI names itself and its node.
 *
 *	mpicc.mpich -O2 examples/mpi/hello.c -o bin/mpi-hello
 *	margay run -n 4 bin/mpi-hello
 */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	char host[MPI_MAX_PROCESSOR_NAME];
	int rank, size, length;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Get_processor_name(host, &length);
	printf("hello from rank %d of %d on %s\n", rank, size, host);
	fflush(stdout); /* MPICH 4.0 may hang in MPI_Finalize (docs/mpi.md) */
	MPI_Finalize();
	return 0;
}
