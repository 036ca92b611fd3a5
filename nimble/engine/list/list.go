// Package list is the one place that names all engines. Commands and tests
// import it; nothing else does, so that a program carries only the engines it
// uses.
package list

import (
	"fmt"

	"margay/nimble/engine"
	"margay/nimble/engine/direct"
	"margay/nimble/engine/linux"
	"margay/nimble/engine/portable"
	"margay/nimble/engine/subroutine"
)

// Entry is an engine and how to get it here.
type Entry struct {
	Name, About string
	Make        func() (engine.Engine, error) // the error says why there is none here

	// Asked says that it runs what is given to it by name, and nothing else.
	Asked bool

	// Sparing says that inserting programs by the thousand may hang the machine.
	Sparing bool
}

// Engines are those that Nimble is designed for, in the order of
// preference.
var Engines = []Entry{
	{Name: "subroutine", About: "machine code made at insertion, on linux/amd64", Make: subroutine.New},
	{Name: "direct", About: "direct-threaded code, on amd64 and arm64", Make: direct.New},
	{Name: "portable", About: "a switch in Go, on every machine", Make: func() (engine.Engine, error) { return portable.New(), nil }},
	{Name: "linux", About: "the kernel of this machine, as an accelerator", Make: linux.New, Asked: true, Sparing: true},
	{
		Name: "subroutine-calls", About: "machine code that calls a subroutine for each instruction, to be measured beside the others",
		Make: subroutine.NewCalls, Asked: true,
	},
}

// Automatic returns the engine that gives a program to the first one, in the
// order of preference, that is here and takes it.
func Automatic() engine.Engine {
	var offers []engine.Offer
	for _, entry := range Engines {
		if entry.Asked {
			continue
		}
		e, err := entry.Make()
		offers = append(offers, engine.Offer{Name: entry.Name, Engine: e, Err: err})
	}
	return engine.Choose(offers...)
}

// Find returns the engine of a name, or Automatic for an empty name.
func Find(name string) (engine.Engine, error) {
	if name == "" {
		return Automatic(), nil
	}
	for _, entry := range Engines {
		if name != entry.Name {
			continue
		}
		e, err := entry.Make()
		if err != nil {
			return nil, fmt.Errorf("engine %s: %w", name, err)
		}
		return e, nil
	}
	return nil, fmt.Errorf("there is no engine %q; see margay nimble engines", name)
}
