package sim

import (
	"cmp"
	"errors"
	"fmt"
	"time"
)

// scaled returns a setting whose nodes work num/den as much.
func (w Work) scaled(num, den int64) Work {
	for _, d := range []*time.Duration{&w.Client, &w.Message, &w.Node, &w.Prepare, &w.Start, &w.End, &w.Forget, &w.Spare} {
		*d = *d * time.Duration(num) / time.Duration(den)
	}
	return w
}

// Fit returns a setting in which a job on one node and a job on eight take these times: it scales
// the work that each node of a job makes, and chooses the work of margay run, which a job of any size
// has once.
func Fit(s Setting, one, eight time.Duration) (Setting, error) {
	const unit = 1 << 20
	run := func(s Setting, nodes int) (time.Duration, error) {
		r, err := Run(s, Job{Nodes: nodes, Spares: true})
		return r.Done, err
	}
	with := s
	low, high := int64(0), int64(1024*unit)
	for low+1 < high {
		middle := (low + high) / 2
		with.Work = s.Work.scaled(middle, unit)
		with.Work.Launcher = 0
		a, err := run(with, 1)
		if err != nil {
			return s, err
		}
		with.Work.Launcher = max(0, one-a)
		b, err := run(with, 8)
		if err != nil {
			return s, err
		}
		if b > eight {
			high = middle
		} else {
			low = middle
		}
	}
	for nodes, want := range map[int]time.Duration{1: one, 8: eight} {
		got, err := run(with, nodes)
		if off := got - want; err != nil || off.Abs() > want/100 {
			return s, fmt.Errorf("sim: no work of %s makes jobs take %v on one node and %v on eight: %d nodes take %v: %w", s.Name, one, eight, nodes, got, cmp.Or(err, errFit))
		}
	}
	return with, nil
}

var errFit = errors.New("there is no fit")
