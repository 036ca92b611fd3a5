// Command attacker is an application that tries everything that applications are not allowed to do.
// Its first argument is a command:
//
//	system ADDRESS...   reach other jobs and the node through Linux
//	node HANDLE CALLER  ask the node kernel for things of another job
//	ring                write nonsense into the own area
//	channels            write nonsense into all memory that is shared with a neighbour
//	mirrors             write nonsense into mirrored channels and send it through them
//	datagrams           misuse the socket of mirrored channels, and send forged datagrams to all ports
//	root WAY            look for the node's root below the job's, with all rights in namespaces of its own
//	network JOB         send forged packets into the network of another job
//	area WHAT           damage the area for the next node kernel
//	keys                leave keys of Linux behind and look for keys of others
//	hold WAY            pass the node kernel a socket that takes long to close
//	stay [wait]         leave processes behind that try to outlive the job
//	remains             print the traces of jobs on this node
//	descriptors         list the descriptors of this process at its start
//	linger              ignore the signals that end processes
//	victim              be the job that is attacked
//
// Each try is one line: its name, and "refused: " with the reason, or DONE.
package main

import (
	"errors"
	"fmt"
	"os"
)

var commands = map[string]func(args []string) error{
	"descriptors": descriptors,
	"system":      attackSystem,
	"node":        attackNode,
	"ring":        attackRing,
	"area":        attackArea,
	"channels":    attackChannels,
	"datagrams":   attackDatagrams,
	"mirrors":     attackMirrors,
	"network":     attackNetwork,
	"root":        uncover,
	"keys":        leaveKeys,
	"hold":        attackHold,
	"stay":        stay,
	"remains":     remains,
	"linger":      linger,
	"victim":      victim,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "attacker: no such command:", os.Args[1:])
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
}

// try is something that is not allowed. What it returns is why it came to nothing.
type try struct {
	name string
	do   func() error
}

// errNothing is the result of a try that has met nothing to work on.
var errNothing = errors.New("there is none")

func attempt(tries []try) {
	for _, t := range tries {
		if err := t.do(); err != nil {
			fmt.Printf("%s: refused: %v\n", t.name, err)
		} else {
			fmt.Printf("%s: DONE\n", t.name)
		}
	}
}
