package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"margay/cluster/control"
	"margay/cluster/symbol"
	"margay/internal/nodeset"
	"margay/internal/printable"
	"margay/tools/margay/command"
	"margay/tools/margay/show"
)

// stacksTimeout bounds how long a node may take to answer. The bounds of serve and of the node are
// shorter.
const stacksTimeout = 25 * time.Second

// stacksAtOnce bounds how many nodes are asked for stacks at once.
const stacksAtOnce = 16

func (a commands) backtraceCommand() *cobra.Command {
	var verbose bool
	c := a.JSONFlag(&cobra.Command{
		Use:   "backtrace JOB [RANK...]",
		Short: "Print where the ranks of a running job are",
		Long: `Print the stacks of all ranks of a running job, or of some of them: numbers, lists and ranges. Ranks with equal stacks are
printed together, and so are further threads. Names and lines come from the files on this host that the job was started with; debug
information (-g) gives lines. Code that was optimised needs no frame pointers.

Each thread is stopped while its stack is copied, and goes on as it was: a stopped rank stays stopped.`,
		Example: "  margay backtrace 7\n  margay backtrace 7 0 8-15",
		Args:    command.Arguments(1, -1),
		RunE: func(c *cobra.Command, args []string) error {
			job, err := command.ParseJob(args[0])
			if err != nil {
				return err
			}
			ranks, err := parseRanks(args[1:])
			if err != nil {
				return fmt.Errorf("backtrace: %w", err)
			}
			t, err := a.backtrace(c.Context(), job, ranks)
			if err != nil {
				return err
			}
			if a.JSON {
				return show.Value(a.Stdout, t)
			}
			t.print(a.Stdout, verbose)
			return nil
		},
	})
	c.Flags().BoolVarP(&verbose, "verbose", "v", false, "print addresses, paths, and idle threads of Go's runtime as well")
	return c
}

// parseRanks reads lists and ranges of ranks.
func parseRanks(args []string) (ranks []uint32, err error) {
	for _, arg := range args {
		more, err := nodeset.Parse(arg)
		if err != nil || strings.Contains(arg, "node") {
			return nil, fmt.Errorf("%q is not a list of ranks, such as 3, 0,2 or 4-7", arg)
		}
		ranks = append(ranks, more...)
	}
	slices.Sort(ranks)
	return slices.Compact(ranks), nil
}

// backtrace reads the stacks of a job's ranks, or of those named.
func (a commands) backtrace(ctx context.Context, job uint32, ranks []uint32) (*traces, error) {
	jobs, err := command.Ask[*control.Jobs](ctx, a.App, &control.ListJobs{Job: job})
	if err != nil {
		return nil, err
	}
	if err := a.refusal(ctx, jobs); err != nil {
		return nil, err
	}
	t := newTraces(job)
	nodes, err := t.choose(jobs, ranks)
	if err != nil {
		return nil, fmt.Errorf("backtrace: %w", err)
	}
	defer t.table.Close()
	unread := t.Unread
	answers := a.askStacks(ctx, t, nodes, nil)
	if layouts := t.layouts(answers); len(layouts) > 0 { // there are goroutines as well
		t.Unread = unread
		answers = a.askStacks(ctx, t, nodes, layouts)
	}
	for node, answer := range answers {
		t.add(ctx, node, answer)
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	t.finish()
	if len(t.Groups) == 0 && len(t.Unread) == 0 {
		return nil, fmt.Errorf("backtrace: the ranks of job %d have just ended", job)
	}
	return t, nil
}

// refusal returns why this user may not look into a job, nil if that is permitted. serve records
// the attempt.
func (a commands) refusal(ctx context.Context, jobs *control.Jobs) error {
	if len(jobs.Jobs) != 1 || !jobs.Jobs[0].Hidden {
		return nil
	}
	_, err := command.Ask[*control.Stacks](ctx, a.App, &control.ReadStacks{Job: jobs.Jobs[0].Job})
	return err
}

// askStacks asks nodes for the stacks of ranks, and notes those that cannot be read.
func (a commands) askStacks(ctx context.Context, t *traces, nodes map[uint32][]uint32, layouts []*control.GoLayout) map[uint32]*control.Stacks {
	answers := make(map[uint32]*control.Stacks)
	var mu sync.Mutex
	var asking sync.WaitGroup
	room := make(chan struct{}, stacksAtOnce)
	for node, ranks := range nodes {
		asking.Go(func() {
			room <- struct{}{}
			answer, err := command.AskWithin[*control.Stacks](ctx, a.App, &control.ReadStacks{Job: t.Job, Node: node, Ranks: ranks, Layouts: layouts}, stacksTimeout)
			<-room
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				answers[node] = answer
				return
			}
			for _, r := range ranks {
				t.Unread = append(t.Unread, unread{r, node, err.Error()})
			}
		})
	}
	asking.Wait()
	return answers
}

