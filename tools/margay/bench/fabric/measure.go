package fabric

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Contender is a way to run cases on a place.
type Contender struct {
	Name string
	Peer bool // Margay is compared with it
	// Run runs a case once, for about the given length. The error is Absent if the contender does
	// not have the operation.
	Run func(ctx context.Context, c Case, length time.Duration) (*Report, error)
}

// Plan is how often and how long to measure.
type Plan struct {
	Rounds int
	Length time.Duration // of the repetitions of a case by a contender in a round, about
}

// turnLimit bounds a case by one contender in one round. The programs end themselves before.
const turnLimit = 40 * time.Second

// Measure measures cases on a place. An error of a contender is in its results; the error that
// Measure returns is the end of ctx. Progress is called before each turn.
func Measure(ctx context.Context, place Place, cases []Case, contenders []Contender, plan Plan, progress func(format string, args ...any)) ([]*Result, error) {
	var results []*Result
	for _, c := range cases {
		for _, contender := range contenders {
			results = append(results, &Result{Place: place.Name, Case: c.Name(), Contender: contender.Name, Unit: c.Unit, c: c, peer: contender.Peer})
		}
	}
	for round := range plan.Rounds {
		for i, c := range cases {
			progress("%s: round %d of %d: %s", place.Name, round+1, plan.Rounds, c.Title)
			for j, contender := range contenders {
				results[i*len(contenders)+j].turn(ctx, contender, plan.Length)
				if ctx.Err() != nil {
					return nil, context.Cause(ctx)
				}
			}
		}
	}
	for _, r := range results {
		r.finish()
	}
	compare(results)
	return results, nil
}

// turn lets a contender run the case, unless it is known not to have the operation.
func (r *Result) turn(ctx context.Context, contender Contender, length time.Duration) {
	if r.Absent != "" {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, turnLimit)
	defer cancel()
	report, err := contender.Run(ctx, r.c, length)
	var absent Absent
	switch {
	case errors.As(err, &absent):
		r.Absent = string(absent)
	case err != nil:
		r.Failed++
		r.Error = fmt.Sprint(err)
	default:
		r.add(report)
	}
}
