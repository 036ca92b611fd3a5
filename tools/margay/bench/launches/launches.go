// Package launches measures how long launchers take for a job that does nothing, in turns of one
// run, and prints the figures.
//
// In each round every contender has its turn, one after the other, so that other load affects all
// of them alike. After each turn there is a pause, in which a contender may prepare its next job.
package launches

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"margay/tools/margay/bench/page"
)

// Contender is a way to run one process on each of some nodes.
type Contender struct {
	Name string
	Peer bool // Margay is compared with it
	// Run runs such a job, and returns how long that has taken.
	Run func(ctx context.Context, nodes int) (time.Duration, error)
}

// Ours is the name of the contender that is compared with peers.
const Ours = "Margay"

// Plan is how often to measure.
type Plan struct {
	Rounds int
	Pause  time.Duration // after each turn
}

// Result is what a contender has taken for jobs on a number of nodes. Times are in milliseconds.
type Result struct {
	Nodes     int     `json:"nodes"`
	Contender string  `json:"contender"`
	Jobs      int     `json:"jobs"`
	Median    float64 `json:"median_ms"` // 0: no job has succeeded
	Best      float64 `json:"best_ms"`
	Worst     float64 `json:"worst_ms"`
	Failed    int     `json:"failed,omitempty"`
	Error     string  `json:"error,omitempty"` // of the last one that has failed

	// Speed is how many times as fast Margay is as each peer, by medians. Only Ours has it.
	Speed map[string]float64 `json:"speed_to,omitempty"`

	times []time.Duration
	peer  bool
}

// jobLimit bounds one job.
const jobLimit = time.Minute

// warmUps are jobs of each contender before the first round.
const warmUps = 2

// Measure lets contenders run jobs on a number of nodes. An error of a contender is in its result;
// the error that Measure returns is the end of ctx. Progress is called before each round.
func Measure(ctx context.Context, nodes int, contenders []Contender, plan Plan, progress func(format string, args ...any)) ([]*Result, error) {
	var results []*Result
	for _, c := range contenders {
		results = append(results, &Result{Nodes: nodes, Contender: c.Name, peer: c.Peer})
	}
	for round := -warmUps; round < plan.Rounds; round++ {
		progress("%d nodes: round %d of %d", nodes, max(0, round+1), plan.Rounds)
		for i, c := range contenders {
			took, err := turn(ctx, c, nodes, plan.Pause)
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if round >= 0 {
				results[i].add(took, err)
			}
		}
	}
	for _, r := range results {
		r.finish()
	}
	compare(results)
	return results, nil
}

// turn runs one job, and waits for the pause after it.
func turn(ctx context.Context, c Contender, nodes int, pause time.Duration) (time.Duration, error) {
	limited, cancel := context.WithTimeout(ctx, jobLimit)
	defer cancel()
	took, err := c.Run(limited, nodes)
	select {
	case <-time.After(pause):
	case <-ctx.Done():
	}
	return took, err
}

// add takes the outcome of a job.
func (r *Result) add(took time.Duration, err error) {
	if err != nil {
		r.Failed++
		r.Error = err.Error()
		return
	}
	r.times = append(r.times, took)
}

// finish computes the figures.
func (r *Result) finish() {
	r.Jobs = len(r.times)
	if r.Jobs == 0 {
		return
	}
	slices.Sort(r.times)
	r.Best, r.Median, r.Worst = milliseconds(r.times[0]), milliseconds(r.times[(r.Jobs-1)/2]), milliseconds(r.times[r.Jobs-1])
}

// milliseconds returns a time that is never 0.
func milliseconds(t time.Duration) float64 { return float64(max(1, t)) / float64(time.Millisecond) }

// compare computes how many times as fast Margay is as each peer.
func compare(results []*Result) {
	i := slices.IndexFunc(results, func(r *Result) bool { return r.Contender == Ours && r.Jobs > 0 })
	if i < 0 {
		return
	}
	results[i].Speed = make(map[string]float64)
	for _, r := range results {
		if r.peer && r.Jobs > 0 {
			results[i].Speed[r.Contender] = r.Median / results[i].Median
		}
	}
}

