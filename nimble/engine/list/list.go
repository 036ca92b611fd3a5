// Package list is the one place that names all engines. Only commands and tests
// import it, so that a program contains only the engines that it uses.
package list

import (
	"fmt"

	"margay/nimble/engine"
	"margay/nimble/engine/direct"
	"margay/nimble/engine/linux"
	"margay/nimble/engine/portable"
	"margay/nimble/engine/subroutine"
)

// Entry describes an engine and makes it.
type Entry struct {
	Name, About string
	Make        func() (engine.Engine, error) // the error says why it is not available here

	// Asked excludes the engine from Automatic: it must be chosen by name.
	Asked bool

	// Sparing warns that inserting programs by the thousand may hang the machine.
	Sparing bool
}

// Engines lists all engines, the preferred one first.
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

// Automatic returns an engine that passes each program to the first engine of
// Engines that is available here and accepts it.
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
