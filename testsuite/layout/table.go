// Package layout checks that the tree keeps the rules of ARCHITECTURE.md.
package layout

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Cells of the table that stand for many packages or for none.
const (
	everything    = "everything"
	butTestsuite  = "everything but testsuite"
	nothing       = "—"
	testsuiteName = "testsuite"
)

// forTests is the package that every test may import.
const forTests = "internal/check"

// Row lists the packages that a package, or each package of a folder, may import.
type Row struct {
	Of    string   // a package, or FOLDER/... for a folder and all below it
	May   []string // packages, FOLDER/..., or one of the words above
	Tests []string // what its tests may import besides
}

// Table is the import table, from the bottom of the tree to its top.
type Table []Row

// header begins the table of a page.
const header = "| package | may import | its tests, too |\n|---|---|---|\n"

// ParseTables reads all import tables of a page, in order, as one. A row that names
// several packages becomes a Row for each.
func ParseTables(page string) (Table, error) {
	var t Table
	for {
		_, rows, ok := strings.Cut(page, header)
		if !ok {
			break
		}
		page = rows
		for line := range strings.Lines(rows) {
			cells := strings.Split(strings.TrimSpace(line), "|")
			if len(cells) != 5 {
				break
			}
			for _, of := range words(cells[1]) {
				t = append(t, Row{Of: of, May: words(cells[2]), Tests: words(cells[3])})
			}
		}
	}
	if len(t) == 0 {
		return nil, errors.New("the page has no import table")
	}
	return t, nil
}

// words splits a cell.
func words(cell string) []string {
	var list []string
	for word := range strings.SplitSeq(cell, ",") {
		if word = strings.TrimSpace(word); word != "" && word != nothing {
			list = append(list, word)
		}
	}
	return list
}

// covers reports whether a word of the table includes a package.
func covers(word, pkg string) bool {
	switch folder, tree := strings.CutSuffix(word, "/..."); {
	case word == everything:
		return true
	case word == butTestsuite:
		return !covers(testsuiteName+"/...", pkg)
	case tree:
		return pkg == folder || strings.HasPrefix(pkg, folder+"/")
	}
	return word == pkg
}

// row returns the index of the row of a package: of the rows that cover it, the one with the
// longest name. It returns -1 if there is none.
func (t Table) row(pkg string) int {
	best := -1
	for i, r := range t {
		if covers(r.Of, pkg) && (best < 0 || len(r.Of) > len(t[best].Of)) {
			best = i
		}
	}
	return best
}

// Check returns an error if a package must not import another one. With test it checks an import by
// the package's tests.
func (t Table) Check(from, to string, test bool) error {
	own := t.row(from)
	if own < 0 {
		return fmt.Errorf("%s is in no row of the table", from)
	}
	may := t[own].May
	if test {
		may = slices.Concat(may, t[own].Tests, []string{forTests})
	}
	sibling := strings.HasSuffix(t[own].Of, "/...") && t.row(to) == own
	if from == to || sibling || slices.ContainsFunc(may, func(word string) bool { return covers(word, to) }) {
		return nil
	}
	if test {
		return fmt.Errorf("a test of %s imports %s, which the row of %s does not allow", from, to, t[own].Of)
	}
	return fmt.Errorf("%s imports %s, which the row of %s does not allow", from, to, t[own].Of)
}

// CheckOrder returns the errors of the table itself: a package with two rows, or a row that names a
// package of a later row, which would let imports run up the tree.
func (t Table) CheckOrder() error {
	var errs []error
	for i, r := range t {
		for j, other := range t[:i] {
			if other.Of == r.Of {
				errs = append(errs, fmt.Errorf("%s has the rows %d and %d", r.Of, j+1, i+1))
			}
		}
		for _, word := range r.May {
			if word == everything || word == butTestsuite {
				continue
			}
			if !slices.ContainsFunc(t[:i], func(above Row) bool {
				return covers(word, strings.TrimSuffix(above.Of, "/...")) || covers(above.Of, strings.TrimSuffix(word, "/..."))
			}) {
				errs = append(errs, fmt.Errorf("the row of %s names %s, which is not above it", r.Of, word))
			}
		}
	}
	return errors.Join(errs...)
}
