package observe

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"margay/cluster/rates"
	"margay/internal/nodeset"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// minInterval bounds what looking at nodes costs them.
const minInterval = 100 * time.Millisecond

// onceAgain is how often margay top --once looks again for nodes that are missing.
const onceAgain = 3

// topFlags are the flags of margay top.
type topFlags struct {
	interval time.Duration
	once     bool
	sort     string
}

func (a commands) topCommand() *cobra.Command {
	var f topFlags
	c := a.JSONFlag(&cobra.Command{
		Use:   "top",
		Short: "Show cores and ranks with their switches, interrupts and messages",
		Long: `Show the use of every application core: which ranks have it and why, how much of it they use, how often they give it up (SWITCH/S)
or lose it (LOST/S), interrupts, messages sent and arrived. Extensions follow below.

On a terminal it fills the screen: q quits; c, m, s, i sort by CPU, messages, switches, interrupts, n by node and core; the arrow
keys scroll, j and k as well; ? shows all keys. Columns that have no room are left out; w brings them back. Elsewhere it prints a
table at each interval. Interrupts of a core that is shared with the host (hosted nodes) are counted for the host's processor, and
marked with ~.`,
		Example: `  margay top
  margay top --once --sort=cpu
  margay top --once --json`,
		Args: command.NoArguments,
		RunE: func(c *cobra.Command, _ []string) error { return a.top(c.Context(), f) },
	})
	c.Flags().DurationVar(&f.interval, "interval", time.Second, "the time between two looks")
	c.Flags().BoolVar(&f.once, "once", false, "print one table, of one interval, and end")
	c.Flags().StringVar(&f.sort, "sort", string(rates.ByCore), fmt.Sprintf("the order of the cores: %v", rates.Orders))
	return c
}

func (a commands) top(ctx context.Context, f topFlags) error {
	order := rates.Order(f.sort)
	if !slices.Contains(rates.Orders, order) {
		return fmt.Errorf("--sort=%s: it is one of %v", f.sort, rates.Orders)
	}
	if f.interval < minInterval {
		return fmt.Errorf("--interval=%v: it is at least %v", f.interval, minInterval)
	}
	if !f.once && !a.JSON && show.IsTerminal(a.Stdout) {
		return a.topScreen(ctx, f.interval, order)
	}
	ctx, stop := command.Interruptible(ctx, unix.SIGQUIT)
	defer stop()
	before, err := a.Samples(ctx)
	if err != nil {
		return cmp.Or(context.Cause(ctx), err)
	}
	for again := 0; ; again++ {
		if err := a.Pause(ctx, f.interval); err != nil {
			return err
		}
		after, err := a.Samples(ctx)
		if err != nil {
			return cmp.Or(context.Cause(ctx), err)
		}
		view := rates.Between(before, after)
		before = after
		if f.once && view.Trouble != "" && again < onceAgain {
			continue // a node that is late may answer at the next look
		}
		view.Sort(order)
		if err := a.printTop(view, order); err != nil || f.once {
			return err
		}
	}
}

// printTop prints one table. On a terminal it is as wide as that.
func (a commands) printTop(v *rates.View, order rates.Order) error {
	if a.JSON {
		return show.Value(a.Stdout, v)
	}
	width := show.Width(a.Stdout)
	for _, line := range a.topLines(v, width, order) {
		if width > 0 {
			line = show.Fold(line, width, 4)
		}
		if _, err := fmt.Fprintln(a.Stdout, line); err != nil {
			return err
		}
	}
	return nil
}

// topLines returns the lines of a view, a headline first. width is the width of the terminal, or 0
// for all columns.
func (a commands) topLines(v *rates.View, width int, order rates.Order) []string {
	t := v.Totals()
	lines := []string{fmt.Sprintf("machine %s: %d nodes, %d of %d cores busy, %s messages/s sent, %s arrived, %s extension runs/s",
		a.Machine, t.Nodes, t.Busy, t.Cores, perSecond(t.Sent), perSecond(t.Arrived), perSecond(t.Runs))}
	if len(v.Recording) > 0 {
		lines[0] += ", recording on nodes " + nodeset.Ranges(v.Recording)
	}
	lines = append(lines, "")
	lines = append(lines, coreLines(v, width, order)...)
	if len(v.Extensions) > 0 {
		lines = append(lines, "")
		lines = append(lines, tableLines(extensionTable(v))...)
	}
	if v.Trouble != "" {
		lines = append(append(lines, ""), strings.Split(v.Trouble, "\n")...)
	}
	return lines
}

