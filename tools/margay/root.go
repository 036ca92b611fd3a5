package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"margay/cluster/client"
	"margay/cluster/machine"
)

// answerTimeout bounds how long a question to serve may take.
const answerTimeout = 10 * time.Second

// app is what the commands have in common.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	machine        string
	json           bool
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

Exit status: that of the job for margay run; 125 when margay itself fails, 126 when a program cannot be
executed, 127 when it is not found, 128+N when signal N ended it.`,
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
		a.serveCommand(), a.holderCommand())
	return root
}

func (a *app) dir() (machine.Dir, error) { return machine.DirOf(a.machine) }

// jsonFlag gives a command that lists something the flag for programs.
func (a *app) jsonFlag(c *cobra.Command) *cobra.Command {
	c.Flags().BoolVar(&a.json, "json", false, "print JSON")
	return c
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
	if pid, alive := d.Holder(); !alive {
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

// ask makes one request to the machine's serve.
func ask[Answer proto.Message](ctx context.Context, a *app, request proto.Message) (Answer, error) {
	var none Answer
	socket, err := a.socket()
	if err != nil {
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	return client.Ask[Answer](ctx, socket, request)
}
