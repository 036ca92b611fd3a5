package bench

import (
	"errors"
	"slices"
	"testing"
	"time"

	"margay/nimble"
	"margay/nimble/driver"
	"margay/nimble/engine"
	"margay/nimble/engine/portable"
	"margay/nimble/state"
	"margay/nimble/verify"
)

func options(t *testing.T, e engine.Engine) nimble.Options {
	t.Helper()
	services, err := driver.Services("test")
	if err != nil {
		t.Fatal(err)
	}
	return nimble.Options{Engine: e, Services: services}
}

// refusing is an engine that takes nothing.
type refusing struct{}

var errRefused = errors.New("refused")

func (refusing) Name() string { return "refusing" }

func (refusing) Thread(*verify.Program, []*state.Map) (engine.Code, error) { return nil, errRefused }

// TestPrograms measures every program a little: r0 is right, a contender that
// cannot run it says why, and one that does not count has its instructions from
// one that does.
func TestPrograms(t *testing.T) {
	trusted := options(t, portable.New())
	trusted.Trusted = true
	bounded, once := Engine("bounded", trusted), Engine("once", trusted)
	bounded.Bounded, once.Once = true, true
	once.Insert, bounded.Insert = silently(once.Insert), silently(bounded.Insert)
	bounded.Once = true
	contenders := []Contender{Engine("portable", options(t, portable.New())), Engine("refusing", options(t, refusing{})), bounded, once}
	for _, p := range Programs() {
		plan := Plan{Rounds: 2, Turn: time.Microsecond}
		if p.Rounds > 0 {
			plan.Rounds = 1 // these take long
		}
		results := p.Measure(contenders, plan)
		for i, r := range results {
			switch {
			case i == 1:
				if !errors.Is(r.Err, errRefused) || r.PerInstruction() != 0 {
					t.Errorf("%s: %+v", p.Name, r)
				}
			case r.Err != nil || r.Instructions == 0 || r.Run <= 0 || r.Insert <= 0 || r.Size <= 0 || r.PerInstruction() <= 0:
				t.Errorf("%s on %s: %+v", p.Name, contenders[i].Name, r)
			}
		}
		if full, short := results[0].Instructions, results[2].Instructions; p.Rounds > 0 && short > full/5 || p.Rounds == 0 && short != full {
			t.Errorf("%s: bounded, it is %d instructions and not %d", p.Name, short, full)
		}
	}
}

// silently makes a contender that does not count instructions and cannot
// insert a program twice.
func silently(insert func(*Program) (*Inserted, error)) func(*Program) (*Inserted, error) {
	seen := make(map[string]bool)
	return func(p *Program) (*Inserted, error) {
		if seen[p.Name] {
			return nil, errors.New("inserted twice")
		}
		seen[p.Name] = true
		i, err := insert(p)
		if err == nil {
			i.Runner = silent{i.Runner}
		}
		return i, err
	}
}

type silent struct{ Runner }

func (s silent) Run(n int) (Turn, error) {
	t, err := s.Runner.Run(n)
	t.Instructions = 0
	return t, err
}

// clocked is a contender with given times. Its first run is not a figure: it determines the number
// of runs.
type clocked struct {
	want  uint64
	runs  []int
	times []float64
}

func (c *clocked) Run(n int) (Turn, error) {
	c.runs = append(c.runs, n)
	each := c.times[0]
	c.times = c.times[1:]
	return Turn{R0: c.want, Instructions: 4, Each: each}, nil
}

func (c *clocked) Close() error { return nil }

// A figure is the median of rounds, of as many runs as the plan's time takes; an insertion takes
// what it takes each time, and an instruction its part of a run.
func TestFigures(t *testing.T) {
	p := Programs()[0]
	c := &clocked{want: p.Want, times: []float64{100, 70, 20, 40}}
	took := []time.Duration{3000, 9000, 5000}
	contender := Contender{Name: "clocked", Insert: func(*Program) (*Inserted, error) {
		i := &Inserted{Runner: c, Took: took[0], Size: 77}
		took = took[1:]
		return i, nil
	}}
	r := p.Measure([]Contender{contender}, Plan{Rounds: 3, Turn: 10 * time.Microsecond})[0]
	if r.Err != nil || r.Run != 40 || r.Insert != 5000 || r.Size != 77 || r.Instructions != 4 || r.PerInstruction() != 10 {
		t.Errorf("%+v", r)
	}
	if want := []int{1, 101, 101, 101}; !slices.Equal(c.runs, want) {
		t.Errorf("runs %v, want %v", c.runs, want)
	}
}

func TestWrongAnswer(t *testing.T) {
	p := Programs()[0]
	p.Want++
	contenders := []Contender{Engine("portable", options(t, portable.New()))}
	if results := p.Measure(contenders, Plan{}); results[0].Err == nil {
		t.Errorf("%+v", results)
	}
	p.Name = "none"
	if results := p.Measure(contenders, Plan{}); results[0].Err == nil {
		t.Error("a program without text")
	}
}
