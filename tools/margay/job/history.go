package job

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/cluster/ledger"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// past selects jobs of a history. The zero value selects all.
type past struct {
	since, until time.Time // of their ends
	user         string    // its name or number
	states       []ledger.State
	nodes        []uint32 // at least one of them, in ascending order
	job          uint32
}

func (a commands) historyCommand() *cobra.Command {
	var f historyFlags
	c := a.ColorFlag(a.JSONFlag(&cobra.Command{
		Use:   "history",
		Short: "List jobs that have ended, also after their machine has",
		Long: `List the jobs of a machine that have ended, the last one at the end. The machine need not be up: a record of each job is kept in
the folder that MARGAY_STATE names, by default margay in XDG_STATE_HOME or in ~/.local/state. All machines of one name have one
history. margay machine up --history sets its size; when it is full, the oldest jobs are dropped.

--since and --until select jobs by their end: a duration before now (90m, 2h, 7d), or a local time (2026-11-25, "2026-11-25 13:40").
The states of jobs are completed, failed, killed (margay kill --force), timeout, node-lost and down (ended with the machine).
--wide adds times, the processor time of all ranks, and the reason of a failure. The tasks of an array (margay run --array) are one line:
12_[0-99] are tasks 0 to 99 of the array that began with job 12. --tasks prints a line for each. --json prints one record of a job on
each line.`,
		Example: `  margay history -n 20
  margay history --all --since 7d --state failed,timeout
  margay history --node 3 --since 2026-11-25 --wide
  margay history --json | jq -r 'select(.status != 0) | .command'`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := errors.Join(command.Positive(c, "last"), command.Given(c, "user")); err != nil {
				return err
			}
			if f.all && c.Flags().Changed("machine") {
				return errors.New("history: --all and -m exclude each other")
			}
			p, err := f.past(c, time.Now())
			if err != nil {
				return err
			}
			folded := !f.tasks && p.job == 0 && !a.JSON
			most := f.last
			if folded {
				most = 0 // an array may have any number of records
			}
			records, err := a.history(p, f.all, most)
			if err != nil {
				return err
			}
			if !f.all {
				a.reportUnwritten(c.Context())
			}
			if a.JSON {
				return a.printLines(records)
			}
			if folded {
				return a.printHistory(last(fold(records), f.last), f.all, f.wide)
			}
			return a.printHistory(unfolded(records), f.all, f.wide)
		},
	}))
	fs := c.Flags()
	fs.BoolVar(&f.all, "all", false, "the jobs of all machines")
	fs.StringVar(&f.since, "since", "", "jobs that ended at that time or later")
	fs.StringVar(&f.until, "until", "", "jobs that ended before that time")
	fs.StringVar(&f.user, "user", "", "jobs of this user: a name or a number")
	fs.StringVar(&f.states, "state", "", "jobs that ended in one of these states: a list such as failed,timeout")
	fs.StringVar(&f.nodes, "node", "", "jobs that had a rank on one of these nodes: a set such as 2 or 1..4,10")
	fs.StringVar(&f.job, "job", "", "the job with this number, on each machine of the name")
	fs.IntVarP(&f.last, "last", "n", 0, "at most so many jobs, the last ones (default: all)")
	fs.BoolVar(&f.wide, "wide", false, "more columns")
	fs.BoolVar(&f.tasks, "tasks", false, "a line for each task of an array, and not one for all")
	return c
}

// historyFlags are the flags of margay history.
type historyFlags struct {
	since, until, user, states, nodes, job string
	all, wide, tasks                       bool
	last                                   int
}

