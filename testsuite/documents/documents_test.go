package documents

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// page makes a page of blocks, with ”' in the place of fences.
func page(text string) string { return strings.ReplaceAll(text, "'''", "```") }

func TestParse(t *testing.T) {
	examples, err := Parse("P.md", page(`# Page

Words with a '''span''' in a line.

## Part one

'''console
$ echo one
one
$ cat <<end
> two
> end
two
> three
'''

<!-- example: file a/greet.c -->
'''c
int main(void);
'''

<!-- example: on qemu; vary order, /x+/ -->
'''console
$ true
'''

'''sh
cd /
ls
'''

<!-- example: not run: a drawing -->
'''
# no heading
<!-- example: no mark -->
'''
`))
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, e := range examples {
		fmt.Fprintf(&got, "%s %s %q %q %q %q\n", e, e.Kind, e.Mark.File, e.Mark.On, e.Mark.Varies(), e.Mark.NotRun)
		commands, err := e.Commands()
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range commands {
			fmt.Fprintf(&got, "  %d %q %q %v\n", c.Line, c.Text, c.Want, c.Shown)
		}
	}
	const want = `P.md:7 (Part one) console "" "" "" ""
  8 "echo one\n" "one\n" true
  10 "cat <<end\ntwo\nend\n" "two\n> three\n" true
P.md:18 (Part one) c "a/greet.c" "" "" ""
P.md:23 (Part one) console "" "qemu" "/x+/, order" ""
  24 "true\n" "" true
P.md:27 (Part one) sh "" "" "" ""
  28 "cd /\nls\n" "" false
P.md:33 (Part one)  "" "" "" "a drawing"
`
	if got.String() != want {
		t.Errorf("got\n%swant\n%s", &got, want)
	}
}

// A block that would be passed over makes its page an error.
func TestParseRefuses(t *testing.T) {
	for name, c := range map[string]struct{ text, says string }{
		"no kind":              {"'''\nls\n'''\n", `a block of kind "" is not run`},
		"unknown kind":         {"'''text\nls\n'''\n", `a block of kind "text" is not run`},
		"not closed":           {"'''sh\nls\n", "is not closed"},
		"closed with a kind":   {"'''sh\nls\n'''sh\n", "is not closed"},
		"in a list":            {"* x\n  '''sh\n  ls\n  '''\n", "first column"},
		"no reason":            {"<!-- example: not run: -->\n'''\n'''\n", "gives no reason"},
		"unknown clause":       {"<!-- example: later -->\n'''sh\nls\n'''\n", "has the clause"},
		"unknown class":        {"<!-- example: vary words -->\n'''console\n$ ls\n'''\n", "nothing varies"},
		"bad pattern":          {"<!-- example: vary /(/ -->\n'''console\n$ ls\n'''\n", "missing"},
		"mark not closed":      {"<!-- example: on qemu\n'''sh\nls\n'''\n", "not closed"},
		"mark before text":     {"<!-- example: on qemu -->\n\n'''sh\nls\n'''\n", "no block directly behind"},
		"mark at the end":      {"<!-- example: on qemu -->\n", "no block behind"},
		"program without file": {"'''c\nint x;\n'''\n", "names its file"},
		"file of commands":     {"<!-- example: file x -->\n'''sh\nls\n'''\n", "only a program"},
		"sh that varies":       {"<!-- example: vary order -->\n'''sh\nls\n'''\n", "is not compared"},
		"output without cause": {"'''console\nhello\n$ ls\n'''\n", "begins with a command"},
		"empty session":        {"'''console\n'''\n", "is empty"},
		"empty commands":       {"'''sh\n\n'''\n", "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse("P.md", page(c.text)); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want %q", err, c.says)
			}
		})
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		vary, want, got string
		ok              bool
	}{
		{"", "a 1\n", "a 1\n", true},
		{"", "a 1\n", "a 2\n", false},
		{"", "a  1\n", "a 1\n", false},
		{"", "", "", true},
		{"", "", "a\n", false},
		{"", "a\n", "", false},
		{"", "a\nb\n", "a\n", false},
		{"", "...\nb\n", "x\nb\ny\nb\n", true},
		{"", "...\nb\n", "x\nb\ny\n", false},
		{"", "a\n...\n", "a\n", true},
		{"", "a\n...\nz\n", "a\nb\nc\nz\n", true},
		{"", "a\n...\nz\n", "b\nc\nz\n", false},
		{"order", "a\nb\n", "b\na\n", true},
		{"order", "a\nb\n", "b\nb\n", false},
		{"times", "up after 13.1 s\n", "up after 0.2 s\n", true},
		{"times", "up after 13.1 s\n", "up after 2 ms\n", false},
		{"times", "node1 is up after 13.1 s\n", "node2 is up after 13.1 s\n", false},
		{"times", "4 nodes\n", "5 nodes\n", false},
		{"sizes", "image 4.9 MB\n", "image 5.0 MB\n", true},
		{"sizes", "image 4.9 MB\n", "image 5.0 KB\n", false},
		{"sizes", "4 nodes\n", "5 nodes\n", false},
		{"figures", "  202394  x00\n", "  20  x00\n", true},
		{"figures", "  202394  x00\n", "  20  x01\n", false},
		{"figures", "node0 363, node1 313\n", "node0 5, node1 6\n", true},
		{"figures", "node0 363, node1 313\n", "node0 5, node2 6\n", false},
		{"figures", "0 ~3336 69.3% (3)\n", "1 ~1 0.5% (12)\n", true},
		{"figures", "a 1\n", "a -\n", false},
		{"figures", "a 1\n", "a 1 2\n", false},
		{"figures", "Linux 7.3.4\n", "Linux 7.3.5\n", false},
		{`/Linux \S+/`, "Linux 7.3.4\n", "Linux 7.3.5\n", true},
		{`/Linux \S+/`, "Linux 7.3.4\n", "7.3.4\n", false},
		{"order, figures", "a 1\nb 2\n", "b 7\na 8\n", true},
		{`figures, /x, \d|y/, order`, "a x, 1 7\nb y 8\n", "b x, 2 1\na y 0\n", true},
		{`figures, /x, \d|y/, order`, "a x, 1 7\nb y 8\n", "b x, 2 1\na z 0\n", false},
	} {
		classes, err := parseClasses(c.vary)
		if c.vary == "" {
			classes, err = nil, nil
		}
		if err != nil {
			t.Fatal(err)
		}
		command := Command{Want: c.want, Example: Example{Mark: Mark{Vary: classes}}}
		if ok := command.Matches(c.got); ok != c.ok {
			t.Errorf("%q: page %q, output %q: %v, want %v", c.vary, c.want, c.got, ok, c.ok)
		}
	}
}

