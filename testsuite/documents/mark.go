package documents

import (
	"fmt"
	"regexp"
	"strings"
)

// Mark is what the comment in front of a block says.
type Mark struct {
	NotRun string // why the block is not run; empty: it is
	File   string // where a program goes, relative to the folder that the reader is in
	On     string // the one substrate that the block is for; empty: all
	Root   bool   // the block needs root
	Vary   []Class
}

// Class is a part of an output that may differ from run to run. What belongs to no class is
// compared exactly.
type Class struct {
	Name string // order, times, sizes, figures or a pattern
	hide func(text string) string
}

// Varies lists the classes that may differ.
func (m Mark) Varies() string {
	var names []string
	for _, c := range m.Vary {
		names = append(names, c.Name)
	}
	return strings.Join(names, ", ")
}

const markBegin, markEnd = "<!-- example: ", " -->"

func parseMark(line string) (Mark, error) {
	var m Mark
	if line == "" {
		return m, nil
	}
	body, ok := strings.CutSuffix(strings.TrimPrefix(line, markBegin), markEnd)
	if !ok {
		return m, fmt.Errorf("the mark %q is not closed on its line", line)
	}
	if reason, ok := strings.CutPrefix(strings.TrimSpace(body), "not run:"); ok {
		if m.NotRun = strings.TrimSpace(reason); m.NotRun == "" {
			return m, fmt.Errorf("the mark %q gives no reason", line)
		}
		return m, nil
	}
	for clause := range strings.SplitSeq(body, ";") {
		word, rest, _ := strings.Cut(strings.TrimSpace(clause), " ")
		rest = strings.TrimSpace(rest)
		var err error
		switch {
		case word == "file" && rest != "":
			m.File = rest
		case word == "on" && (rest == "qemu" || rest == "hosted"):
			m.On = rest
		case word == "as" && rest == "root":
			m.Root = true
		case word == "vary" && rest != "":
			m.Vary, err = parseClasses(rest)
		default:
			err = fmt.Errorf("the mark %q has the clause %q; there are file, on qemu, on hosted, as root, vary and not run: REASON", line, clause)
		}
		if err != nil {
			return m, err
		}
	}
	return m, nil
}

// classes are the names and the patterns of a list.
var classes = regexp.MustCompile(`\s*(/[^/]+/|[^,]*)\s*(?:,|$)`)

// parseClasses reads a list of classes. Patterns come before the others, as they are written for
// what the page shows.
func parseClasses(list string) ([]Class, error) {
	var patterns, named []Class
	for _, match := range classes.FindAllStringSubmatch(list, -1) {
		name := strings.TrimSpace(match[1])
		if len(name) > 2 && name[0] == '/' && name[len(name)-1] == '/' {
			pattern, err := regexp.Compile(name[1 : len(name)-1])
			if err != nil {
				return nil, err
			}
			patterns = append(patterns, Class{name, func(text string) string { return pattern.ReplaceAllString(text, "#") }})
			continue
		}
		hide := hiders[name]
		if hide == nil {
			return nil, fmt.Errorf("nothing varies by the name of %q; there are order, times, sizes, figures and /PATTERN/", name)
		}
		named = append(named, Class{name, hide})
	}
	return append(patterns, named...), nil
}
