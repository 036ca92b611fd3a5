package bring

import (
	"fmt"
	"strings"
)

// shownNotes is how many of many notes are kept.
const shownNotes = 5

// Notes are messages about files: all are counted, and the first few are kept.
type Notes struct {
	Count int
	first []string
}

func (n *Notes) add(format string, args ...any) {
	if n.Count++; n.Count <= shownNotes {
		n.first = append(n.first, fmt.Sprintf(format, args...))
	}
}

// String returns the notes as one line.
func (n *Notes) String() string {
	text := strings.Join(n.first, "; ")
	if more := n.Count - len(n.first); more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}
