package engine_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"margay/nimble/engine"
	"margay/nimble/engine/enginetest"
	"margay/nimble/engine/portable"
	"margay/nimble/state"
	"margay/nimble/verify"
)

// choosy takes no program.
type choosy struct{}

var errChoosy = errors.New("not this one")

func (choosy) Name() string                                              { return "choosy" }
func (choosy) Thread(*verify.Program, []*state.Map) (engine.Code, error) { return nil, errChoosy }

func TestChoice(t *testing.T) {
	missing := errors.New("not on this machine")
	offers := []engine.Offer{{Name: "missing", Err: missing}, {Name: "choosy", Engine: choosy{}}, {Name: "portable", Engine: portable.New()}}
	spec := enginetest.Generate(nil)
	p, err := verify.Verify(spec, verify.Config{Services: enginetest.Services()})
	if err != nil {
		t.Fatal(err)
	}
	var maps []*state.Map
	for _, m := range spec.Maps {
		made, err := state.New(m, state.Options{Cores: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer made.Close()
		maps = append(maps, made)
	}
	code, err := engine.Choose(offers...).Thread(p, maps)
	if err != nil {
		t.Fatal(err)
	}
	defer code.Close()
	chosen, ok := code.(*engine.Chosen)
	if !ok || chosen.Engine != "portable" || len(chosen.Passed) != 2 || !errors.Is(chosen.Passed[0], missing) || !errors.Is(chosen.Passed[1], errChoosy) {
		t.Errorf("chosen %+v", code)
	}
	if _, err := engine.Choose(offers[:2]...).Thread(p, maps); !errors.Is(err, missing) || !errors.Is(err, errChoosy) {
		t.Errorf("with no engine that takes it: %v", err)
	}
	if _, err := engine.Choose().Thread(p, maps); err == nil || !strings.Contains(err.Error(), "no engine") {
		t.Errorf("with no engine: %v", err)
	}
	slices.Reverse(offers)
	if code, err := engine.Choose(offers...).Thread(p, maps); err != nil || len(code.(*engine.Chosen).Passed) != 0 {
		t.Errorf("the best is not taken: %v, %v", code, err)
	} else if err := code.Close(); err != nil {
		t.Error(err)
	}
}
