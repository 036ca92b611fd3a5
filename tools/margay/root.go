package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/machine"
)

// answerTimeout bounds how long a question to serve may take.
const answerTimeout = 10 * time.Second

// changeTimeout bounds how long a change of the extensions of nodes may take.
const changeTimeout = control.ChangeTimeout + answerTimeout

// app is what the commands have in common.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	machine        string
	json           bool
	verbose        bool
}

// newRoot makes the tree of commands.
func newRoot(stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:           "margay",
		Short:         "Run parallel applications on machines of lightweight compute nodes",
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Long: `margay makes machines out of compute nodes and runs parallel applications on them, one process per core.

Machines are in the folder that MARGAY_DIR names in the environment; without it in the folder margay in XDG_RUNTIME_DIR, or in
/tmp/margay-UID.

Exit status: that of the job for margay run; 125 when margay itself fails or ends a job whose ranks cannot go on,
126 when a program cannot be executed, 127 when it is not found, 128+N when signal N ended it. A command that SIGINT,
SIGTERM or SIGHUP has ended dies of that signal itself, which shells show as 128+N as well: Ctrl-C ends loops around it.`,
		Example: `  margay machine up                      # 4 virtual nodes with 2 application cores each
  margay run -n 8 ./app                  # one process on each core
  margay nodes                           # what the machine is doing
  margay machine down`,
	}
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentFlags().StringVarP(&a.machine, "machine", "m", cmp.Or(os.Getenv("MARGAY_MACHINE"), machine.DefaultName), "the machine to use (environment: MARGAY_MACHINE)")
	root.AddCommand(a.machineCommand(), a.runCommand(), a.psCommand(), a.killCommand(), a.logsCommand(), a.nodesCommand(), a.topCommand(), a.recordCommand(), a.extCommand(), a.nimbleCommand(), a.benchCommand(), a.imageCommand(),
		a.serveCommand(), a.holderCommand(), a.versionCommand(), a.manCommand())
	root.SetFlagErrorFunc(flagError)
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	closeGroups(root)
	a.complete(root)
	// Groups run only to refuse.
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), "{{if .Runnable}}", "{{if and .Runnable (not .HasAvailableSubCommands)}}", 1))
	return root
}

func (a *app) dir() (machine.Dir, error) { return machine.DirOf(a.machine) }

// jsonFlag gives a command that lists something the flag for programs.
func (a *app) jsonFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
}

// verboseFlag gives a command that says nothing when all is well the flag to say what it has done.
func (a *app) verboseFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVarP(&a.verbose, "verbose", "v", false, "say what was done")
	return c
}

// tell says what a command has done, when it is to be verbose.
func (a *app) tell(format string, args ...any) {
	if a.verbose {
		fmt.Fprintf(a.stderr, "margay: "+format+"\n", args...)
	}
}

// running returns the machine's folder. It is an error when the machine is not up.
func (a *app) running() (machine.Dir, error) {
	d, err := a.dir()
	if err != nil {
		return "", err
	}
	if _, err := d.ReadSpec(); err != nil {
		return "", err
	}
	switch pid, alive := d.Holder(); {
	case alive:
	case pid == 0:
		return "", fmt.Errorf("machine %s has no holder: it is being made or ended, or that was interrupted; margay machine down -m %[1]s removes what is left", a.machine)
	default:
		return "", fmt.Errorf("machine %s is dead: its holder (process %d) was killed; margay machine down -m %[1]s removes what is left", a.machine, pid)
	}
	return d, nil
}

// socket returns where the machine's serve listens. It is an error when the machine is not up.
func (a *app) socket() (string, error) {
	d, err := a.running()
	if err != nil {
		return "", err
	}
	return d.Socket(), nil
}

// pause waits between two questions to the machine's serve. It is an error, at once, when the machine goes down or ctx ends. A serve that is
// started again, or away, is not missed.
func (a *app) pause(ctx context.Context, d time.Duration) error {
	socket, err := a.socket()
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	if err := client.Await(waiting, socket); client.Gone(err) {
		return err
	}
	<-waiting.Done()
	return context.Cause(ctx)
}

// ask makes one request to the machine's serve.
func ask[Answer proto.Message](ctx context.Context, a *app, request proto.Message) (Answer, error) {
	return askWithin[Answer](ctx, a, request, answerTimeout)
}

// askWithin makes one that may take so long.
func askWithin[Answer proto.Message](ctx context.Context, a *app, request proto.Message, timeout time.Duration) (Answer, error) {
	var none Answer
	socket, err := a.socket()
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return client.Ask[Answer](ctx, socket, request)
}
