//go:build ignore

/* tolerate ends a job when too many of its ranks on this node have died of a fault. It is for jobs
 * that continue when a rank fails. */
#include "margay_ext.h"

const volatile __u32 faults = 1; /* that a job may have */

/* Faults of each job, indexed by its number. */
#define JOBS 1024

struct tolerate_job {
	__u32 job;
	__u32 faults;
};

struct {
	MAP_ARRAY;
	MAP_VALUE(struct tolerate_job);
	MAP_ENTRIES(JOBS);
} jobs SEC(".maps");

SEC("fault") int tolerate(struct margay_exit *e)
{
	__u32 place = e->job % JOBS;
	struct tolerate_job *j = map_lookup(&jobs, &place);

	if (!j)
		return MARGAY_PASS;
	if (j->job != e->job) {
		j->job = e->job;
		j->faults = 0;
	}
	j->faults++;
	if (j->faults <= faults)
		return MARGAY_PASS;
	print("job %u: rank %u was ended by signal %u, which is one too many", e->job, e->rank, e->signal);
	return MARGAY_END;
}

char _license[] SEC("license") = "Dual BSD/GPL";
