/* glunix.h: the library of GLUnix, by the names of its paper (Ghormley et al., "GLUnix: A Global
 * Layer Unix for a Network of Workstations"). Link with libmargay.a.
 *
 *	if (Glib_Initialize() != 0)
 *		errx(1, "%s", Glib_Error());
 *	Npid job = Glib_Spawn(8, "./worker", argv);
 *	Glib_Signal(job, GLIB_ALL_VNNS, SIGUSR1);
 *	Glib_Wait(job, &status);
 *
 * A program outside of a job can spawn, signal and wait: it starts the command margay, by PATH, for
 * each of these, on the machine that MARGAY_MACHINE names. A job is a child of the program, which
 * is a margay run: it writes the output of the ranks to the program's standard output and standard
 * error, and it passes on signals that it gets, such as Ctrl-C at the terminal of both. Like other
 * children, the jobs go on when the program ends.
 *
 * A rank of a job can get its numbers and enter barriers. It cannot spawn or signal: a node gives
 * programs on it no connection to serve. Glib_Initialize makes the rank take part in its job's
 * messages (margay_init), so all ranks of the job must call it, or none.
 *
 * Functions return -1 when they fail, and Glib_Error says why. They are not safe for use by several
 * threads at a time. */
#ifndef GLUNIX_H
#define GLUNIX_H

#ifdef __cplusplus
extern "C" {
#endif

typedef int Npid; /* a job: network process identifier */
typedef int VNN;  /* a rank: virtual node number */

#define GLIB_ALL_VNNS ((VNN)-1)

/* Glib_Initialize must be called before the other functions. In a program outside of a job it asks
 * whether the machine is up, and fails if it is not. */
int Glib_Initialize(void);

/* Glib_Spawn starts a job of one rank on each of numNodes nodes and returns its number when they
 * run. progPath is looked for as a shell does. argv are the arguments, the name of the program
 * first, and end with NULL; NULL for none. The ranks have no standard input. It does not wait for
 * free cores. */
Npid Glib_Spawn(int numNodes, const char *progPath, char *const argv[]);

/* Glib_CoSpawn is Glib_Spawn with one rank on each node of a running job, such as for a debugger.
 * It fails if there is no free core on one of them: jobs do not share cores. */
Npid Glib_CoSpawn(Npid npid, const char *progPath, char *const argv[]);

/* Glib_Wait waits until a job that this process has spawned has ended, and stores its exit status:
 * 0 if all ranks have exited with 0, else as margay run has it. Each job can be waited for once. A
 * program that waits for any child (waitpid with -1) can take it away from Glib_Wait. */
int Glib_Wait(Npid npid, int *status);

/* The job and the rank of this process. They fail outside of a job. */
Npid Glib_GetMyNpid(void);
VNN Glib_GetMyVNN(void);

/* Glib_Signal sends a signal to a rank of a job, or to GLIB_ALL_VNNS. Any job of the machine can be
 * signalled. */
int Glib_Signal(Npid npid, VNN vnn, int sig);

/* Glib_Barrier waits until all ranks of this job have called it as often as this one. If a rank
 * ends without that, the job ends. */
int Glib_Barrier(void);

/* Glib_Finalize ends this rank's part in the barriers of its job. It waits for all ranks, like a
 * last barrier. A rank that exits without it may leave others in the barrier before. The paper has
 * no such function. */
int Glib_Finalize(void);

/* Glib_Error returns a description of the last error. What the command margay says itself is on
 * standard error. */
const char *Glib_Error(void);

#ifdef __cplusplus
}
#endif

#endif
