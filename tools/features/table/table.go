// Package table reads docs/features.txt: every feature of the systems that Margay follows, its
// state, and the tests that prove it.
//
//	# SYSTEM: what it is
//	ID STATE: description of the feature
//	  but: the missing part, or why it is not wanted
//	  by: FOLDER TEST TEST, FOLDER TEST
//
// A test is the name of a function, followed by /SUBTEST if only the subtest proves the feature.
// Spaces in names of subtests are underscores, as in go test. Lines that begin with // are
// comments.
package table

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// State is the state of a feature.
type State string

// The states. A feature that holds has tests; a partial one names its missing part; an unwanted one
// says why.
const (
	Holds     State = "holds"
	Partly    State = "partly"
	NotYet    State = "not yet"
	NotWanted State = "not wanted"
)

var states = []State{Holds, Partly, NotYet, NotWanted}

// Test is one test that proves a feature.
type Test struct {
	Folder string // of its package, from the root of the tree
	Name   string // of the function, and of subtests behind slashes
}

func (t Test) String() string { return t.Folder + " " + t.Name }

// Row is one feature.
type Row struct {
	ID      string
	State   State
	Feature string
	But     string
	Tests   []Test
}

// System is one of the systems that Margay follows, with its features.
type System struct {
	Title string
	Rows  []Row
}

// Table is the content of the file.
type Table []System

var head = regexp.MustCompile(`^([A-Z]\d+) (holds|partly|not yet|not wanted): (\S.*)$`)

// Parse reads a table. It refuses rows that say too little for their state, and two of one ID.
func Parse(text string) (Table, error) {
	var t Table
	number := 0
	for line := range strings.Lines(text) {
		number++
		if err := t.take(strings.TrimRight(line, " \n")); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	return t, t.check()
}

func (t *Table) take(line string) error {
	trimmed := strings.TrimSpace(line)
	if trimmed == "" || strings.HasPrefix(trimmed, "//") {
		return nil
	}
	if title, ok := strings.CutPrefix(line, "# "); ok {
		*t = append(*t, System{Title: title})
		return nil
	}
	if len(*t) == 0 {
		return fmt.Errorf("%q comes before the first system", line)
	}
	system := &(*t)[len(*t)-1]
	if m := head.FindStringSubmatch(line); m != nil {
		system.Rows = append(system.Rows, Row{ID: m[1], State: State(m[2]), Feature: m[3]})
		return nil
	}
	if len(system.Rows) == 0 {
		return fmt.Errorf("%q comes before the first row", line)
	}
	row := &system.Rows[len(system.Rows)-1]
	if but, ok := strings.CutPrefix(trimmed, "but: "); ok && row.But == "" {
		row.But = but
		return nil
	}
	if by, ok := strings.CutPrefix(trimmed, "by: "); ok {
		return row.takeTests(by)
	}
	return fmt.Errorf("%q is neither a row nor part of one", line)
}

func (r *Row) takeTests(list string) error {
	for group := range strings.SplitSeq(list, ",") {
		words := strings.Fields(group)
		if len(words) < 2 {
			return fmt.Errorf("%s: %q is not a folder with tests", r.ID, group)
		}
		for _, name := range words[1:] {
			if !strings.HasPrefix(name, "Test") && !strings.HasPrefix(name, "Fuzz") {
				return fmt.Errorf("%s: %q is not the name of a test", r.ID, name)
			}
			r.Tests = append(r.Tests, Test{words[0], name})
		}
	}
	return nil
}

// check refuses incomplete rows.
func (t Table) check() error {
	seen := make(map[string]bool)
	for _, system := range t {
		for _, r := range system.Rows {
			switch {
			case seen[r.ID]:
				return fmt.Errorf("%s: there are two rows with this ID", r.ID)
			case r.State == Holds && len(r.Tests) == 0:
				return fmt.Errorf("%s: it holds, but names no test", r.ID)
			case r.State != Holds && r.But == "":
				return fmt.Errorf("%s: the missing part or the reason is not given", r.ID)
			case r.State == NotWanted && len(r.Tests) > 0:
				return fmt.Errorf("%s: it is not wanted, and has tests", r.ID)
			}
			seen[r.ID] = true
		}
	}
	return nil
}

// Tests returns the tests of all rows, each once.
func (t Table) Tests() []Test {
	var all []Test
	for _, system := range t {
		for _, r := range system.Rows {
			for _, test := range r.Tests {
				if !slices.Contains(all, test) {
					all = append(all, test)
				}
			}
		}
	}
	return all
}

// Unproved returns a sentence for each test of a row that is missing in passed, which has lines
// "PACKAGE TEST".
func (t Table) Unproved(passed []string) []string {
	ran := make(map[string]bool, len(passed))
	for _, line := range passed {
		ran[line] = true
	}
	var lines []string
	for _, system := range t {
		for _, r := range system.Rows {
			for _, test := range r.Tests {
				if !ran["margay/"+test.String()] {
					lines = append(lines, fmt.Sprintf("docs/features.txt: %s: %s has not passed", r.ID, test))
				}
			}
		}
	}
	return lines
}
