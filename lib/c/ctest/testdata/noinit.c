/* Every function that needs a job fails without one. */
#include <err.h>
#include <stdlib.h>
#include <string.h>

#include "margay.h"

static void fails(const char *what, int failed)
{
	if (!failed)
		errx(1, "%s works without margay_init", what);
	if (strcmp(margay_error(), "margay_init has not been called") != 0)
		errx(1, "%s says %s", what, margay_error());
}

int main(void)
{
	struct margay_stats stats;
	struct margay_state state;
	unsetenv("MARGAY_FD");
	fails("margay_job", margay_job() == -1);
	fails("margay_rank", margay_rank() == -1);
	fails("margay_size", margay_size() == -1);
	fails("margay_node", margay_node() == -1);
	fails("margay_nodes", margay_nodes() == -1);
	fails("margay_local_rank", margay_local_rank() == -1);
	fails("margay_local_size", margay_local_size() == -1);
	fails("margay_node_of", margay_node_of(0) == -1);
	fails("margay_post", margay_post(0, 0, 0, 0, NULL, 0) == -1);
	fails("margay_send", margay_send(0, 0, 0, 0, NULL, 0) == -1);
	fails("margay_poll", margay_poll() == -1);
	fails("margay_wait", margay_wait(0) == -1);
	fails("margay_wait_for", margay_wait_for(NULL, NULL, 0) == -1);
	fails("margay_barrier", margay_barrier(0) == -1);
	fails("margay_broadcast", margay_broadcast(0, NULL, 0, 0) == -1);
	fails("margay_reduce", margay_reduce(0, NULL, NULL, 0, MARGAY_INT32, MARGAY_SUM, 0) == -1);
	fails("margay_reduce_by", margay_reduce_by(0, NULL, NULL, 0, 1, NULL, NULL, 0) == -1);
	fails("margay_allreduce", margay_allreduce(NULL, NULL, 0, MARGAY_INT32, MARGAY_SUM, 0) == -1);
	fails("margay_allreduce_by", margay_allreduce_by(NULL, NULL, 0, 1, NULL, NULL, 0) == -1);
	fails("margay_gather", margay_gather(0, NULL, 0, NULL, 0) == -1);
	fails("margay_allgather", margay_allgather(NULL, 0, NULL, 0) == -1);
	fails("margay_scan", margay_scan(NULL, NULL, 0, MARGAY_INT32, MARGAY_SUM, 0) == -1);
	fails("margay_alltoall", margay_alltoall(NULL, 0, NULL, 0) == -1);
	margay_group group = MARGAY_WORLD;
	fails("margay_group_split", margay_group_split(MARGAY_WORLD, 0, 0, &group, 0) == -1);
	fails("margay_group_create", margay_group_create(MARGAY_WORLD, NULL, 0, &group, 0) == -1);
	fails("margay_group_free", margay_group_free(&group) == -1);
	fails("margay_group_rank", margay_group_rank(MARGAY_WORLD) == -1);
	fails("margay_group_size", margay_group_size(MARGAY_WORLD) == -1);
	fails("margay_group_job_rank", margay_group_job_rank(MARGAY_WORLD, 0) == -1);
	fails("margay_group_barrier", margay_group_barrier(MARGAY_WORLD, 0) == -1);
	fails("margay_window", margay_window(0, 1) == NULL);
	fails("margay_put", margay_put(0, 0, 0, NULL, 0) == -1);
	fails("margay_put_event", margay_put_event(0, 0, 0, NULL, 0, 0) == -1);
	fails("margay_get", margay_get(NULL, 0, 0, 0, 0) == -1);
	fails("margay_fetch_add", margay_fetch_add(0, 0, 0, 0, NULL) == -1);
	fails("margay_compare_swap", margay_compare_swap(0, 0, 0, 0, 0, NULL) == -1);
	fails("margay_quiet", margay_quiet(0) == -1);
	margay_request request = 0;
	int index;
	fails("margay_group_barrier_nb", margay_group_barrier_nb(MARGAY_WORLD, &request) == -1);
	fails("margay_group_broadcast_nb", margay_group_broadcast_nb(MARGAY_WORLD, 0, NULL, 0, &request) == -1);
	fails("margay_put_nb", margay_put_nb(0, 0, 0, NULL, 0, &request) == -1);
	fails("margay_put_event_nb", margay_put_event_nb(0, 0, 0, NULL, 0, 0, &request) == -1);
	fails("margay_get_nb", margay_get_nb(NULL, 0, 0, 0, 0, &request) == -1);
	fails("margay_fetch_add_nb", margay_fetch_add_nb(0, 0, 0, 0, NULL, &request) == -1);
	fails("margay_compare_swap_nb", margay_compare_swap_nb(0, 0, 0, 0, 0, NULL, &request) == -1);
	fails("margay_request_test", margay_request_test(&request) == -1);
	fails("margay_request_wait", margay_request_wait(&request, 0) == -1);
	fails("margay_request_wait_all", margay_request_wait_all(&request, 1, 0) == -1);
	fails("margay_request_wait_any", margay_request_wait_any(&request, 1, &index, 0) == -1);
	fails("margay_request_abandon", margay_request_abandon(&request) == -1);
	fails("margay_event_test", margay_event_test(0, 0, 0) == -1);
	fails("margay_event_wait", margay_event_wait(0, 0, 0, 0) == -1);
	fails("margay_xfer_and_signal", margay_xfer_and_signal(MARGAY_WORLD, 0, 0, NULL, 0, MARGAY_NO_EVENT, MARGAY_NO_EVENT, &request) == -1);
	fails("margay_compare_and_write", margay_compare_and_write(MARGAY_WORLD, 0, 0, MARGAY_EQ, 0, MARGAY_NO_WORD, 0, 0) == -1);
	margay_fence();
	fails("margay_finalize", margay_finalize(0) == -1);
	fails("margay_upcalls", margay_upcalls(1) == -1);
	fails("margay_mask", margay_mask(1) == -1);
	fails("margay_region", margay_region("x", 1, NULL) == NULL);
	fails("margay_fixed_region", margay_fixed_region("x", 1, NULL) == NULL);
	fails("margay_insert", margay_insert(NULL, NULL, "", 0, NULL, 0) == -1);
	fails("margay_remove", margay_remove(1) == -1);
	fails("margay_stats", margay_stats(1, &stats) == -1);
	fails("margay_state", margay_state(1, "x", &state) == -1);
	if (margay_handle(-1, NULL, NULL) != -1 || margay_handle(MARGAY_MAX_HANDLERS, NULL, NULL) != -1)
		errx(1, "there are handlers that are none");
	if (margay_init() != -1 || !strstr(margay_error(), "start it with margay run"))
		errx(1, "margay_init says %s", margay_error());
	return 0;
}