// tableLines draws a table.
func tableLines(draw func(w io.Writer) error) []string {
	var text bytes.Buffer
	_ = draw(&text) // which takes everything
	return strings.Split(strings.TrimRight(text.String(), "\n"), "\n")
}

// dropped are the columns that a narrow terminal does without, the first ones first.
var dropped = []string{"SENT/S", "ARRIVED/S", "TURNS/S", "SWITCH/S", "INTR/S", "LOST/S"}

// droppedFor returns dropped with the columns of the sort order at its end.
func droppedFor(order rates.Order) []string {
	columns := map[rates.Order][]string{
		rates.ByMessages: {"SENT/S", "ARRIVED/S"}, rates.BySwitches: {"SWITCH/S", "LOST/S"}, rates.ByInterrupts: {"INTR/S"},
	}[order]
	others := slices.DeleteFunc(slices.Clone(dropped), func(name string) bool { return slices.Contains(columns, name) })
	return append(others, columns...)
}

// coreLines draws the cores, with as many columns as width has room for; 0: all.
func coreLines(v *rates.View, width int, order rates.Order) (lines []string) {
	drop := droppedFor(order)
	for n := range len(drop) + 1 {
		lines = tableLines(coreTable(v, drop[:n]))
		if width == 0 || show.Widest(lines) <= width {
			break
		}
	}
	return lines
}

func coreTable(v *rates.View, without []string) func(io.Writer) error {
	return func(w io.Writer) error {
		names := []string{"NODE", "CORE", "INTR/S", "TURNS/S", "RANK", "CPU%", "SWITCH/S", "LOST/S", "SENT/S", "ARRIVED/S", "PID", "WHY"}
		keep := func(cells []any) (kept []any) {
			for i, cell := range cells {
				if !slices.Contains(without, names[i]) {
					kept = append(kept, cell)
				}
			}
			return kept
		}
		shown := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return slices.Contains(without, name) })
		t := show.NewTable(w, shown...)
		for _, c := range v.Cores {
			interrupts := perSecond(c.Interrupts)
			if c.Shared {
				interrupts = "~" + interrupts
			}
			place := []any{fmt.Sprintf("node%d", c.Node), c.Core, interrupts, perSecond(c.Turns)}
			if len(c.Ranks) == 0 {
				t.Row(keep(append(place, "-", "-", "-", "-", "-", "-", "-", "free"))...)
			}
			for _, r := range c.Ranks {
				figures := []any{"-", "-", "-", "-", "-"}
				if !r.Further && !r.Hidden {
					figures = []any{fmt.Sprintf("%.1f", r.CPU), perSecond(r.Voluntary), perSecond(r.Involuntary), perSecond(r.Sent), perSecond(r.Arrived)}
				}
				pid := any(r.PID)
				if r.Hidden {
					pid = "-"
				}
				t.Row(keep(slices.Concat(place, []any{fmt.Sprintf("%d.%d", r.Job, r.Rank)}, figures, []any{pid, r.Why}))...)
				place = []any{"", "", "", ""}
			}
		}
		return t.Flush()
	}
}

func extensionTable(v *rates.View) func(io.Writer) error {
	return func(w io.Writer) error {
		t := show.NewTable(w, "EXTENSION", "JOB", "SLOT", "NAME", "RUNS/S", "NS/RUN", "FAULTS")
		for _, x := range v.Extensions {
			t.Row(fmt.Sprintf("%d.%d", x.Node, x.Handle), command.Whose(x.Job), x.Slot, x.Name, perSecond(x.Runs), fmt.Sprintf("%.0f", x.Time), x.Faults)
		}
		return t.Flush()
	}
}

// perSecond writes a rate with its significant digits.
func perSecond(rate float64) string {
	if rate > 0 && rate < 9.95 {
		return fmt.Sprintf("%.1f", rate)
	}
	return fmt.Sprintf("%.0f", rate)
}
