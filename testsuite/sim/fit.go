package sim

import (
	"errors"
	"fmt"
	"time"
)

// scaled returns work whose parts that grow with the nodes are num/den as long.
func (w Work) scaled(num, den int64) Work {
	for _, d := range []*time.Duration{&w.Client, &w.Message, &w.Node, &w.Prepare, &w.Start, &w.End, &w.Forget, &w.Spare} {
		*d = *d * time.Duration(num) / time.Duration(den)
	}
	w.Unpack = w.Unpack * Picoseconds(num) / Picoseconds(den)
	return w
}

// errFit reports times that no constants explain.
var errFit = errors.New("sim: no work of the nodes and of margay run explains these times")

// Fit returns a setting in which a job on one node and a job on eight take these times: it scales
// the work that each node of a job makes, and chooses the work of margay run, which a job has once.
func Fit(s Setting, one, eight time.Duration) (Setting, error) {
	const unit = 1 << 20
	var err error
	done := func(s Setting, nodes int) time.Duration {
		r, failed := Run(s, Job{Nodes: nodes, Spares: true})
		err = errors.Join(err, failed)
		return r.Done
	}
	fit := s
	bisect(1024*unit, func(scale int64) bool {
		fit.Work = s.Work.scaled(scale, unit)
		bisect(int64(one), func(launcher int64) bool {
			fit.Work.Launcher = time.Duration(launcher)
			return done(fit, 1) > one
		})
		return done(fit, 8) > eight
	})
	for _, c := range []struct {
		nodes int
		want  time.Duration
	}{{1, one}, {8, eight}} {
		if got := done(fit, c.nodes); err != nil || (got-c.want).Abs() > c.want/100 {
			return s, errors.Join(err, fmt.Errorf("%w: %v on one node, %v on eight", errFit, one, eight))
		}
	}
	return fit, nil
}

// bisect calls above with numbers below end. The last call is with the largest one for that it
// returns false.
func bisect(end int64, above func(int64) bool) {
	low, high := int64(0), end
	for low+1 < high {
		if middle := (low + high) / 2; above(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	above(low)
}
