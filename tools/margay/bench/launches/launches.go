// Package launches measures how long launchers take for jobs, in turns of one run, and prints the
// figures.
//
// In each round every contender has its turn, one after the other, so that other load affects all
// of them alike. Each turn waits until what all of them have started is at rest, so that the end of
// one job, and the preparations for the next one of its contender, disturb no other.
package launches

import (
	"context"
	"fmt"
	"slices"
	"time"

	"margay/internal/printable"
)

// Work is what each contender does in a turn: it runs a process on each of some nodes, or many such
// jobs.
type Work struct {
	Nodes   int
	Program string // with its arguments, none
	Size    int    // of the program, in MiB; 0: a small one
	Jobs    int    // how many jobs; 0: one
	AtOnce  int    // of many jobs, so many at the same time
}

// Contender is a way to do work.
type Contender struct {
	Name string
	Peer bool // Margay is compared with it
	// Run does the work, and returns how long that has taken.
	Run func(ctx context.Context, w Work) (time.Duration, error)
}

// Ours is the name of the contender that is compared with peers.
const Ours = "Margay"

// Plan is how often to measure.
type Plan struct {
	WarmUps int // turns of each contender before the first round
	Rounds  int
	// Rest waits before each turn, and reports whether all is at rest then. Its error ends the
	// measurement.
	Rest    func(ctx context.Context) (bool, error)
	Limit   time.Duration // bounds one turn
	Silence time.Duration // a turn is reported when there was no progress for longer
}

// Result is what a contender has taken for its work. Times are in milliseconds.
type Result struct {
	Nodes     int     `json:"nodes"`
	Size      int     `json:"size_mib,omitempty"`
	Contender string  `json:"contender"`
	Jobs      int     `json:"jobs"`
	Median    float64 `json:"median_ms"` // 0: no turn has succeeded
	Best      float64 `json:"best_ms"`
	Worst     float64 `json:"worst_ms"`
	Rate      float64 `json:"jobs_per_second,omitempty"` // of many jobs, by the median
	Failed    int     `json:"failed,omitempty"`
	Error     string  `json:"error,omitempty"`    // of the last turn that has failed
	Restless  int     `json:"restless,omitempty"` // turns that have begun before all was at rest

	// Speed is how many times as fast Margay is as each peer, by medians. Only Ours has it.
	Speed map[string]float64 `json:"speed_to,omitempty"`

	times []time.Duration
	work  Work
	each  int // jobs of a turn
	peer  bool
}

// Measure lets contenders do work. An error of a contender is in its result; the error that Measure
// returns is the end of ctx, or of the plan's Rest. Progress is called before each round, and
// before turns of long rounds.
func Measure(ctx context.Context, w Work, contenders []Contender, plan Plan, progress func(format string, args ...any)) ([]*Result, error) {
	var results []*Result
	for _, c := range contenders {
		results = append(results, &Result{Nodes: w.Nodes, Size: w.Size, Contender: c.Name, work: w, each: max(1, w.Jobs), peer: c.Peer})
	}
	for round := -plan.WarmUps; round < plan.Rounds; round++ {
		name := fmt.Sprintf("%v: round %d of %d", w, round+1, plan.Rounds)
		if round < 0 {
			name = fmt.Sprintf("%v: warm-up", w)
		}
		progress("%s", name)
		said := time.Now()
		for i, c := range contenders {
			if time.Since(said) > plan.Silence {
				progress("%s: %s", name, c.Name)
				said = time.Now()
			}
			if err := turn(ctx, c, w, plan, round >= 0, results[i]); err != nil {
				return nil, err
			}
		}
	}
	for _, r := range results {
		r.finish()
	}
	compare(results)
	return results, nil
}

// String describes the work in a few words.
func (w Work) String() string {
	s := printable.Count(w.Nodes, "node")
	if w.Size > 0 {
		s += fmt.Sprintf(", %d MiB", w.Size)
	}
	if w.Jobs > 0 {
		s += fmt.Sprintf(", %d jobs", w.Jobs)
	}
	return s
}

// turn lets a contender do the work once. The result gets the outcome if it counts. The error is
// Measure's.
func turn(ctx context.Context, c Contender, w Work, plan Plan, counts bool, r *Result) error {
	atRest, err := plan.Rest(ctx)
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, plan.Limit)
	defer cancel()
	took, err := c.Run(limited, w)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !counts {
		return nil
	}
	r.add(took, err)
	if !atRest {
		r.Restless++
	}
	return nil
}

// add takes the outcome of a turn.
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
	n := len(r.times)
	if n == 0 {
		return
	}
	r.Jobs = n * r.each
	slices.Sort(r.times)
	r.Best, r.Median, r.Worst = milliseconds(r.times[0]), milliseconds(r.times[(n-1)/2]), milliseconds(r.times[n-1])
	if r.each > 1 {
		r.Rate = float64(r.each) * 1000 / r.Median
	}
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
