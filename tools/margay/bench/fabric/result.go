package fabric

import "slices"

// Result is the figures of one contender in one case. Figures are 0 if there are none.
type Result struct {
	Place     string `json:"place"`
	Case      string `json:"case"`
	Contender string `json:"contender"`
	Unit      Unit   `json:"unit"` // of Median and P99

	Median      float64            `json:"median"`
	P99         float64            `json:"p99"` // 1 % of the repetitions are slower
	Repetitions int                `json:"repetitions"`
	Ranks       float64            `json:"rank_cpu_us"`   // processor time of all ranks, for one message or repetition
	Kernels     float64            `json:"kernel_cpu_us"` // processor time of node kernels for the same
	Speed       map[string]float64 `json:"speed,omitempty"`
	Absent      string             `json:"absent,omitempty"` // why there is no figure
	Failed      int                `json:"failed,omitempty"` // rounds that failed
	Error       string             `json:"error,omitempty"`  // of the last one

	c        Case
	peer     bool
	times    []uint64
	messages int
	cpu      float64 // nanoseconds in all
	kernels  float64
}

// add takes in the report of a round.
func (r *Result) add(p *Report) {
	r.times = append(r.times, p.Times...)
	r.messages = p.Messages
	r.Repetitions += p.Repetitions
	r.cpu += float64(p.CPU)
	r.kernels += float64(p.Kernels)
}

// finish computes the figures of the rounds.
func (r *Result) finish() {
	if len(r.times) == 0 {
		return
	}
	slices.Sort(r.times)
	r.Median = r.c.Value(float64(quantile(r.times, 50)), r.messages)
	r.P99 = r.c.Value(float64(quantile(r.times, 99)), r.messages)
	messages := float64(r.Repetitions) * float64(r.messages)
	r.Ranks, r.Kernels = r.cpu/messages/1e3, r.kernels/messages/1e3
}

// quantile returns the smallest of sorted numbers that is not below a percentage of them. It is at
// least 1, since times are divided by.
func quantile(sorted []uint64, percent int) uint64 {
	return max(1, sorted[(len(sorted)*percent+99)/100-1])
}

// compare sets how many times as fast each result is as each peer's in the same case and place.
func compare(results []*Result) {
	for _, r := range results {
		for _, other := range results {
			if r == other || !other.peer || r.Place != other.Place || r.Case != other.Case || r.Median == 0 || other.Median == 0 {
				continue
			}
			if r.Speed == nil {
				r.Speed = make(map[string]float64)
			}
			r.Speed[other.Contender] = r.Unit.speed(r.Median, other.Median)
		}
	}
}
