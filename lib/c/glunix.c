/* The library of GLUnix: outside of jobs by the command margay, in ranks by libmargay. */
#define _GNU_SOURCE

#include "glunix.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "margay.h"

extern char **environ;

enum { NUMBER = 16 }; /* bytes of a number as text, more than enough */

enum { JOB_FD = 3 }; /* descriptor to which margay run writes the number of its job */

/* A job that this process has spawned and not waited for. */
struct job {
	Npid npid;
	pid_t run; /* its margay run */
	struct job *next;
};

static struct {
	int ready, rank; /* initialized, as a rank of a job */
	struct job *jobs;
	char error[512];
} self;

const char *Glib_Error(void) { return self.error; }

static int fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vsnprintf(self.error, sizeof self.error, format, args);
	va_end(args);
	return -1;
}

/* ready_as fails unless this process is initialized, as a rank or not. */
static int ready_as(int rank, const char *what)
{
	if (!self.ready)
		return fail("Glib_Initialize has not been called, or has failed");
	if (self.rank == rank)
		return 0;
	if (rank)
		return fail("%s: this process is not a rank of a job", what);
	return fail("%s: a rank cannot do that: nodes give programs on them no connection to serve", what);
}

/* start starts a margay without standard input. A descriptor of this process is as there, unless it
 * is -1. */
static pid_t start(char *const argv[], int descriptor, int as)
{
	posix_spawn_file_actions_t actions;
	pid_t pid;
	int error = posix_spawn_file_actions_init(&actions);
	if (error)
		return fail("start margay: %s", strerror(error));
	error = posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (!error && descriptor >= 0)
		error = posix_spawn_file_actions_adddup2(&actions, descriptor, as);
	if (!error)
		error = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
	posix_spawn_file_actions_destroy(&actions);
	return error ? fail("start %s: %s", argv[0], strerror(error)) : pid;
}

/* await waits for a margay and returns its exit status, as a shell shows it. */
static int await(pid_t pid)
{
	int status;
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			return fail("wait for margay: %s", strerror(errno));
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* is_up fails if the machine is not up. */
static int is_up(void)
{
	int nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
	if (nowhere < 0)
		return fail("/dev/null: %s", strerror(errno));
	pid_t pid = start((char *const[]){"margay", "machine", "status", NULL}, nowhere, STDOUT_FILENO);
	close(nowhere);
	int status = pid < 0 ? -1 : await(pid);
	return status > 0 ? fail("the machine is not up: margay machine status ended with status %d", status) : status;
}

int Glib_Initialize(void)
{
	if (self.ready)
		return 0;
	self.rank = getenv("MARGAY_RANK") != NULL;
	if (!self.rank && is_up() != 0)
		return -1;
	if (self.rank && margay_init() != 0)
		return fail("%s", margay_error());
	self.ready = 1;
	return 0;
}

/* keep remembers a job until it is waited for. */
static Npid keep(Npid npid, pid_t run)
{
	struct job *j = malloc(sizeof *j);
	if (!j)
		return fail("no memory for job %d", npid);
	*j = (struct job){npid, run, self.jobs};
	self.jobs = j;
	return npid;
}

/* spawn starts a margay run with a flag and its value. */
static Npid spawn(const char *flag, int value, const char *program, char *const argv[])
{
	char number[NUMBER];
	size_t args = 0;
	while (argv && argv[args])
		args++;
	const char **line = calloc(args + 16, sizeof *line);
	int ends[2];
	if (!line)
		return fail("no memory for %zu arguments", args);
	if (pipe2(ends, O_CLOEXEC) != 0) {
		free(line);
		return fail("pipe: %s", strerror(errno));
	}
	snprintf(number, sizeof number, "%d", value);
	size_t n = 0;
	for (const char *const *word = (const char *const[]){"margay", "run", "--stdin", "none", "--job-file", "/dev/fd/3", flag, number, "--", program, NULL}; *word; word++)
		line[n++] = *word;
	for (size_t i = 1; i < args; i++)
		line[n++] = argv[i];
	pid_t run = start((char *const *)line, ends[1], JOB_FD);
	free(line);
	close(ends[1]);
	/* The number is written at once, or the pipe ends with margay run. */
	ssize_t got = 0;
	char text[NUMBER + 1] = "";
	if (run >= 0)
		while ((got = read(ends[0], text, NUMBER)) < 0 && errno == EINTR)
			;
	close(ends[0]);
	if (run < 0)
		return -1;
	Npid npid = got > 0 ? atoi(text) : 0;
	if (npid > 0)
		return keep(npid, run);
	int status = await(run);
	return status < 0 ? -1 : fail("%s could not be started: margay run ended with status %d", program, status);
}

Npid Glib_Spawn(int numNodes, const char *progPath, char *const argv[])
{
	if (ready_as(0, "Glib_Spawn") != 0)
		return -1;
	if (numNodes < 1)
		return fail("Glib_Spawn: a job on %d nodes", numNodes);
	return spawn("-N", numNodes, progPath, argv);
}

Npid Glib_CoSpawn(Npid npid, const char *progPath, char *const argv[])
{
	if (ready_as(0, "Glib_CoSpawn") != 0)
		return -1;
	return spawn("--beside", npid, progPath, argv);
}

int Glib_Wait(Npid npid, int *status)
{
	if (ready_as(0, "Glib_Wait") != 0)
		return -1;
	for (struct job **at = &self.jobs; *at; at = &(*at)->next) {
		struct job *j = *at;
		if (j->npid != npid)
			continue;
		int ended = await(j->run);
		*at = j->next;
		free(j);
		if (ended < 0)
			return -1;
		if (status)
			*status = ended;
		return 0;
	}
	return fail("Glib_Wait: this process has no job %d, or has waited for it", npid);
}

Npid Glib_GetMyNpid(void) { return ready_as(1, "Glib_GetMyNpid") != 0 ? -1 : margay_job(); }

VNN Glib_GetMyVNN(void) { return ready_as(1, "Glib_GetMyVNN") != 0 ? -1 : margay_rank(); }

int Glib_Signal(Npid npid, VNN vnn, int sig)
{
	char job[NUMBER], rank[NUMBER], number[NUMBER];
	if (ready_as(0, "Glib_Signal") != 0)
		return -1;
	if (vnn < GLIB_ALL_VNNS)
		return fail("Glib_Signal: there is no rank %d", vnn);
	snprintf(job, sizeof job, "%d", npid);
	snprintf(rank, sizeof rank, "%d", vnn);
	snprintf(number, sizeof number, "%d", sig);
	char *line[] = {"margay", "kill", "-s", number, "--", job, NULL, NULL, NULL};
	if (vnn != GLIB_ALL_VNNS)
		memcpy(line + 4, (char *[]){"--rank", rank, "--", job}, 4 * sizeof *line);
	pid_t pid = start(line, -1, -1);
	int status = pid < 0 ? -1 : await(pid);
	if (status > 0)
		return fail("Glib_Signal: margay kill ended with status %d", status);
	return status;
}

int Glib_Finalize(void)
{
	if (ready_as(1, "Glib_Finalize") != 0)
		return -1;
	return margay_finalize(-1) == 0 ? 0 : fail("%s", margay_error());
}

int Glib_Barrier(void)
{
	if (ready_as(1, "Glib_Barrier") != 0)
		return -1;
	return margay_barrier(-1) == 0 ? 0 : fail("%s", margay_error());
}
