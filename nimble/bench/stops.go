package bench

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"runtime/metrics"
	"sync"
	"sync/atomic"
	"time"

	"margay/nimble"
	"margay/nimble/asm"
	"margay/nimble/engine"
	"margay/nimble/object"
)

// Stops is how long this process took to stop all its goroutines, which the
// garbage collector asks for again and again. The runtime measures it, from the
// request until the last one has stopped, in classes: a figure is the upper end
// of its class.
type Stops struct {
	Count                uint64
	Median, P99, Longest time.Duration
}

// Loops are programs without end: of the fastest instructions, and of the
// slowest that need no memory.
var Loops = map[string]string{
	"add": "add r0, 1\nja -2",
	"div": "mov r1, -1\nmov r0, -1\ndiv r0, r1\ndiv r0, r1\nja -4",
}

// MeasureStops stops the world for d, with a loop of an extension on every
// processor of the process. Without options the loops are of Go, which can be
// stopped anywhere.
func MeasureStops(o *nimble.Options, loop string, d time.Duration) (Stops, error) {
	var ended atomic.Bool
	run := func() error {
		for !ended.Load() {
			continue
		}
		return nil
	}
	if o != nil {
		program, err := asm.Parse(Loops[loop])
		if err != nil {
			return Stops{}, err
		}
		limited := *o
		limited.Limits = nimble.Limits{Fuel: 1 << 62, MaxTime: d}
		run = func() error { return endless(&object.Spec{Name: loop, Instructions: program}, limited) }
	}
	errs := make([]error, runtime.GOMAXPROCS(0))
	var loops sync.WaitGroup
	for n := range errs {
		loops.Go(func() { errs[n] = run() })
	}
	stops := stopWorld(d)
	ended.Store(true)
	loops.Wait()
	return stops, errors.Join(errs...)
}

// endless runs a program until its time is over.
func endless(spec *object.Spec, o nimble.Options) error {
	x, err := nimble.Insert(spec, o)
	if err != nil {
		return err
	}
	defer x.Close()
	r0, err := x.Run(&nimble.Event{})
	if fault, ok := errors.AsType[*engine.Fault](err); !ok || fault.Kind != engine.Time {
		return fmt.Errorf("a loop without end has ended with %d, %v", r0, err)
	}
	return nil
}

// stopWorld stops the world at random times for d.
func stopWorld(d time.Duration) Stops {
	before := stopTimes()
	for start := time.Now(); time.Since(start) < d; {
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		pause := time.Duration(rand.IntN(int(time.Millisecond)))
		for from := time.Now(); time.Since(from) < pause; {
			continue
		}
	}
	after := stopTimes()
	for n := range after.Counts {
		after.Counts[n] -= before.Counts[n]
	}
	return newStops(after)
}

// stopTimes returns how often the world took how long to stop, the collector's
// own stops apart.
func stopTimes() *metrics.Float64Histogram {
	sample := []metrics.Sample{{Name: "/sched/pauses/stopping/other:seconds"}}
	metrics.Read(sample)
	return sample[0].Value.Float64Histogram()
}

func newStops(times *metrics.Float64Histogram) (s Stops) {
	for _, count := range times.Counts {
		s.Count += count
	}
	var seen uint64
	for n, count := range times.Counts {
		if count == 0 {
			continue
		}
		end := time.Duration(times.Buckets[n+1] * float64(time.Second))
		if seen*2 < s.Count {
			s.Median = end
		}
		if seen*100 < s.Count*99 {
			s.P99 = end
		}
		s.Longest = end
		seen += count
	}
	return s
}
