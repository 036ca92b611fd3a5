// Package printable makes text that somebody else wrote fit for terminals and logs: what cannot be printed, such as the escape sequences
// of a terminal, becomes a question mark.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Line returns text in one line.
func Line(text string) string { return strings.Map(printed, text) }

// Lines returns text in the lines that it has. Tabs stay.
func Lines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printed(r)
	}, text)
}

// Short returns text in one line. Of what is longer than so many bytes, it has the beginning and the length.
func Short(text string, most int) string {
	if len(text) <= most {
		return Line(text)
	}
	return Line(strings.ToValidUTF8(text[:most], "")) + fmt.Sprintf("... (%d bytes)", len(text))
}

// Name returns a name as it is, or quoted as in Go when something in it cannot be printed.
func Name(name string) string {
	if Line(name) == name {
		return name
	}
	return strconv.Quote(name)
}

// printed is what stands for a rune. Bytes that are no UTF-8 come as the replacement character.
func printed(r rune) rune {
	if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
		return '?'
	}
	return r
}
