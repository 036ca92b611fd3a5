package job

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"margay/cluster/control"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
)

// addReportFlags adds the flags for programs that run margay run.
func addReportFlags(fs *pflag.FlagSet, f *Flags) {
	fs.StringVar(&f.Beside, "beside", "", "run one rank on each node of the running `JOB`, on cores that are free")
	fs.StringVar(&f.JobFile, "job-file", "", "write the number of the job to this `file` when its ranks run")
	fs.StringVar(&f.Messages, "messages", "", "write the messages of margay to this `file`; standard error has only what ranks write there")
}

// checkReport refuses flags that are not for a job beside another one, or not for an array.
func (f *Flags) checkReport(c *cobra.Command) error {
	if err := command.Given(c, "beside", "job-file", "messages"); err != nil {
		return err
	}
	if f.Array != "" && f.JobFile != "" {
		return errors.New("run: --array runs many jobs, and --job-file has the number of one: with -o and --json there is a line for each")
	}
	if f.Beside == "" {
		return nil
	}
	for _, flag := range []string{"ranks", "nodes", "ppn", "nodelist", "exclude", "file", "wait", "array"} {
		if c.Flags().Changed(flag) {
			return fmt.Errorf("run: --beside runs one rank on each node of the other job, now: it excludes --%s", flag)
		}
	}
	return nil
}

// besideJob puts the job on the nodes of the one that --beside names, one rank on each.
func (a commands) besideJob(ctx context.Context, f *Flags) error {
	if f.Beside == "" {
		return nil
	}
	number, err := command.ParseJob(f.Beside)
	if err != nil {
		return fmt.Errorf("run: --beside: %w", err)
	}
	other, err := a.summary(ctx, number)
	if err != nil {
		return fmt.Errorf("run: --beside %d: %w", number, err)
	}
	if other.Phase == control.JobPhase_JOB_DONE {
		return fmt.Errorf("run: --beside %d: the job has ended", number)
	}
	f.Only, f.Nodes, f.Ranks = nodeset.Ranges(other.Nodes), len(other.Nodes), len(other.Nodes)
	return nil
}

// divert has all messages of margay, also its last error, go to the file of --messages, if there is
// one. The file stays open.
func (f *Flags) divert(a *command.App) error {
	if f.Messages == "" {
		return nil
	}
	file, err := openReport(f.Messages)
	if err != nil {
		return fmt.Errorf("run: --messages: %w", err)
	}
	a.Stderr = file
	return nil
}

// report writes the number of the job, whose ranks run, where it is wanted.
func (f *Flags) report(a *command.App, job uint32) error {
	if f.JobFile != "" {
		file, err := openReport(f.JobFile)
		if err == nil {
			_, err = fmt.Fprintln(file, job)
			err = errors.Join(err, file.Close())
		}
		if err != nil {
			return fmt.Errorf("job %d: --job-file: %w", job, err)
		}
	}
	if f.Detach {
		return printJob(a.Stdout, job)
	}
	return nil
}

// openReport creates or truncates a file. Of a pipe with a name it does not wait for a reader.
func openReport(name string) (*os.File, error) {
	return os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC|unix.O_NONBLOCK, 0o666)
}
