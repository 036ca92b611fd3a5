// Package printable makes untrusted text safe for terminals and logs: unprintable characters, such
// as the escape sequences of a terminal, become question marks.
package printable

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
)

// Line returns text as one line.
func Line(text string) string { return strings.Map(printed, text) }

// Lines is Line, but keeps line breaks and tabs.
func Lines(text string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printed(r)
	}, text)
}

// Short is Line for text of at most most bytes. Longer text is cut, and its length is appended.
func Short(text string, most int) string {
	if len(text) <= most {
		return Line(text)
	}
	return Line(strings.ToValidUTF8(text[:most], "")) + fmt.Sprintf("... (%d bytes)", len(text))
}

// Name returns a printable name unchanged, and any other one quoted as in Go.
func Name(name string) string {
	if Line(name) == name {
		return name
	}
	return strconv.Quote(name)
}

// printed maps a rune to itself or to a question mark. Invalid UTF-8 arrives here as the
// replacement character.
func printed(r rune) rune {
	if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
		return '?'
	}
	return r
}
