package ext

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/client"
	"margay/cluster/control"
	"margay/cluster/launch"
	"margay/internal/printable"
	"margay/kernel/abi/slot"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// slotState is a line of margay ext slots for programs.
type slotState struct {
	Slot         slot.Name `json:"slot"`
	Ready        bool      `json:"ready"`
	When         string    `json:"when"`
	Owners       string    `json:"owners,omitempty"`
	Context      int       `json:"context_bytes,omitempty"`
	Verdicts     string    `json:"verdicts,omitempty"`
	Services     []string  `json:"services,omitempty"`
	Instructions uint64    `json:"instructions,omitempty"`
	TimeNs       int64     `json:"time_ns,omitempty"`
}

func (a commands) extSlotsCommand() *cobra.Command {
	return a.JSONFlag(&cobra.Command{
		Use:     "slots",
		Short:   "List the slots, their verdicts, and the limits of a run",
		Example: "  margay ext slots",
		Args:    command.NoArguments,
		RunE: func(*cobra.Command, []string) error {
			if a.JSON {
				var all []slotState
				for _, r := range slot.Table {
					s := slotState{Slot: r.Name, Ready: r.Ready, When: r.What}
					if r.Ready {
						s.Owners, s.Context, s.Verdicts, s.Services = r.Owners, r.Context, r.Answers(), r.Services
						s.Instructions, s.TimeNs = r.Fuel, int64(r.Time)
					}
					all = append(all, s)
				}
				return show.Value(a.Stdout, all)
			}
			t := show.NewTable(a.Stdout, "SLOT", "CONTEXT", "INSNS", "TIME", "VERDICTS (DEFAULT FIRST)", "WHEN")
			for _, r := range slot.Table {
				if r.Ready {
					t.Row(r.Name, r.Context, r.Fuel, r.Time, r.Answers(), r.What)
				} else {
					t.Row(r.Name, "-", "-", "-", "later", r.What)
				}
			}
			return t.Flush()
		},
	})
}

func (a commands) extStatsCommand() *cobra.Command {
	node, interval := int32(control.None), time.Second
	c := a.JSONFlag(&cobra.Command{
		Use:     "stats",
		Short:   "Measure how often extensions run, and their time",
		Example: "  margay ext stats --interval 5s",
		Args:    command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			if interval <= 0 {
				return fmt.Errorf("--interval %v: it is a time, such as 1s", interval)
			}
			question := &control.ListExtensions{Node: node}
			before, err := command.Ask[*control.Extensions](c.Context(), a.App, question)
			if err != nil {
				return err
			}
			started := time.Now()
			if err := a.Pause(c.Context(), interval); err != nil {
				return err
			}
			after, err := command.Ask[*control.Extensions](c.Context(), a.App, question)
			if err != nil {
				return err
			}
			return a.printRates(before, after, time.Since(started))
		},
	})
	a.NodeFlag(c, &node, "only extensions of this node")
	c.Flags().DurationVar(&interval, "interval", interval, "how long to measure")
	return c
}

// extensionRate is what an active extension did in a time, for programs.
type extensionRate struct {
	Node         uint32  `json:"node"`
	Handle       uint32  `json:"handle"`
	Job          uint32  `json:"job"` // 0: it is the machine's own
	Slot         string  `json:"slot"`
	Name         string  `json:"name"`
	Engine       string  `json:"engine"`
	Seconds      float64 `json:"seconds"` // the time
	Runs         uint64  `json:"runs"`
	Instructions uint64  `json:"instructions"`
	TimeNs       uint64  `json:"time_ns"` // that the runs took
	Faults       uint64  `json:"faults"`
}

