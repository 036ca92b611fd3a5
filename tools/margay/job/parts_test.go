package job

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// shown is parts as a test shows them.
func shown(parts []part) string {
	var list []string
	for _, p := range parts {
		list = append(list, fmt.Sprintf("%d%v%q", p.ranks, p.env, p.argv))
	}
	return strings.Join(list, " ")
}

func TestSplitParts(t *testing.T) {
	for line, want := range map[string]string{
		"a x":                            `3[]["a" "x"]`,
		"a x : -n 6 b y":                 `3[]["a" "x"] 6[]["b" "y"]`,
		"a : -n6 b : --ranks=2 c":        `3[]["a"] 6[]["b"] 2[]["c"]`,
		"a : -n 6 --env A=b --env C= b":  `3[]["a"] 6[A=b C=]["b"]`,
		"a : b":                          `3[]["a" ":" "b"]`,
		"a :":                            `3[]["a" ":"]`,
		"a : -name b":                    `3[]["a" ":" "-name" "b"]`,
		"a : -n 2 b -n 3":                `3[]["a"] 2[]["b" "-n" "3"]`,
		"a : -n 2":                       "error: program 2 of the job is missing",
		"a : -n 0 b":                     "error: program 2 of the job has 0 ranks",
		"a : -n 2 --ppn 3 b":             "error: program 2 of the job: its flags are -n RANKS and --env NAME=VALUE, not -n 2 --ppn 3 b",
		"a : -n 2 : -n 3 b":              `3[]["a"] 2[][":" "-n" "3" "b"]`,
		"a : -n 99999999999999999999 b ": "error: program 2 of the job: its flags are",
	} {
		parts, err := splitParts(3, strings.Fields(line))
		got := shown(parts)
		if err != nil {
			got = "error: " + err.Error()
		}
		if text, failure := strings.CutPrefix(want, "error: "); failure && !strings.Contains(got, text) || !failure && got != want {
			t.Errorf("%s: %s instead of %s", line, got, want)
		}
	}
}

var loadfiles = map[string]string{
	"# comment\n-sz 10 exec1 arg1 arg2\n\n-sz 50 exec2\n": `10[]["exec1" "arg1" "arg2"] 50[]["exec2"]`,
	"a # no more\n":             `1[]["a"]`,
	"-size b c#d\n":             `1[]["b" "c#d"]`,
	"-n 2 a 'x y' \"\\\"z\" ''": `2[]["a" "x y" "\"z" ""]`,
	"\r\n\t a\r\n":              `1[]["a"]`,
	"":                          "",
	"ok\n-sz 0 a\n":             "error: 2: -sz 0: it is 1 to",
	"-sz 4\n":                   "error: 1: the program is missing",
	"a\n\n-l 3 b\n":             "error: 3: -l is not known",
	"a 'b\n":                    "error: 1: a quote ' has no end",
	"a\x00b\n":                  "error: 1: a NUL byte",
	"''\n":                      "error: 1: the program is missing",
}

func TestLoadfile(t *testing.T) {
	for text, want := range loadfiles {
		parts, err := parseLoadfile(strings.NewReader(text))
		got := shown(parts)
		if err != nil {
			got = "error: " + err.Error()
		}
		if message, failure := strings.CutPrefix(want, "error: "); failure && !strings.HasPrefix(err.Error(), message) || !failure && got != want {
			t.Errorf("%q: %s instead of %s", text, got, want)
		}
	}
	if _, err := parseLoadfile(strings.NewReader("a\n" + strings.Repeat("x", maxLine+1))); err == nil || !strings.HasPrefix(err.Error(), "2: ") {
		t.Errorf("a long line: %v", err)
	}
	if _, err := parseLoadfile(strings.NewReader(strings.Repeat("a\n", maxParts+1))); err == nil {
		t.Error("too many programs")
	}
}

// Words that are quoted are read as they were.
func FuzzLoadfile(f *testing.F) {
	for text := range loadfiles {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		parts, err := parseLoadfile(strings.NewReader(text))
		if err != nil {
			return
		}
		var again strings.Builder
		for _, p := range parts {
			fmt.Fprintf(&again, "-sz %d", p.ranks)
			for _, word := range p.argv {
				again.WriteString(" '" + strings.ReplaceAll(word, "'", `'\''`) + "'")
			}
			again.WriteByte('\n')
		}
		if again.Len() > maxLine {
			return
		}
		same, err := parseLoadfile(strings.NewReader(again.String()))
		if err != nil || !slices.EqualFunc(parts, same, func(a, b part) bool { return a.ranks == b.ranks && slices.Equal(a.argv, b.argv) }) {
			t.Fatalf("%q: %s, and again %s, %v", text, shown(parts), shown(same), err)
		}
	})
}
