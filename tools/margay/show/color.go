package show

import (
	"fmt"
	"io"
	"os"
)

// Color is the color of a state on a terminal.
type Color string

// The colors of states. They are of the eight that every terminal has.
const (
	Good    Color = "\x1b[32m" // up, running
	Passing Color = "\x1b[33m" // on the way to another state
	Bad     Color = "\x1b[31m" // dead, failed
	Past    Color = "\x1b[2m"  // ended without an error
)

const uncolored = "\x1b[m"

// State is a cell of a table that has a color where colors are shown.
type State struct {
	Text  string
	Color Color // empty: none
}

func (s State) String() string { return s.Text }

// When is the value of a flag, auto, always or never: it selects whether colors are shown. The zero
// value is auto.
type When string

// Set implements the value of a flag.
func (w *When) Set(text string) error {
	switch text {
	case "auto", "always", "never":
		*w = When(text)
		return nil
	}
	return fmt.Errorf("it must be auto, always or never")
}

func (w *When) String() string {
	if *w == "" {
		return "auto"
	}
	return string(*w)
}

// Type implements the value of a flag.
func (w *When) Type() string { return "when" }

// On reports whether colors are shown on out: by default on a terminal that has some, unless
// NO_COLOR is in the environment (https://no-color.org).
func (w *When) On(out io.Writer) bool {
	switch *w {
	case "always":
		return true
	case "never":
		return false
	}
	term := os.Getenv("TERM")
	return term != "" && term != "dumb" && os.Getenv("NO_COLOR") == "" && IsTerminal(out)
}
