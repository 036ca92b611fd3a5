package driver

import (
	"io"
	"strconv"

	"margay/nimble/asm"
	"margay/nimble/object"
)

// List writes a program as text for package asm. Comments name the source lines
// of an object, and each slot if slots is set.
func List(w io.Writer, spec *object.Spec, slots bool) error {
	source, last := make(map[int]string), ""
	for _, line := range spec.Lines {
		if text := line.String() + ": " + line.Text; text != last {
			source[line.Slot], last = text, text
		}
	}
	notes := asm.Notes{Above: func(slot int) string { return OneLine(source[slot]) }}
	if slots {
		notes.Beside = strconv.Itoa
	}
	return asm.Print(w, spec, notes)
}
