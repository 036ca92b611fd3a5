package bench

import (
	"slices"
	"testing"

	"margay/nimble"
	"margay/nimble/engine"
	"margay/nimble/engine/list"
	"margay/nimble/memory"
	"margay/nimble/verify"
)

// runsOfTurn is how many runs of a contender there are in a round of BenchmarkCall.
const runsOfTurn = 20_000

// BenchmarkCall measures one run of the program pick from Go: the extension's alone and in a
// burst, and the engine's alone. An iteration is a round in which each has its turn; a figure is
// the lower quartile of the rounds in nanoseconds of processor time.
func BenchmarkCall(b *testing.B) {
	for _, entry := range list.Engines {
		e, err := entry.Make()
		if err != nil || entry.Sparing || entry.Asked {
			continue
		}
		b.Run(entry.Name, func(b *testing.B) { benchmarkCall(b, e) })
	}
}

func benchmarkCall(b *testing.B, e engine.Engine) {
	p, err := Find("pick")
	if err != nil {
		b.Fatal(err)
	}
	spec, err := p.Spec()
	if err != nil {
		b.Fatal(err)
	}
	inserted, err := insert(p, spec, nimble.Options{Engine: e})
	if err != nil {
		b.Fatal(err)
	}
	defer inserted.Close()
	x := inserted.Runner.(*extension)
	code, m := alone(b, e, p, x.context)
	turns := turnsOf(x, code, m)
	times := make([][]float64, len(turns))
	for b.Loop() {
		for i, turn := range turns {
			watch := Start()
			r0, err := turn.run()
			times[i] = append(times[i], float64(watch.Stop())/runsOfTurn)
			if err != nil || r0 != p.Want {
				b.Fatalf("%s: %d, %v", turn.name, r0, err)
			}
		}
	}
	for i, turn := range turns {
		slices.Sort(times[i])
		b.ReportMetric(times[i][len(times[i])/4], turn.name)
	}
}

// turn is one measurement: runsOfTurn runs.
type turn struct {
	name string
	run  func() (uint64, error)
}

// turnsOf returns the measurements of an extension, and of its code alone.
func turnsOf(x *extension, code engine.Code, m *engine.Machine) []turn {
	return []turn{
		{"run-ns", func() (r0 uint64, err error) {
			for range runsOfTurn {
				r0, err = x.Extension.Run(&x.event)
			}
			return r0, err
		}},
		{"burst-ns", func() (r0 uint64, err error) {
			var burst nimble.Burst
			defer burst.End()
			for range runsOfTurn {
				r0, err = burst.Run(x.Extension, &x.event)
			}
			return r0, err
		}},
		{"code-ns", func() (r0 uint64, err error) {
			for range runsOfTurn {
				m.Fuel = nimble.DefaultFuel
				r0, err = code.Run(m)
			}
			return r0, err
		}},
	}
}

// alone makes the code and the machine of a program without an extension around them.
func alone(b *testing.B, e engine.Engine, p *Program, context *memory.Memory) (engine.Code, *engine.Machine) {
	spec, err := p.Spec()
	if err != nil {
		b.Fatal(err)
	}
	program, err := verify.Verify(spec, verify.Config{Context: p.Context()})
	if err != nil {
		b.Fatal(err)
	}
	code, err := e.Thread(program, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { code.Close() })
	m, err := engine.NewMachine(program, nil, 1)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { m.Close() })
	m.SetContext(context.Region(true))
	m.Args[0], m.Args[1] = m.Context().Base, m.Context().Length
	return code, m
}
