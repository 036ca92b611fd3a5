package machine

import (
	"io"
	"log"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/machine"
	"margay/internal/procname"
	"margay/kernel/descriptor"
	"margay/nimble/engine/portable"
	"margay/tools/margay/command"
)

// serveGC lets the heap of serve grow to 8 MiB before a garbage collection. What serve knows of a
// small machine is so little that it would otherwise collect every dozen jobs, for a tenth of its
// processor time.
const serveGC = 200

// serveCommand is started by the holder, and on machines without one by their operator.
func (a commands) serveCommand() *cobra.Command {
	var lifeline, socket, users int
	c := &cobra.Command{
		Use:     "serve",
		Short:   "Run the service node's daemon of a machine (its holder does this)",
		Example: "  margay serve -m test    # what the holder of machine test runs",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			d, err := a.Dir()
			if err != nil {
				return err
			}
			a.name("margay-serve")
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(serveGC)
			}
			var in machine.Inherited
			if lifeline > 0 {
				in.Lifeline = os.NewFile(uintptr(lifeline), "lifeline")
			}
			if socket > 0 {
				in.Socket = os.NewFile(uintptr(socket), "socket")
			}
			if users > 0 {
				in.Users = os.NewFile(uintptr(users), "users")
			}
			return machine.Serve(ctx, d, in, portable.New(), logger(machine.BoundLog(d, "serve", a.Stdout, a.Stderr)))
		},
	}
	c.Flags().IntVar(&lifeline, "lifeline", 0, "descriptor of a pipe whose end is the holder's end")
	_ = c.Flags().MarkHidden("lifeline")
	c.Flags().IntVar(&socket, "socket", 0, "descriptor of a socket that listens to nodes of other hosts")
	_ = c.Flags().MarkHidden("socket")
	c.Flags().IntVar(&users, "users", 0, "descriptor of a socket that listens to users of other hosts")
	_ = c.Flags().MarkHidden("users")
	return c
}

// holderCommand is started by machine up.
func (a commands) holderCommand() *cobra.Command {
	var until, users int
	c := &cobra.Command{
		Use:    "holder MACHINE",
		Hidden: true,
		Args:   command.Arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
			ctx, stop := command.Interruptible(c.Context(), unix.SIGINT, unix.SIGTERM)
			defer stop()
			if err := descriptor.CloseOnExec(3); err != nil { // they are not for what the holder starts
				return err
			}
			d, err := machine.DirOf(args[0])
			if err != nil {
				return err
			}
			a.name("margay-holder")
			serve := []string{"/proc/self/exe", "serve", "-m", args[0], "--lifeline", "3"}
			var in machine.HolderInherited
			if until > 0 {
				in.Until = os.NewFile(uintptr(until), "process")
			}
			if users > 0 {
				in.Users = os.NewFile(uintptr(users), "users")
			}
			return machine.Hold(ctx, d, serve, in, logger(machine.BoundLog(d, "holder", a.Stdout, a.Stderr)))
		},
	}
	c.Flags().IntVar(&until, "until", 0, "descriptor of a process (pidfd) with which the machine ends")
	c.Flags().IntVar(&users, "users", 0, "descriptor of a socket that listens to users of other hosts")
	return c
}

// name names this process for ps and top.
func (a commands) name(name string) {
	if err := procname.Set(name); err != nil {
		logger(a.Stderr)("%v", err)
	}
}

// logger writes lines with the time.
func logger(w io.Writer) func(format string, args ...any) {
	return log.New(w, "", log.LstdFlags|log.Lmicroseconds).Printf
}
