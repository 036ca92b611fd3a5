/* brief does nothing, or, when it is given the file of an extension, has all that a rank can have, and is killed with it. */
#include <err.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "margay.h"

static void must(int result)
{
	if (result < 0)
		errx(1, "%s", margay_error());
}

int main(int argc, char **argv)
{
	static char object[1 << 20];

	if (argc < 2)
		return 0;
	FILE *f = fopen(argv[1], "r");
	if (!f)
		err(1, "%s", argv[1]);
	size_t size = fread(object, 1, sizeof object, f);
	fclose(f);
	must(margay_init());
	int extension = margay_insert("brief", NULL, object, size, NULL, 0);
	must(extension);
	struct margay_state state;
	must(margay_state(extension, "table", &state));
	if (!margay_region("brief", 1 << 16, NULL))
		must(-1);
	must(margay_upcalls(1));
	must(margay_send(margay_rank(), 0, 1, 0, "word", 4));
	struct margay_stats stats;
	do
		must(margay_stats(extension, &stats));
	while (stats.runs == 0);
	raise(SIGKILL);
	return 1;
}
