package observe

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/follow"
	"margay/cluster/launch"
	"margay/cluster/trace"
	"margay/internal/printable"
	"margay/internal/slack"
	"margay/kernel/abi/id"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// recordFlags are the flags of margay record.
type recordFlags struct {
	out      string
	force    bool
	job      uint
	duration time.Duration
}

func (a commands) recordCommand() *cobra.Command {
	var f recordFlags
	c := a.QuietFlag(&cobra.Command{
		Use:   "record [flags] [-- COMMAND [ARGUMENT...]]",
		Short: "Record the events of nodes as a timeline for trace viewers",
		Long: `Record the events of the nodes: which rank has each core, the way of messages, runs of extensions, and when ranks start, end and wait
in barriers. It records until the command that it is given has ended, or for --duration; without either, until Ctrl-C. It ends with
the command, whose exit status it has. When the machine goes down it ends, with 125, and the file has what was recorded before.

The result is a file of the trace-event format, which https://ui.perfetto.dev and chrome://tracing open. Nodes record only
while margay record asks for events. One that is faster than its events can be fetched drops the oldest and counts them. The file gets its
name when it is complete; --force replaces an earlier one.`,
		Example: `  margay record -- margay run -n 8 ./app
  margay record -o app.json --job 7 --duration 10s`,
		RunE: func(c *cobra.Command, args []string) error {
			if err := command.Positive(c, "job", "duration"); err != nil {
				return err
			}
			return a.record(c.Context(), f, args)
		},
	})
	c.Flags().StringVarP(&f.out, "output", "o", "trace.json", "the file; it is there when the recording is complete")
	c.Flags().BoolVar(&f.force, "force", false, "replace the file if it exists")
	c.Flags().UintVar(&f.job, "job", 0, "only this job, on its nodes (default: all)")
	c.Flags().DurationVar(&f.duration, "duration", 0, "the time to record; a command may run longer (default: until its end, or Ctrl-C)")
	return c
}

func (a commands) record(ctx context.Context, f recordFlags, args []string) (err error) {
	if len(args) > 0 {
		// Before an earlier trace is overwritten.
		if _, err := launch.LookUp(args[0]); err != nil {
			return command.Failed(launch.ExitStatus(err), fmt.Errorf("record: %w", err))
		}
	}
	socket, err := a.Socket()
	if err != nil {
		return err
	}
	if err := checkTrace(f.out, f.force); err != nil {
		return err
	}
	nodes, err := a.recorded(ctx, socket, id.Job(f.job))
	if err != nil {
		return err
	}
	file, err := createTrace(f.out, f.force)
	if err != nil {
		return err
	}
	defer file.discard()
	signals, release := command.Catch(4, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP)
	defer release()
	status := &launch.Status{W: a.Stderr}
	writer := trace.NewWriter(file, time.Now())
	stop, done := make(chan struct{}), make(chan struct{})
	var run error // the result of the command
	began, started := time.Now(), false
	ready := func() {
		started = true
		if len(args) == 0 && f.duration == 0 {
			a.Report("margay: %d nodes record until Ctrl-C", len(nodes))
		}
		go func() {
			defer close(done)
			run = a.recordedCommand(f.duration, signals, args, sync.OnceFunc(func() { close(stop) }))
		}()
	}
	options := follow.Options{Socket: socket, Nodes: nodes, Job: id.Job(f.job), Trace: writer, Warn: status.Warnf}
	cut := follow.Run(ctx, options, stop, ready)
	took := time.Since(began)
	summaries, err := writer.Close()
	if cut != nil && !started {
		return cut // no node has recorded anything
	}
	if err == nil {
		err = file.keep()
	}
	if err == nil {
		a.traced(f.out, summaries, took)
	}
	err = cmp.Or(cut, err)
	if err != nil && !(started && len(args) > 0) {
		return err
	}
	select {
	case <-done:
	default:
		if err != nil {
			status.Warnf("%v: the command goes on, and is no longer recorded", err)
		}
		<-done
	}
	return cmp.Or(err, run)
}

// traced summarizes a complete trace. The trace of a machine that went down is complete, too.
func (a commands) traced(path string, summaries []trace.Summary, took time.Duration) {
	var events, lost uint64
	for _, s := range summaries {
		events += s.Events
		lost += s.Lost
	}
	a.Report("margay: %s: %s of %s in %.1f s, %d were lost; https://ui.perfetto.dev opens it",
		path, printable.Count(int(events), "event"), printable.Count(len(summaries), "node"), took.Seconds(), lost)
}

// recorded lists the nodes to record: the nodes of a job, or all that are up.
func (a commands) recorded(ctx context.Context, socket string, job id.Job) (nodes []id.Node, err error) {
	ctx, cancel := context.WithTimeout(ctx, command.AnswerTimeout)
	defer cancel()
	if job != 0 {
		list, err := client.Ask[*control.Jobs](ctx, socket, &control.ListJobs{Job: uint32(job)})
		if err != nil {
			return nil, err
		}
		for _, j := range list.Jobs {
			for _, node := range j.Nodes {
				nodes = append(nodes, id.Node(node))
			}
		}
		return nodes, nil
	}
	list, err := client.Ask[*control.Nodes](ctx, socket, &control.ListNodes{})
	if err != nil {
		return nil, err
	}
	for _, n := range list.Nodes {
		if n.Health == control.NodeHealth_NODE_UP {
			nodes = append(nodes, id.Node(n.Node))
		}
	}
	if len(nodes) == 0 {
		return nil, errors.New("no node is up")
	}
	return nodes, nil
}

// recordedCommand runs the command, if there is one, and stops recording: at its end, after a time
// if one is given, or without a command at a signal. It returns when the command has ended. A
// terminal sends its signals to the command as well.
func (a commands) recordedCommand(d time.Duration, signals <-chan os.Signal, args []string, stop func()) error {
	defer stop()
	var timeout <-chan time.Time
	if d > 0 {
		timeout = time.After(d)
	}
	if len(args) == 0 {
		select {
		case <-timeout:
		case <-signals:
		}
		return nil
	}
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.Stdin, a.Stdout, a.Stderr
	if f, ok := show.FileOf(a.Stdout); ok {
		cmd.Stdout = f // the command writes to it directly
	}
	cmd.Env = append(os.Environ(), "MARGAY_MACHINE="+a.Machine)
	if err := slack.Start(slack.Application, cmd.Start); err != nil {
		code := 127
		if errors.Is(err, unix.EACCES) {
			code = 126
		}
		return command.Failed(code, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case err := <-ended:
			return commandStatus(err)
		case <-timeout:
			stop()
		case s := <-signals:
			if s != unix.SIGINT && s != unix.SIGQUIT {
				_ = cmd.Process.Signal(s)
			}
		}
	}
}

// commandStatus turns the end of a command into this one's.
func commandStatus(err error) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return err
	}
	status := &command.ExitStatus{Code: exit.ExitCode()}
	if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
		status.Code, status.Signal = 128+int(s.Signal()), s.Signal()
	}
	return status
}
