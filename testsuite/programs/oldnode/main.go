// Command oldnode is a node of another build: it speaks another version of the control protocol
// than serve.
package main

import (
	"context"
	"fmt"
	"os"

	"margay/cluster/agent"
	"margay/cluster/control"
	"margay/kernel"
	"margay/kernel/abi/node"
	"margay/kernel/link"
	"margay/kernel/pid1"
	"margay/nimble/engine/portable"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func run(args []string) error {
	if len(args) == 4 {
		hosted := pid1.Hosted{Config: args[1], Root: args[2], JobInit: args[3], Lifeline: os.NewFile(3, "lifeline")}
		return pid1.Main(hosted, []string{"/proc/self/exe", "kernel"})
	}
	config, err := node.Read(node.Path)
	if err != nil {
		return err
	}
	conn, err := link.NewConn(os.NewFile(pid1.LinkFD, "link"))
	if err != nil {
		return err
	}
	a, err := agent.New(agent.Config{Boot: config, Version: "old", Protocol: control.Version + 41, Log: logf, Restart: func() {}})
	if err != nil {
		return err
	}
	n, err := kernel.New(kernel.Config{Boot: config, JobInit: []string{node.JobInit, "old"}, Engine: portable.New(), Link: conn, Sink: a, Log: logf})
	if err != nil {
		return err
	}
	return a.Run(context.Background(), n)
}
