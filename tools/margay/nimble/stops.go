package nimble

import (
	"maps"
	"slices"
	"time"

	"margay/nimble"
	"margay/nimble/bench"
	"margay/tools/margay/show"
)

// stop is one line of margay nimble bench --stops, for programs.
type stop struct {
	Loop    string `json:"loop"`
	Engine  string `json:"engine"` // empty: of Go
	Stops   uint64 `json:"stops"`
	Median  int64  `json:"ns_median"`
	P99     int64  `json:"ns_p99"`
	Longest int64  `json:"ns_longest"`
}

// nimbleStops measures how long the world takes to stop beside loops on each
// engine, and beside loops of Go.
func (a commands) nimbleStops(contenders []nimble.Options, d time.Duration) error {
	var stops []stop
	measure := func(o *nimble.Options, loop, engine string) error {
		s, err := bench.MeasureStops(o, loop, d)
		stops = append(stops, stop{loop, engine, s.Count, int64(s.Median), int64(s.P99), int64(s.Longest)})
		return err
	}
	if err := measure(nil, "Go", ""); err != nil {
		return err
	}
	for _, loop := range slices.Sorted(maps.Keys(bench.Loops)) {
		for _, o := range contenders {
			if o.Trusted {
				continue
			}
			if err := measure(&o, loop, o.Engine.Name()); err != nil {
				return err
			}
		}
	}
	if a.JSON {
		return show.Value(a.Stdout, stops)
	}
	t := show.NewTable(a.Stdout, "LOOP", "ENGINE", "STOPS", "MEDIAN", "99 %", "LONGEST")
	for _, s := range stops {
		t.Row(s.Loop, s.Engine, s.Stops, time.Duration(s.Median), time.Duration(s.P99), time.Duration(s.Longest))
	}
	return t.Flush()
}
