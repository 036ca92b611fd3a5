// Package list chooses what shares the cores of a node.
package list

import (
	"fmt"

	"margay/kernel/boot"
	"margay/kernel/sched"
	"margay/kernel/sched/priority"
	"margay/kernel/sched/schedext"
)

// schedProfile is the boot profile of nodes that are to be scheduled by sched_ext. Others are not: with cores isolated as well as
// they can be it does not attach.
const schedProfile = "sched"

// Open opens the best enforcer that there is for a node, and says what it lacks: why there is no better one, and what it cannot
// notice. It may take seconds.
func Open(c boot.Config, log func(format string, args ...any)) (e sched.Enforcer, lacks []string) {
	if c.Profile == schedProfile && c.Substrate != "hosted" {
		e, err := schedext.New(log)
		if err == nil {
			return e, nil
		}
		log("cores are not shared by sched_ext: %v", err)
		lacks = []string{fmt.Sprintf("cores shared as profile sched would have it: %v", err)}
	}
	p := priority.Open(log)
	return p, append(lacks, sched.Lacks(p)...)
}
