// Package list chooses the enforcer of a node.
package list

import (
	"fmt"

	"margay/kernel/abi/node"
	"margay/kernel/sched"
	"margay/kernel/sched/priority"
	"margay/kernel/sched/schedext"
)

// Open opens the best enforcer available on a node. lacks says why there is no better one, and
// which events it cannot notice. Only nodes with profile node.Sched get sched_ext, which does not
// attach if cores are isolated. Open may take seconds.
func Open(c node.Config, log func(format string, args ...any)) (e sched.Enforcer, lacks []string) {
	if c.Profile == node.Sched && c.Substrate != node.Hosted {
		e, err := schedext.New(log)
		if err == nil {
			return e, nil
		}
		log("cores are not shared by sched_ext: %v", err)
		lacks = []string{fmt.Sprintf("cores shared by sched_ext, as profile sched requests: %v", err)}
	}
	p := priority.Open(c.Substrate == node.Hosted, log)
	return p, append(lacks, sched.Lacks(p)...)
}
