package show

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// Width returns the number of columns of a terminal, or 0 if w is not a terminal.
func Width(w io.Writer) int {
	f, ok := FileOf(w)
	if !ok {
		return 0
	}
	columns, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return columns
}

// narrowest is the least room that text is folded into.
const narrowest = 20

// Fold breaks a line at blanks so that its parts fit into width columns. All parts but the first
// begin at the column indent.
func Fold(line string, width, indent int) string {
	if width < indent+narrowest {
		indent = 4
	}
	if width < indent+narrowest || utf8.RuneCountInString(line) <= width {
		return line
	}
	runes := []rune(line)
	var parts []string
	for len(runes) > width {
		end := width
		for end > indent && runes[end] != ' ' {
			end--
		}
		if end == indent {
			end = width // one long word
		}
		parts = append(parts, strings.TrimRight(string(runes[:end]), " "))
		rest := strings.TrimLeft(string(runes[end:]), " ")
		runes = []rune(strings.Repeat(" ", indent) + rest)
	}
	return strings.Join(append(parts, string(runes)), "\n")
}

// IsTerminal reports whether w is a terminal.
func IsTerminal(w io.Writer) bool {
	f, ok := FileOf(w)
	return ok && term.IsTerminal(int(f.Fd()))
}

// FileOf returns the file that a standard stream is, or has below it.
func FileOf(stream any) (f *os.File, ok bool) {
	if w, ours := stream.(interface{ Below() io.Writer }); ours {
		stream = w.Below()
	}
	f, ok = stream.(*os.File)
	return f, ok
}

// Widest returns how many columns the longest line has.
func Widest(lines []string) (columns int) {
	for _, line := range lines {
		columns = max(columns, utf8.RuneCountInString(line))
	}
	return columns
}