// maxLayouts bounds the programs of a job whose goroutines are read.
const maxLayouts = 16

// layouts returns where goroutines are in those programs of a job that have them.
func (t *traces) layouts(answers map[uint32]*control.Stacks) (layouts []*control.GoLayout) {
	seen := make(map[string]bool)
	for _, answer := range answers {
		for _, file := range answer.Files {
			key := file.Path + "\x00" + string(file.Build)
			if seen[key] || len(layouts) == maxLayouts {
				continue
			}
			seen[key] = true
			if l := t.table.GoLayout(file); l != nil {
				layouts = append(layouts, l)
			}
		}
	}
	return layouts
}

// traces are the stacks of a job, equal ones once.
type traces struct {
	Job    uint32   `json:"job"`
	Groups []*trace `json:"groups"`
	Unread []unread `json:"unread"`
	Left   uint32   `json:"left"` // threads that are left out

	table  *symbol.Table
	groups map[string]*trace // by their text
}

// trace is a stack, and the ranks that have it.
type trace struct {
	Ranks   []uint32 `json:"ranks"`   // in order
	Threads uint32   `json:"threads"` // of all these ranks
	Main    bool     `json:"main"`    // the first threads of the ranks are here, and others if there are more threads than ranks

	Goroutine bool `json:"goroutine"` // they are not threads but goroutines that no thread runs

	Frames []traceFrame `json:"frames"`
	Cut    bool         `json:"cut"` // there are more frames
}

// traceFrame is a frame for programs.
type traceFrame struct {
	Function string `json:"function"`
	File     string `json:"file"`
	Line     int    `json:"line"`
	Module   string `json:"module"`
	Address  uint64 `json:"address"`
	Inlined  bool   `json:"inlined"`
	text     string
}

// unread is a rank that could not be read.
type unread struct {
	Rank uint32 `json:"rank"`
	Node uint32 `json:"node"`
	Why  string `json:"why"`
}

func newTraces(job uint32) *traces {
	return &traces{Job: job, Groups: []*trace{}, Unread: []unread{}, table: symbol.NewTable(), groups: make(map[string]*trace)}
}

// choose returns the running ranks that are wanted, by node.
func (t *traces) choose(jobs *control.Jobs, ranks []uint32) (map[uint32][]uint32, error) {
	if len(jobs.Jobs) != 1 {
		return nil, fmt.Errorf("there is no job %d (margay ps -a)", t.Job)
	}
	j := jobs.Jobs[0]
	if j.Phase != control.JobPhase_JOB_RUNNING {
		return nil, fmt.Errorf("job %d does not run: its state is %s", t.Job, State(j))
	}
	nodes := make(map[uint32][]uint32)
	found := make(map[uint32]bool)
	for _, r := range j.RankStates {
		if len(ranks) > 0 && !slices.Contains(ranks, r.Rank) {
			continue
		}
		found[r.Rank] = true
		if !r.Ended {
			nodes[r.Node] = append(nodes[r.Node], r.Rank)
		} else if len(ranks) > 0 {
			t.Unread = append(t.Unread, unread{r.Rank, r.Node, "it has ended"})
		}
	}
	for _, r := range ranks {
		if !found[r] {
			return nil, fmt.Errorf("job %d has no rank %d: its ranks are 0 to %d", t.Job, r, len(j.RankStates)-1)
		}
	}
	if len(nodes) == 0 && len(t.Unread) == 0 {
		return nil, errors.New("all its ranks have ended")
	}
	return nodes, nil
}

// add adds what a node has answered, until ctx ends: names take a while to find.
func (t *traces) add(ctx context.Context, node uint32, m *control.Stacks) {
	t.Left += m.Left
	for _, u := range m.Unread {
		t.Unread = append(t.Unread, unread{u.Rank, node, u.Why})
	}
	for _, g := range m.Groups {
		if ctx.Err() != nil {
			return
		}
		frames := t.table.Stack(m.Files, g.Stack)
		for _, main := range []bool{true, false} {
			t.merge(frames, g, main)
		}
	}
}

// merge adds the ranks of a group whose first threads are in it, or the others.
func (t *traces) merge(frames []symbol.Frame, g *control.StackGroup, main bool) {
	var text strings.Builder
	fmt.Fprintln(&text, main, g.Goroutine, g.Stack.GetCut())
	for _, f := range frames {
		fmt.Fprintln(&text, f)
	}
	for i, rank := range g.Ranks {
		threads := uint32(1)
		if i < len(g.Threads) {
			threads = max(1, g.Threads[i])
		}
		if main != (i < len(g.Main) && g.Main[i]) {
			continue
		}
		known := t.groups[text.String()]
		if known == nil {
			known = &trace{Main: main, Goroutine: g.Goroutine, Cut: g.Stack.GetCut(), Frames: []traceFrame{}}
			for _, f := range frames {
				known.Frames = append(known.Frames, traceFrame{f.Function, f.File, f.Line, f.Module, f.Address, f.Inlined, f.String()})
			}
			t.groups[text.String()] = known
			t.Groups = append(t.Groups, known)
		}
		known.Ranks = append(known.Ranks, rank)
		known.Threads += threads
	}
}