// past returns the selection that the flags describe.
func (f *historyFlags) past(c *cobra.Command, now time.Time) (p past, err error) {
	p.user = f.user
	for _, flag := range []struct {
		name string
		read func() error
	}{
		{"since", func() (err error) { p.since, err = parsePast(f.since, now); return err }},
		{"until", func() (err error) { p.until, err = parsePast(f.until, now); return err }},
		{"state", func() (err error) { p.states, err = parseStates(f.states); return err }},
		{"node", func() (err error) { p.nodes, err = nodeset.Parse(f.nodes); return err }},
		{"job", func() (err error) { p.job, err = command.ParseJob(f.job); return err }},
	} {
		if given := c.Flags().Lookup(flag.name); !given.Changed {
			continue
		} else if err := flag.read(); err != nil {
			return p, fmt.Errorf("history: --%s %s: %w", flag.name, given.Value, err)
		}
	}
	return p, nil
}

// parsePast reads a time in the past: a duration before now, or a local time.
func parsePast(text string, now time.Time) (time.Time, error) {
	number, days := strings.CutSuffix(text, "d")
	if n, err := strconv.ParseUint(number, 10, 16); days && err == nil {
		return now.AddDate(0, 0, -int(n)), nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.DateOnly, "2006-01-02 15:04", time.DateTime, "2006-01-02T15:04:05", time.RFC3339} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, errors.New(`it is a time before now such as 90m, 2h or 7d, or a date such as 2026-11-25 or "2026-11-25 13:40"`)
}

// parseStates reads a list of states of jobs that have ended.
func parseStates(text string) (states []ledger.State, err error) {
	for name := range strings.SplitSeq(text, ",") {
		if !slices.Contains(ledger.States, ledger.State(name)) {
			return nil, fmt.Errorf("there is no state %q: they are %s", name, strings.Trim(fmt.Sprint(ledger.States), "[]"))
		}
		states = append(states, ledger.State(name))
	}
	return states, nil
}

// selects reports whether p selects a job.
func (p past) selects(r *ledger.Record) bool {
	switch {
	case p.job != 0 && r.Job != p.job, p.user != "" && r.User != p.user && strconv.FormatUint(uint64(r.UID), 10) != p.user, !p.since.IsZero() && r.Ended.Before(p.since), !p.until.IsZero() && !r.Ended.Before(p.until),
		len(p.states) > 0 && !slices.Contains(p.states, r.State):
		return false
	case len(p.nodes) == 0:
		return true
	}
	nodes, err := nodeset.Parse(r.Nodes)
	return err == nil && slices.ContainsFunc(nodes, func(node uint32) bool {
		_, found := slices.BinarySearch(p.nodes, node)
		return found
	})
}

// history reads the selected jobs of this machine or of all, the last one at the end: at most so
// many if last is not 0.
func (a commands) history(p past, all bool, last int) ([]*ledger.Record, error) {
	base, err := ledger.Base()
	if err != nil {
		return nil, err
	}
	names, err := ledger.Machines(base)
	if err != nil {
		return nil, err
	}
	if !all {
		if owner, of, is := strings.Cut(a.Machine, ":"); is {
			return nil, fmt.Errorf("machine %s: its history is for %s alone, as margay history -m %s; margay ps -m %[1]s --all shows its last jobs", a.Machine, owner, of)
		}
		if a.Remote() {
			return nil, fmt.Errorf("machine %s: its history is on its own host (margay login); margay ps -m %[1]s --all shows its last jobs", a.Machine)
		}
		if !slices.Contains(names, a.Machine) {
			return nil, fmt.Errorf("machine %s: it has no history in %s; margay history --all shows the jobs of other machines", a.Machine, base)
		}
		names = []string{a.Machine}
	}
	var records []*ledger.Record
	for _, name := range names {
		gaps, err := ledger.New(base, name, ledger.DefaultSize).Newest(collect(&records, p, last))
		if err != nil && !all {
			return nil, err
		}
		if err != nil {
			a.Loss("the history of machine %s is not complete: %s", name, printable.Lines(err.Error()))
		}
		if gaps.Damaged > 0 {
			a.Loss("the history of machine %s has damaged lines, which are skipped: %d", name, gaps.Damaged)
		}
		if gaps.Lost > 0 {
			a.Loss("the history of machine %s lacks jobs that could not be written: %d", name, gaps.Lost)
		}
	}
	if all {
		slices.SortStableFunc(records, func(x, y *ledger.Record) int { return y.Ended.Compare(x.Ended) })
	}
	if last > 0 && len(records) > last {
		records = records[:last]
	}
	slices.Reverse(records)
	return records, nil
}

