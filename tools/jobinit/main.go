// Command jobinit is the init of one job on one node, PID 1 of the job's namespaces:
//
//	jobinit VERSION [group] [ahead]
//	jobinit VERSION share CONFIGURATION
//
// VERSION is the version of the node kernel that starts it. Descriptor 3 is the link to the node
// kernel, and with group descriptor 4 is the control group of the job's ranks. With ahead, the job
// comes later. The second form is the relay of a job's shared folders, which its init starts. See
// packages kernel/task/jobinit and kernel/task/relay. Users do not start it: nodes do, from
// node.JobInit.
//
// It is apart from nodekernel because each job starts it on each of its nodes, and a program starts
// faster with fewer packages.
package main

import (
	"errors"
	"fmt"
	"os"

	"margay/kernel/task/jobinit"
	"margay/kernel/task/relay"
)

// version is the version of this build, set by the linker.
var version = "unknown"

func main() {
	if err := run(os.Getpid(), os.Args[1:]); err != nil {
		fmt.Fprintf(os.Stderr, "margay: job init: %v\n", err)
		os.Exit(1)
	}
}

// run refuses to be started by any process but a node kernel of this build: at the end of a job,
// the init kills every process that it sees.
func run(pid int, args []string) error {
	if pid != 1 && len(args) == 3 && args[0] == version && args[1] == relay.Word {
		return relay.Main(args[2])
	}
	if pid != 1 || len(args) < 1 || len(args) > 3 {
		return errors.New("it is the first process of a job; node kernels start it")
	}
	if args[0] != version {
		return fmt.Errorf("version %s was started by a node kernel of version %s; use the jobinit and the nodekernel of one build", version, args[0])
	}
	return jobinit.Main(args[1:]...)
}
