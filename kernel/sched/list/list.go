// Package list chooses what shares the cores of a node.
package list

import (
	"margay/kernel/sched"
	"margay/kernel/sched/priority"
)

// Open opens the best enforcer that there is here, and logs which that is and why not a better one.
func Open(log func(format string, args ...any)) sched.Enforcer {
	e := priority.Open(log)
	log("cores are shared by %s", e.Name())
	return e
}