// Figures are a whole measurement.
type Figures struct {
	Host    page.Host `json:"host"`
	Plan    string    `json:"plan"`
	Notes   []string  `json:"notes"`
	Results []*Result `json:"results"`
}

// rowWriter is a table of the terminal.
type rowWriter interface {
	Row(cells ...any)
}

// Headings are the columns of Rows.
var Headings = []string{"NODES", "CONTENDER", "MEDIAN ms", "BEST", "WORST", "JOBS"}

// Rows writes a row for each result.
func (f *Figures) Rows(t rowWriter) {
	for _, r := range f.Results {
		t.Row(r.Nodes, r.Contender, number(r.Median), number(r.Best), number(r.Worst), r.Jobs)
	}
}

// number prints a figure with one decimal, and - for one that is not there.
func number(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", v)
}

// Text writes what people must know about the rows.
func (f *Figures) Text(w io.Writer) error {
	for _, line := range f.lines() {
		if _, err := fmt.Fprintln(w, line); err != nil {
			return err
		}
	}
	return nil
}

func (f *Figures) lines() []string {
	lines := append([]string{f.Host.Sentence(), f.Plan}, f.Notes...)
	for _, r := range f.Results {
		if r.Failed > 0 {
			lines = append(lines, fmt.Sprintf("%s failed %d times on %d nodes (%s).", r.Contender, r.Failed, r.Nodes, r.Error))
		}
	}
	return lines
}

// Markdown writes a table with a row for each number of nodes: medians with the best, and how many
// times as fast Margay is as each peer.
func (f *Figures) Markdown(w io.Writer) error {
	var text strings.Builder
	lines := f.lines()
	fmt.Fprintf(&text, "%s %s\n\nMedian (best), ms:\n\n", lines[0], lines[1])
	contenders := distinct(f.Results, func(r *Result) string { return r.Contender })
	peers := distinct(slices.DeleteFunc(slices.Clone(f.Results), func(r *Result) bool { return !r.peer }), func(r *Result) string { return r.Contender })
	head, rule := "| nodes |", "|---:|"
	for _, name := range contenders {
		head, rule = head+" "+name+" |", rule+"---:|"
	}
	for _, name := range peers {
		head, rule = head+" speed to "+name+" |", rule+"---:|"
	}
	fmt.Fprintf(&text, "%s\n%s\n", head, rule)
	for _, nodes := range distinct(f.Results, func(r *Result) int { return r.Nodes }) {
		fmt.Fprintln(&text, f.row(nodes, contenders, peers))
	}
	if len(lines) > 2 {
		text.WriteString("\n")
	}
	for _, line := range lines[2:] {
		fmt.Fprintf(&text, "* %s\n", strings.ReplaceAll(line, "\n", " "))
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// row is the line of a table in Markdown for a number of nodes.
func (f *Figures) row(nodes int, contenders, peers []string) string {
	row := fmt.Sprintf("| %d |", nodes)
	for _, name := range contenders {
		if r := f.find(nodes, name); r != nil && r.Jobs > 0 {
			row += fmt.Sprintf(" %s (%s) |", number(r.Median), number(r.Best))
		} else {
			row += " - |"
		}
	}
	ours := f.find(nodes, Ours)
	for _, name := range peers {
		if ours != nil && ours.Speed[name] > 0 {
			row += fmt.Sprintf(" %.2f |", ours.Speed[name])
		} else {
			row += " - |"
		}
	}
	return row
}

// find returns a result, nil if there is none.
func (f *Figures) find(nodes int, contender string) *Result {
	for _, r := range f.Results {
		if r.Nodes == nodes && r.Contender == contender {
			return r
		}
	}
	return nil
}

// distinct returns the values of results in the order of their first appearance.
func distinct[V comparable](results []*Result, value func(*Result) V) (values []V) {
	for _, r := range results {
		if v := value(r); !slices.Contains(values, v) {
			values = append(values, v)
		}
	}
	return values
}
