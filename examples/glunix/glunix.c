/* glunix runs itself as a job by the library of GLUnix, looks at it with a second job on the same
 * nodes, and ends it by a signal.
 *
 *	glunix */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <glunix.h>

/* look is the second job: each rank says where it is. */
static int look(void)
{
	printf("rank %d of job %d looks\n", Glib_GetMyVNN(), Glib_GetMyNpid());
	fflush(stdout);
	if (Glib_Barrier() != 0 || Glib_Finalize() != 0)
		errx(1, "%s", Glib_Error());
	return 0;
}

int main(int argc, char **argv)
{
	while (argc > 1 && strcmp(argv[1], "work") == 0)
		pause(); /* the first job: until the signal */
	if (Glib_Initialize() != 0)
		errx(1, "%s", Glib_Error());
	if (argc > 1)
		return look();
	int looked, worked;
	Npid work = Glib_Spawn(2, argv[0], (char *[]){"glunix", "work", NULL});
	if (work < 0)
		errx(1, "%s", Glib_Error());
	Npid tool = Glib_CoSpawn(work, argv[0], (char *[]){"glunix", "look", NULL});
	if (tool < 0)
		warnx("%s", Glib_Error()); /* the work must end nevertheless */
	else if (Glib_Wait(tool, &looked) == 0)
		printf("the looking has ended with status %d\n", looked);
	if (Glib_Signal(work, GLIB_ALL_VNNS, SIGKILL) != 0 || Glib_Wait(work, &worked) != 0)
		errx(1, "%s", Glib_Error());
	printf("the work has ended with status %d\n", worked);
	return tool < 0;
}
