package launch

import (
	"fmt"
	"strings"

	"margay/cluster/control"
	"margay/internal/printable"
)

// unkeptNames is how many files are named of those that were not kept.
const unkeptNames = 5

// Unkept says which files that ranks have written are gone with their job; nothing when there are
// none.
func Unkept(nodes []*control.Unkept) string {
	var files, named uint64
	least := ""
	var names []string
	on := make(map[string]int) // by name: nodes
	for _, u := range nodes {
		files += u.Files
		if u.More {
			least = "at least "
		}
		for _, name := range u.Names {
			if name = printable.Name(name); on[name] == 0 {
				names = append(names, name)
			}
			on[name]++
		}
	}
	var first []string
	for _, name := range names[:min(len(names), unkeptNames)] {
		named += uint64(on[name])
		if on[name] > 1 {
			name = fmt.Sprintf("%s (on %d nodes)", name, on[name])
		}
		first = append(first, name)
	}
	text := strings.Join(first, ", ")
	if named < files {
		text += fmt.Sprintf(" and %d more", files-named)
	}
	switch files {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("%s1 file written by ranks was not kept: %s", least, text)
	}
	return fmt.Sprintf("%s%d files written by ranks were not kept: %s", least, files, text)
}
