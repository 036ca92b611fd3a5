package engine

import (
	"errors"
	"fmt"

	"margay/nimble/state"
	"margay/nimble/verify"
)

// Offer is an engine, or the reason why it is not available here.
type Offer struct {
	Name   string
	Engine Engine
	Err    error
}

// Choice is an Engine that passes each program to the first of its engines that
// accepts it. It is safe for concurrent use.
type Choice struct{ offers []Offer }

// Choose makes a Choice of engines, the preferred one first.
func Choose(offers ...Offer) *Choice { return &Choice{offers} }

// Chosen is the Code that a Choice threads.
type Chosen struct {
	Code
	Engine string
	Passed []error // why the engines before it were not chosen
}

// Name implements Engine.
func (c *Choice) Name() string { return "automatic" }

// Thread implements Engine. The Code is a *Chosen.
func (c *Choice) Thread(p *verify.Program, maps []*state.Map) (Code, error) {
	var passed []error
	for _, o := range c.offers {
		err := o.Err
		if err == nil {
			var code Code
			if code, err = o.Engine.Thread(p, maps); err == nil {
				return &Chosen{code, o.Name, passed}, nil
			}
		}
		passed = append(passed, fmt.Errorf("engine %s: %w", o.Name, err))
	}
	return nil, errors.Join(append([]error{errors.New("no engine accepts the program")}, passed...)...)
}