// unwrittenWait bounds how long a list waits for serve, which may be restarting.
const unwrittenWait = 2 * time.Second

// reportUnwritten reports jobs that the history of a machine lacks so far, if the machine is up.
func (a commands) reportUnwritten(ctx context.Context) {
	status, err := command.AskWithin[*control.MachineStatus](ctx, a.App, &control.Status{}, unwrittenWait)
	if err == nil && status.Unwritten > 0 {
		a.Loss("the history of machine %s lacks jobs that are not yet written: %d", a.Machine, status.Unwritten)
	}
}

// collect appends the selected jobs of one history, at most so many if last is not 0.
func collect(records *[]*ledger.Record, p past, last int) func(*ledger.Record) bool {
	found := 0
	return func(r *ledger.Record) bool {
		if p.selects(r) {
			*records = append(*records, r)
			found++
		}
		return last == 0 || found < last
	}
}

// printLines prints records as lines of JSON.
func (a commands) printLines(records []*ledger.Record) error {
	e := json.NewEncoder(a.Stdout)
	e.SetEscapeHTML(false)
	for _, r := range records {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// printHistory prints records as a table.
func (a commands) printHistory(entries []*entry, all, wide bool) error {
	var columns []string
	if all || wide {
		columns = append(columns, "MACHINE")
	}
	columns = append(columns, "JOB", "USER", "RANKS", "NODES", "STATE")
	if wide {
		columns = append(columns, "SUBMITTED", "STARTED")
	}
	columns = append(columns, "ENDED", "TIME")
	if wide {
		columns = append(columns, "CPU TIME", "REASON")
	}
	t := a.Table(append(columns, "COMMAND")...)
	for _, e := range entries {
		r := &e.Record
		var cells []any
		if all || wide {
			cells = append(cells, r.Machine)
		}
		cells = append(cells, e.number(), r.User, r.Ranks, r.Nodes, e.state())
		if wide {
			cells = append(cells, moment(r.Submitted), moment(r.Started))
		}
		cells = append(cells, moment(r.Ended), r.Ended.Sub(r.Started).Round(time.Second))
		if wide {
			cells = append(cells, launch.Computed(&control.Usage{UserNs: r.Usage.UserNs, SystemNs: r.Usage.SystemNs}), reason(r))
		}
		t.Row(append(cells, r.Command)...)
	}
	return t.Flush()
}

func moment(t time.Time) string { return t.Local().Format(time.DateTime) }

// pastState is the state of a job that has ended, with its status.
func pastState(r *ledger.Record) show.State {
	if r.State == ledger.Completed {
		return show.State{Text: string(r.State), Color: show.Past}
	}
	return show.State{Text: fmt.Sprintf("%s (%d)", r.State, r.Status), Color: show.Bad}
}

// reason is why a job failed: as a whole, or how the ranks ended that failed first.
func reason(r *ledger.Record) string {
	switch {
	case r.Reason != "":
		return r.Reason
	case len(r.Ends) == 0:
		return "-"
	}
	end := r.Ends[0]
	how := "ended with the job"
	if end.Ended {
		how = launch.Describe(&control.ExitStatus{Code: end.Status, Signal: end.Signal, Reason: end.Reason})
	}
	if !strings.ContainsAny(end.Ranks, ",-") {
		return "rank " + end.Ranks + " " + how
	}
	if killed, ok := strings.CutPrefix(how, "was "); ok {
		how = "were " + killed
	}
	return "ranks " + end.Ranks + " " + how
}