// printRates prints what active extensions did between two lists.
func (a commands) printRates(before, after *control.Extensions, took time.Duration) error {
	type id struct{ node, handle uint32 }
	then := make(map[id]*control.ExtensionState)
	for _, x := range before.Extensions {
		then[id{x.Node, x.Handle}] = x
	}
	rates := []extensionRate{}
	t := show.NewTable(a.Stdout, "ID", "JOB", "SLOT", "NAME", "ENGINE", "RUNS/S", "INSNS/RUN", "NS/RUN", "CORE %", "FAULTS")
	for _, x := range after.Extensions {
		if x.State != "active" {
			continue
		}
		was := then[id{x.Node, x.Handle}]
		if was == nil {
			was = new(control.ExtensionState) // it is new
		}
		runs, ns := x.Runs-was.Runs, uint64(max(0, x.TimeNs-was.TimeNs))
		rates = append(rates, extensionRate{x.Node, x.Handle, x.Job, x.Slot, x.Name, x.Engine, took.Seconds(), runs,
			x.Instructions - was.Instructions, ns, x.Faults - was.Faults})
		t.Row(command.ExtensionID(x.Node, x.Handle), command.Whose(x.Job), x.Slot, x.Name, x.Engine, fmt.Sprintf("%.0f", float64(runs)/took.Seconds()),
			perRun(x.Instructions-was.Instructions, runs), perRun(ns, runs),
			fmt.Sprintf("%.1f", 100*float64(ns)/float64(took)), x.Faults-was.Faults)
	}
	if a.JSON {
		return show.Value(a.Stdout, rates)
	}
	return t.Flush()
}

func (a commands) extLogCommand() *cobra.Command {
	node, follow := int32(control.None), false
	c := a.JSONFlag(&cobra.Command{
		Use:   "log",
		Short: "Show insertions, refusals, faults, removals and printed lines",
		Long: `Show the log of the extensions of the nodes: insertions, refusals and removals with their reasons, the first and the last fault of
each, and the lines that they print. A node keeps the last 1024 entries since its node kernel was started.`,
		Example: `  margay ext log
  margay ext log --node 2 --follow`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error {
			question := &control.ExtensionLog{Node: node, After: make(map[uint32]uint64)}
			if err := a.notes(c.Context(), question, !follow); err != nil || !follow {
				return err
			}
			return a.followNotes(c.Context(), question)
		},
	})
	a.NodeFlag(c, &node, "only this node")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "continue until Ctrl-C")
	return c
}

// logPause is how long margay ext log waits before it asks again.
const logPause = 500 * time.Millisecond

// errNotPrinted reports that notes have come and could not be written.
var errNotPrinted = errors.New("the log cannot be printed")

// followNotes prints new entries until ctx ends or the machine is down. It reports once that a node
// or serve is away.
func (a commands) followNotes(ctx context.Context, question *control.ExtensionLog) error {
	status, said := &launch.Status{W: a.Stderr}, ""
	for {
		select {
		case <-time.After(logPause):
		case <-ctx.Done():
			return nil
		}
		err := a.notes(ctx, question, false)
		if err == nil {
			said = ""
			continue
		}
		if _, down := a.Running(); down != nil || client.Gone(err) || errors.Is(err, errNotPrinted) {
			return cmp.Or(down, err)
		}
		if said != err.Error() {
			said = err.Error()
			status.Warnf("%s: asking again", printable.Lines(said))
		}
	}
}

// notes prints the entries since the last answer. It prints an empty list only if always is set.
func (a commands) notes(ctx context.Context, question *control.ExtensionLog, always bool) error {
	notes, err := command.Ask[*control.ExtensionNotes](ctx, a.App, question)
	if err != nil {
		return err
	}
	for _, n := range notes.Notes {
		question.After[n.Node] = n.Seq
	}
	if len(notes.Notes) == 0 && !always {
		return nil
	}
	if err := a.printNotes(notes); err != nil {
		return fmt.Errorf("%w: %w", errNotPrinted, err)
	}
	return nil
}

func (a commands) printNotes(notes *control.ExtensionNotes) error {
	if a.JSON {
		return show.Message(a.Stdout, notes)
	}
	for _, n := range notes.Notes {
		owner := command.Whose(n.Job)
		if n.Job != 0 {
			owner = "job " + owner
		}
		what := fmt.Sprintf("%s (%s)", command.ExtensionID(n.Node, n.Handle), n.Name)
		switch {
		case n.Name != "":
		case n.Node == control.Allocator:
			what = command.Allocator
		default:
			what = fmt.Sprintf("node%d", n.Node)
		}
		_, err := fmt.Fprintf(a.Stdout, "%s %s %s: %s\n", time.Unix(0, n.TimeNs).Format("15:04:05.000"), owner, what, n.Text)
		if err != nil {
			return err
		}
	}
	return nil
}
