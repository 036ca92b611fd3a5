package layout

import (
	"strings"
	"testing"
)

const page = `Text.

| package | may import | its tests, too |
|---|---|---|
| leaf/... | — | |
| low/a, low/b | leaf/one | low/test |
| low/test | — | |

More text.

| package | may import | its tests, too |
|---|---|---|
| low | low/a, low/b | |
| high/... | low, leaf/... | everything |
| tools/... | everything but testsuite | |
| testsuite/... | everything | |
`

func sample(t *testing.T) Table {
	t.Helper()
	table, err := ParseTables(page)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

// Each rule refuses the edge that breaks it.
func TestCheck(t *testing.T) {
	table := sample(t)
	if err := table.CheckOrder(); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		from, to string
		test     bool
		want     string // part of the error, empty if it is allowed
	}{
		"down":                           {"low/a", "leaf/one", false, ""},
		"another leaf":                   {"low/a", "leaf/two", false, "which the row of low/a does not allow"},
		"below an allowed package":       {"low/a", "leaf/one/more", false, "does not allow"},
		"up":                             {"leaf/one", "low/a", false, "which the row of leaf/... does not allow"},
		"beside, listed in one row":      {"low/a", "low/b", false, "does not allow"},
		"beside, of one folder":          {"high/x", "high/y/z", false, ""},
		"into a folder below":            {"high/x", "low/a", false, "does not allow"},
		"a folder as a package":          {"high/x", "low", false, ""},
		"a test helper, not in tests":    {"low/a", "low/test", false, "low/a imports low/test"},
		"a test helper, in tests":        {"low/a", "low/test", true, ""},
		"a test, beside":                 {"low/a", "low/b", true, "a test of low/a imports low/b"},
		"a test of everything":           {"high/x", "testsuite/y", true, ""},
		"a package for tests, in tests":  {"low/a", "internal/check", true, ""},
		"a package for tests, elsewhere": {"low/a", "internal/check", false, "low/a imports internal/check"},
		"a tool":                         {"tools/x", "high/x", false, ""},
		"a tool of the testsuite":        {"tools/x", "testsuite/y", false, "does not allow"},
		"a name that begins alike":       {"toolsmith", "leaf/one", false, "in no row"},
		"everything":                     {"testsuite", "tools/x", false, ""},
	} {
		err := table.Check(c.from, c.to, c.test)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCheckOrder(t *testing.T) {
	for name, c := range map[string]struct{ row, want string }{
		"names one below":  {"| low/a | high/x | |", "names high/x, which is not above it"},
		"names itself":     {"| low/c | low/c | |", "names low/c, which is not above it"},
		"names none":       {"| low/c | low/gone | |", "names low/gone"},
		"two rows for one": {"| low/b | — | |", "low/b has the rows"},
	} {
		table, err := ParseTables(strings.Replace(page, "\n\nMore", "\n"+c.row+"\n\nMore", 1))
		if err != nil {
			t.Fatal(err)
		}
		if err := table.CheckOrder(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := ParseTables("no table"); err == nil {
		t.Error("a page without a table was accepted")
	}
}
