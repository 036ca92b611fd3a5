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

	// Sparing says that inserting programs by the thousand may hang the machine.
	Sparing bool
}

// Engines are those that Nimble is designed for, in the order of
// preference.
var Engines = []Entry{
	{"portable", "a switch in Go, on every machine", func() (engine.Engine, error) { return portable.New(), nil }, false},
	{"subroutine", "machine code made at insertion, on linux/amd64", subroutine.New, false},
	{"direct", "direct-threaded code, on amd64 and arm64", direct.New, false},
	{"linux", "the kernel of this machine, as an accelerator", linux.New, true},
	{"subroutine-calls", "machine code that calls a subroutine for each instruction, to be measured beside the others", subroutine.NewCalls, false},
}

// Find returns the engine of a name, or the first one there is for an empty
// name.
func Find(name string) (engine.Engine, error) {
	for _, entry := range Engines {
		if name != "" && name != entry.Name {
			continue
		}
		e, err := entry.Make()
		if err == nil {
			return e, nil
		}
		if name != "" {
			return nil, fmt.Errorf("engine %s: %w", name, err)
		}
	}
	return nil, fmt.Errorf("there is no engine %q; see margay nimble engines", name)
}
