// Package list chooses what shares the cores of a node.
package list

import (
	"margay/kernel/boot"
	"margay/kernel/sched"
	"margay/kernel/sched/priority"
	"margay/kernel/sched/schedext"
)

// schedProfile is the boot profile of nodes that are to be scheduled by sched_ext. Others are not: with cores isolated as well as
// they can be it does not attach.
const schedProfile = "sched"

// Open opens the best enforcer that there is for a node, and logs which that is and why not a better one.
func Open(c boot.Config, log func(format string, args ...any)) sched.Enforcer {
	if c.Profile == schedProfile && c.Substrate != "hosted" {
		e, err := schedext.New(log)
		if err == nil {
			log("cores are shared by %s", e.Name())
			return e
		}
		log("cores are not shared by sched_ext: %v", err)
	}
	e := priority.Open(log)
	log("cores are shared by %s", e.Name())
	return e
}
