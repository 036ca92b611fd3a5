/* Calls the library of GLUnix, and prints what comes of it. The library of ranks is played. */
#include <stdio.h>

#include "glunix.h"
#include "margay.h"

int margay_init(void) { return 0; }
int margay_job(void) { return 5; }
int margay_rank(void) { return 3; }
int margay_finalize(int timeout_ms) { return timeout_ms == -1 ? 0 : -1; }
int margay_barrier(int timeout_ms) { return timeout_ms == -1 ? -1 : 0; }
const char *margay_error(void) { return "the barrier is played"; }

#define SHOW(call)                                                         \
	do {                                                               \
		int n = (call);                                            \
		printf("%s: %d%s%s\n", #call, n, n < 0 ? ": " : "", n < 0 ? Glib_Error() : ""); \
	} while (0)

int main(void)
{
	int status = -1;
	SHOW(Glib_Spawn(1, "work", NULL));
	SHOW(Glib_Initialize());
	SHOW(Glib_Initialize()); /* once is enough, if it has succeeded */
	SHOW(Glib_Spawn(0, "work", NULL));
	SHOW(Glib_Spawn(3, "work", ((char *[]){"name", "-n", "a b", NULL})));
	SHOW(Glib_CoSpawn(17, "-look", NULL));
	SHOW(Glib_Spawn(1, "missing", NULL));
	SHOW(Glib_Spawn(1, "silent", NULL));
	SHOW(Glib_Signal(17, 2, 10));
	SHOW(Glib_Signal(17, GLIB_ALL_VNNS, 12));
	SHOW(Glib_Signal(99, 0, 12));
	SHOW(Glib_Signal(17, -2, 12));
	SHOW(Glib_Wait(17, &status));
	SHOW(status);
	SHOW(Glib_Wait(17, &status)); /* the other job of this number, which serve never gives twice */
	SHOW(status);
	SHOW(Glib_Wait(17, NULL));
	SHOW(Glib_GetMyNpid());
	SHOW(Glib_GetMyVNN());
	SHOW(Glib_Barrier());
	SHOW(Glib_Finalize());
}
