package printable

import (
	"fmt"
	"strings"
)

// Count writes a number of things by the word for one: "1 rank", "2 ranks", "3 accesses".
func Count(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "s"):
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
