package launch

import (
	"context"
	"errors"
	"fmt"
	"io"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/records"
)

// ReplayOptions say which output Replay prints, and how.
type ReplayOptions struct {
	Socket         string // of serve
	Job            uint32
	Label          Label
	Quiet          bool // print the output alone, no notes on standard error
	Stdout, Stderr io.Writer
}

// note prints a line about the job on standard error, unless Quiet is set.
func (o *ReplayOptions) note(text string) {
	if text != "" && !o.Quiet {
		fmt.Fprintf(o.Stderr, "margay: %s\n", text)
	}
}

// Replay prints the output of a detached job from its beginning to its end, and the result of the
// job unless it succeeded. It returns an error if some of the output is missing. If serve is
// restarted, it continues where it was.
func Replay(ctx context.Context, o ReplayOptions) error {
	r := &replay{ReplayOptions: o}
	conn, err := client.Dial(ctx, o.Socket)
	if err != nil {
		return err
	}
	for {
		served := make(chan struct{})
		go func() {
			defer close(served)
			_ = conn.Serve(r.handle)
		}()
		err := r.over(ctx, conn)
		again := lost(conn, err) && ctx.Err() == nil
		conn.Close()
		if !again {
			return err
		}
		select {
		case <-served: // it has printed the output
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		r.note("the connection to serve is lost; looking for it")
		dialing, cancel := context.WithTimeout(ctx, reconnectTimeout)
		conn, err = client.Dial(dialing, o.Socket)
		cancel()
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return errors.Join(fmt.Errorf("%w; margay logs %d shows the output when serve is back", err, o.Job), r.finish())
		}
	}
}

// replay is the output of a detached job that is printed, over as many connections as it takes.
type replay struct {
	ReplayOptions
	printer *printer // nil before the first answer
	printed int      // messages
	come    int      // messages over the connection of now: each brings all of them, in the same order
	broken  bool     // the output cannot be written
	failed  context.CancelCauseFunc
}

// handle prints the records of a message that was not printed before.
func (r *replay) handle(f *control.Frame) {
	m := f.GetRecord()
	if m == nil || r.printer == nil || r.broken {
		return
	}
	if r.come++; r.come <= r.printed {
		return
	}
	r.printed++
	for one := range records.Each(m) {
		if err := r.printer.print(one); err != nil {
			r.broken = true
			r.failed(fmt.Errorf("write output: %w", err))
			return
		}
	}
}

// finish prints the unfinished lines.
func (r *replay) finish() error {
	if r.printer == nil {
		return nil
	}
	return r.printer.finish()
}

// over prints the output that arrives over one connection.
func (r *replay) over(ctx context.Context, conn *control.Conn) error {
	ctx, r.failed = context.WithCancelCause(ctx)
	defer r.failed(nil)
	j, err := r.summary(ctx, conn)
	if err != nil {
		return err
	}
	if r.come = 0; r.printer == nil {
		r.printer = newPrinter(r.Stdout, r.Stderr, int(j.Ranks), r.Label)
	}
	_, err = conn.Call(ctx, &control.Attach{Job: r.Job, Output: true})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if lost(conn, err) {
		return err
	}
	err = errors.Join(err, r.finish())
	j, unlisted := r.summary(ctx, conn)
	if unlisted == nil {
		r.note(Unkept(j.Unkept))
		r.note(HowEnded(j))
	}
	if err != nil {
		return err
	}
	return unlisted
}

// summary asks for the job.
func (r *replay) summary(ctx context.Context, conn *control.Conn) (*control.JobSummary, error) {
	answer, err := conn.Call(ctx, &control.ListJobs{Job: r.Job})
	if err != nil {
		return nil, err
	}
	jobs, ok := answer.(*control.Jobs)
	if !ok || len(jobs.Jobs) != 1 {
		return nil, fmt.Errorf("serve answered ListJobs with %T", answer)
	}
	return jobs.Jobs[0], nil
}

// HowEnded says how a job has ended; nothing while it runs, or when that was a success. Why output
// is missing is said elsewhere.
func HowEnded(j *control.JobSummary) string {
	if j.Phase != control.JobPhase_JOB_DONE || j.ExitCode == 0 {
		return ""
	}
	text := fmt.Sprintf("job %d ended with status %d", j.Job, j.ExitCode)
	if first := int(j.FirstFailed); j.Allocation && first >= 0 && first < len(j.RankStates) {
		text += ": its command " + Describe(j.RankStates[first].Exit)
	} else if first >= 0 && first < len(j.RankStates) && j.RankStates[first].Ended {
		text += fmt.Sprintf(": rank %d on node%d %s", first, j.RankStates[first].Node, Describe(j.RankStates[first].Exit))
	}
	if j.Error != "" && j.Error != j.Missing {
		text += ": " + j.Error
	}
	return text
}