// finish puts everything in order: first threads before others, the largest groups first.
func (t *traces) finish() {
	for _, g := range t.Groups {
		slices.Sort(g.Ranks)
		g.Ranks = slices.Compact(g.Ranks)
	}
	slices.SortFunc(t.Groups, func(a, b *trace) int {
		if a.Main != b.Main {
			if a.Main {
				return -1
			}
			return 1
		}
		return cmp.Or(cmp.Compare(len(b.Ranks), len(a.Ranks)), slices.Compare(a.Ranks, b.Ranks), cmp.Compare(a.text(), b.text()))
	})
	slices.SortFunc(t.Unread, func(a, b unread) int { return cmp.Compare(a.Rank, b.Rank) })
}

func (g *trace) text() string {
	var lines []string
	for _, f := range g.Frames {
		lines = append(lines, f.text)
	}
	return strings.Join(lines, "\n")
}

// idle reports whether the group is of threads or goroutines of Go's runtime: nothing of the
// program is on their stacks.
func (g *trace) idle() bool {
	for _, f := range g.Frames {
		if !ofRuntime(f) || f.Function == "runtime.main" {
			return false
		}
	}
	return len(g.Frames) > 0
}

// ofRuntime reports whether a frame is of Go's runtime.
func ofRuntime(f traceFrame) bool {
	return strings.HasPrefix(f.Function, "runtime.") || strings.HasPrefix(f.Function, "internal/runtime/")
}

// beginnings are functions that call the first one of a program or of a thread.
var beginnings = []string{"_start", "start_thread", "clone", "clone3", "__clone", "__clone3", "runtime.goexit"}

// shown returns the frames for people: without those that each program or thread begins with, and
// without the inner ones of Go's runtime.
func (g *trace) shown(verbose bool) []traceFrame {
	frames := g.Frames
	for !verbose && len(frames) > 1 && ofRuntime(frames[0]) && ofRuntime(frames[1]) {
		frames = frames[1:] // how Go makes it wait
	}
	for !verbose && len(frames) > 1 {
		name, _, _ := strings.Cut(frames[len(frames)-1].Function, "@") // a version of the symbol
		if !slices.Contains(beginnings, name) && !strings.HasPrefix(name, "__libc_start_") {
			break
		}
		frames = frames[:len(frames)-1]
	}
	return frames
}

// title names the threads of a group.
func (g *trace) title() string {
	ranks := "rank " + nodeset.Ranges(g.Ranks)
	if len(g.Ranks) > 1 {
		ranks = fmt.Sprintf("ranks %s (%d)", nodeset.Ranges(g.Ranks), len(g.Ranks))
	}
	kind := "thread"
	if g.Goroutine {
		kind = "goroutine"
	}
	threads := func(n uint32) string {
		if n == 1 {
			return "1 other " + kind
		}
		return fmt.Sprintf("%d other %ss", n, kind)
	}
	switch {
	case !g.Main:
		return threads(g.Threads) + " of " + ranks
	case int(g.Threads) > len(g.Ranks):
		return ranks + ", and " + threads(g.Threads-uint32(len(g.Ranks)))
	}
	return ranks
}

// print prints the stacks for people.
func (t *traces) print(w io.Writer, verbose bool) {
	idle := uint32(0)
	for _, g := range t.Groups {
		if g.idle() && !verbose {
			idle += g.Threads
			continue
		}
		fmt.Fprintf(w, "%s:\n", g.title())
		for _, f := range g.shown(verbose) {
			if verbose {
				fmt.Fprintf(w, "    %s  [%#x %s]\n", f.text, f.Address, printable.Line(cmp.Or(f.Module, "no file")))
			} else {
				fmt.Fprintf(w, "    %s\n", f.text)
			}
		}
		if g.Cut {
			fmt.Fprintln(w, "    ...")
		}
	}
	for _, u := range t.Unread {
		fmt.Fprintf(w, "rank %d on node%d cannot be read: %s\n", u.Rank, u.Node, printable.Line(u.Why))
	}
	if idle > 0 {
		fmt.Fprintf(w, "%d threads and goroutines of Go's runtime are not shown (-v prints them)\n", idle)
	}
	if t.Left > 0 {
		fmt.Fprintf(w, "%d threads are left out\n", t.Left)
	}
}
