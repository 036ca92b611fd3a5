package documents

import (
	"regexp"
	"slices"
	"strings"
)

// hiders replace what varies by a # that is the same in all outputs.
var hiders = map[string]func(string) string{
	"order":   sortLines,
	"times":   hideUnits(`(?:ns|µs|ms|s)`),
	"sizes":   hideUnits(`(?:B|KB|MB|KiB|MiB|GiB|bytes)`),
	"figures": hideFigures,
}

func sortLines(text string) string {
	lines := slices.Sorted(strings.Lines(text))
	return strings.Join(lines, "")
}

// hideUnits hides the numbers that have one of these units behind them. The units stay.
func hideUnits(units string) func(string) string {
	pattern := regexp.MustCompile(`(^|[^\w.])\d+(?:\.\d+)?( ?` + units + `)\b`)
	return func(text string) string { return pattern.ReplaceAllString(text, "$1#$2") }
}

// figure is a separate number: no part of a name as in node0, x00 or 7.3.4+deb13, and with nothing
// but a sign or a unit of rates around it.
var figure = regexp.MustCompile(`^([(~+-]*)\d+(?:\.\d+)?((?:%|ns|µs|ms|s)?[),:;.]*)$`)

func hideFigures(text string) string {
	return words.ReplaceAllStringFunc(text, func(word string) string { return figure.ReplaceAllString(word, "$1#$2") })
}

var (
	words  = regexp.MustCompile(`\S+`)
	blanks = regexp.MustCompile(` +`)
)

// elision is a line of a page that stands for any lines, or for none.
const elision = "..."

// Matches reports whether an output equals the page, except for the classes that the mark of the
// example allows to vary.
func (c Command) Matches(got string) bool {
	want := c.Want
	for _, class := range c.Example.Mark.Vary {
		got, want = class.hide(got), class.hide(want)
	}
	if c.Example.Mark.Vary != nil {
		// The width of a column depends on its cells.
		got, want = narrow(got), narrow(want)
	}
	return match(lines(want), lines(got))
}

func narrow(text string) string {
	return strings.ReplaceAll(blanks.ReplaceAllString(text, " "), " \n", "\n")
}

func lines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// match compares lines, where an elision of want takes as many as it needs.
func match(want, got []string) bool {
	for i, line := range want {
		if line == elision {
			for ; ; got = got[1:] {
				if match(want[i+1:], got) {
					return true
				}
				if len(got) == 0 {
					return false
				}
			}
		}
		if len(got) == 0 || got[0] != line {
			return false
		}
		got = got[1:]
	}
	return len(got) == 0
}
