package bench

import (
	"slices"
	"testing"

	"margay/nimble"
	"margay/nimble/engine/list"
)

// insertionsOfTurn is how many insertions there are in an iteration of BenchmarkInsert.
const insertionsOfTurn = 100

// BenchmarkInsert measures the insertion of the program straight, and its removal. The figure is
// the lower quartile of the iterations in microseconds of processor time.
func BenchmarkInsert(b *testing.B) {
	p, err := Find(Straight)
	if err != nil {
		b.Fatal(err)
	}
	spec, err := p.Spec()
	if err != nil {
		b.Fatal(err)
	}
	for _, entry := range list.Engines {
		e, err := entry.Make()
		if err != nil || entry.Sparing || entry.Asked {
			continue
		}
		b.Run(entry.Name, func(b *testing.B) {
			var times []float64
			for b.Loop() {
				watch := Start()
				for range insertionsOfTurn {
					x, err := nimble.Insert(spec, nimble.Options{Engine: e, Context: p.Context()})
					if err == nil {
						err = x.Close()
					}
					if err != nil {
						b.Fatal(err)
					}
				}
				times = append(times, watch.Stop().Seconds()*1e6/insertionsOfTurn)
			}
			slices.Sort(times)
			b.ReportMetric(times[len(times)/4], "insert-us")
		})
	}
}
