package bench

import (
	"errors"
	"testing"

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

// TestPrograms measures every program a little: r0 is right, and a contender
// that cannot run it says why.
func TestPrograms(t *testing.T) {
	trusted := options(t, portable.New())
	trusted.Trusted = true
	for _, p := range Programs {
		results, err := p.Measure([]nimble.Options{options(t, portable.New()), options(t, refusing{}), trusted}, 1)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range results {
			switch {
			case i == 1:
				if !errors.Is(r.Err, errRefused) || r.PerInstruction() != 0 {
					t.Errorf("%s: %+v", p.Name, r)
				}
			case r.Err != nil || r.Instructions == 0 || r.Run <= 0 || r.Insert <= 0 || r.PerInstruction() <= 0:
				t.Errorf("%s: %+v", p.Name, r)
			}
		}
	}
}

func TestWrongAnswer(t *testing.T) {
	p := Programs[0]
	p.Want++
	results, err := p.Measure([]nimble.Options{options(t, portable.New())}, 1)
	if err != nil || results[0].Err == nil {
		t.Errorf("%+v, %v", results, err)
	}
	p.Name = "none"
	if _, err := p.Measure(nil, 1); err == nil {
		t.Error("a program without text")
	}
}
