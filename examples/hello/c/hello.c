/* hello prints the node of each rank of a job. It is a plain program and uses only Margay's
 * environment variables. */
#include <stdio.h>
#include <stdlib.h>

int main(void)
{
	const char *rank = getenv("MARGAY_RANK"), *size = getenv("MARGAY_SIZE"), *node = getenv("MARGAY_NODE"), *core = getenv("MARGAY_CORE");
	if (!rank || !size || !node || !core) {
		fprintf(stderr, "hello: start me with margay run\n");
		return 1;
	}
	printf("hello from rank %s of %s on node %s, core %s\n", rank, size, node, core);
	return 0;
}
