// Command attacker is an application that tries what no application may. Its first argument says what it does: "system" tries
// to get by Linux at what is not its job's, "node HANDLE CALLER" asks the node kernel for it, "ring" writes nonsense into
// its area, "channels" writes nonsense into all memory that it shares with its neighbour, "mirrors" does so in mirrored channels, "datagrams" tries what its socket for them is not for and sends forged ones to all ports, "network JOB" sends forged packets into the network of another job, "area WHAT" damages its area for the next node kernel, "keys" leaves keys of Linux behind and looks for those of others, "hold WAY" gives the node kernel what takes long to close, "stay" leaves behind what is to outlive it, "remains" says
// what is left, "descriptors" lists those it was started with, "victim" is the job beside it.
//
// Each try is one line: its name, and "refused: " and why, or DONE.
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