// run runs a page in a shell of its own.
func run(t *testing.T, text, substrate string) ([]Result, error) {
	t.Helper()
	examples, err := Parse("P.md", page(text))
	if err != nil {
		t.Fatal(err)
	}
	s := Session{Dir: t.TempDir(), Env: os.Environ(), Prelude: "greet() { echo hello; }", Scratch: t.TempDir(), Deadline: time.Minute}
	commands, err := s.Script(examples, substrate)
	if err != nil {
		t.Fatal(err)
	}
	return s.Run(t.Context(), commands)
}

func TestSession(t *testing.T) {
	results, err := run(t, `
<!-- example: file new/x.c -->
'''c
int x;
'''

'''sh
cd new
variable=value
'''

<!-- example: on qemu -->
'''sh
false
'''

<!-- example: not run: it would fail -->
'''sh
false
'''

'''console
$ cat x.c; echo $variable
$ greet
$ cat; echo error >&2; echo output
$ cat <<end
> here
> end
'''
`, "hosted")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		got = append(got, r.Output)
	}
	if want := []string{"", "int x;\nvalue\n", "hello\n", "error\noutput\n", "here\n"}; fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// The first command that fails ends a session, and is named.
func TestSessionFails(t *testing.T) {
	for name, c := range map[string]struct {
		text, says string
		before     int
	}{
		"command":       {"'''console\n$ echo a\n$ echo why; (exit 3)\n$ echo b\n'''\n", "P.md:3: echo why; (exit 3): exit status 3\nwhy\n", 1},
		"pipeline":      {"'''console\n$ false | true\n'''\n", "P.md:2: false | true: exit status 1", 0},
		"line of sh":    {"'''sh\nfalse\ntrue\n'''\n", "exit status 1", 0},
		"early end":     {"'''console\n$ exit 0\n$ echo b\n'''\n", errEnded.Error(), 0},
		"the last":      {"'''console\n$ true\n$ false\n'''\n", "P.md:3: false: exit status 1", 1},
		"on substrate":  {"<!-- example: on qemu -->\n'''sh\nfalse\n'''\n", "exit status 1", 0},
		"not readable":  {"'''console\n$ echo a\n$ if\n'''\n", "syntax error", 0},
		"missing tools": {"'''console\n$ no-such-tool\n'''\n", "command not found", 0},
	} {
		t.Run(name, func(t *testing.T) {
			results, err := run(t, c.text, "qemu")
			if err == nil || !strings.Contains(err.Error(), c.says) || len(results) != c.before && name != "not readable" {
				t.Errorf("%d results, %v; want %d and %q", len(results), err, c.before, c.says)
			}
		})
	}
}

// A command that does not end is ended, with all that it has started, and named.
func TestSessionIsCut(t *testing.T) {
	alive := filepath.Join(t.TempDir(), "alive")
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for t.Context().Err() == nil && pid(alive) == "" {
			time.Sleep(10 * time.Millisecond)
		}
	}()
	s := Session{Dir: t.TempDir(), Env: os.Environ(), Scratch: t.TempDir(), Deadline: time.Hour}
	text := fmt.Sprintf("(sleep 1000 & echo $! >%s; wait)", alive)
	if _, err := s.Run(ctx, []Command{{Text: text}, {Text: "true"}}); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "sleep 1000") {
		t.Fatal(err)
	}
	state := filepath.Join("/proc", pid(alive), "cmdline")
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if text, err := os.ReadFile(state); err != nil || len(text) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("what the command has started goes on")
		}
	}
}

// pid returns the first line of a file once it is whole.
func pid(file string) string {
	text, _ := os.ReadFile(file)
	line, _, whole := strings.Cut(string(text), "\n")
	if !whole {
		return ""
	}
	return line
}
