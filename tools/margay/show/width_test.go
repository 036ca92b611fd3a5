package show

import (
	"strings"
	"testing"
)

func TestFold(t *testing.T) {
	for _, test := range []struct {
		line          string
		width, indent int
		want          string
	}{
		{"short", 40, 4, "short"},
		{"node0-3 lacks cgroups: nothing adds up what ranks use", 30, 4, "node0-3 lacks cgroups: nothing\n    adds up what ranks use"},
		{"NAME  one two three four five six seven", 27, 6, "NAME  one two three four\n      five six seven"},
		{"NAME  " + strings.Repeat("x", 30), 30, 6, "NAME  " + strings.Repeat("x", 24) + "\n      xxxxxx"},
		{"no room for an indent like this one, which is folded at four", 30, 25, "no room for an indent like\n    this one, which is folded\n    at four"},
		{"a terminal that is too narrow for anything", 10, 4, "a terminal that is too narrow for anything"},
	} {
		if got := Fold(test.line, test.width, test.indent); got != test.want {
			t.Errorf("%q in %d columns: %q", test.line, test.width, got)
		}
	}
}

// A line has no blanks at its end where the last cell is empty.
func TestTableEnds(t *testing.T) {
	var out strings.Builder
	table := NewTable(&out, "NODE", "CORES", "JOBS")
	table.Row("node0", 2, "")
	table.Row("node1", 2, "7")
	if err := table.Flush(); err != nil || out.String() != "NODE   CORES  JOBS\nnode0  2\nnode1  2      7\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}
