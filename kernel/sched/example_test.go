package sched_test

import (
	"fmt"
	"log"
	"time"

	"margay/kernel/abi/id"
	"margay/kernel/sched"
)

// Two tasks share a core without a policy, so they take turns. The caller reports the time and the
// CPU time of the tasks, and carries out the plan.
func Example() {
	ran := make(map[sched.ID]time.Duration)
	core, err := sched.NewCore(1, func(task sched.ID) (time.Duration, uint32) { return ran[task], 0 })
	if err != nil {
		log.Fatal(err)
	}
	defer core.Close()
	now := id.Time(time.Second)
	for rank := range id.Rank(2) {
		if err := core.Add(now, sched.ID{Job: 7, Rank: rank}); err != nil {
			log.Fatal(err)
		}
	}
	for range 3 {
		plan := core.Plan()
		task, turn := core.Tasks()[plan.Run], plan.Next.Sub(now)
		fmt.Printf("rank %d has the core for %v\n", task.Rank, turn)
		ran[task] += turn
		now = plan.Next
		core.Tick(now)
	}
	// Output:
	// rank 0 has the core for 10ms
	// rank 1 has the core for 10ms
	// rank 0 has the core for 10ms
}
