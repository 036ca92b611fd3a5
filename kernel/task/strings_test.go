//go:build !guest

package task_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"margay/kernel/abi/id"
	"margay/kernel/task"
)

// Arguments and variables up to what Linux takes reach ranks byte for byte, and a next node kernel
// can adopt their job.
func TestLongStrings(t *testing.T) {
	const longest = 128<<10 - 1 // Linux counts the NUL
	s := spec(1, "strings", "a\xffb", "", strings.Repeat("\xfe", longest))
	s.Env = append(s.Env, "BYTES=\xc3(", "LONG="+strings.Repeat("y", longest-len("LONG=")))
	for i := range 12 {
		s.Argv = append(s.Argv, strings.Repeat("x", 130_000))
		s.Env = append(s.Env, fmt.Sprintf("SHORT%d=%d", i, i))
	}
	s.Argv = append(s.Argv, slices.Repeat([]string{"many"}, 5000)...)
	argv, env := slices.Clone(s.Argv), append(slices.Clone(s.Env), s.Ranks[0].Env...)

	c := prepare(t, s, newEvents())
	if err := provide(t, c); err != nil {
		t.Fatal(err)
	}
	item, err := c.Kept("job/1")
	if err != nil {
		t.Fatal(err)
	}
	c.Detach()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	next, _, err := task.Adopt(ctx, host(t), &item)
	if err != nil {
		t.Fatal(err)
	}
	e := newEvents()
	next.Follow(e)
	if err := next.Start(ctx); err != nil {
		t.Fatal(err)
	}
	e.await(t, "exit", func() bool { return len(e.exits()) == 1 })
	if got, want := e.text(0, task.Stdout), digest(argv)+digest(env); got != want {
		t.Errorf("the rank got\n%swanted\n%s%q", got, want, e.text(0, task.Stderr))
	}
	if err := next.End(); err != nil {
		t.Fatal(err)
	}
}

// What Linux does not take is an error that says so.
func TestTooLongStrings(t *testing.T) {
	s := spec(1, "strings", strings.Repeat("x", 128<<10))
	c := prepare(t, s, newEvents())
	if err := provide(t, c); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := c.Start(ctx); !errors.Is(err, unix.E2BIG) || !strings.Contains(err.Error(), "argument list too long (one argument or variable") {
		t.Errorf("started: %v", err)
	}
	s = spec(1, "strings", "a\x00b")
	if _, err := task.New(ctx, host(t), s, newEvents()); err == nil || !strings.Contains(err.Error(), `"a\x00b" has a NUL byte`) {
		t.Errorf("with a NUL: %v", err)
	}
}

// Each rank has the program of its part.
func TestParts(t *testing.T) {
	s, err := task.CreateBody{Arguments: 1, Variables: 1, Parts: []task.PartBody{{First: 2, Arguments: 2}, {First: 5, Arguments: 1, Variables: 1}}}.Unpack(
		[]byte("/a\x00/d\x00a\x00V=1\x00/b\x00b\x00x\x00/c\x00c\x00V=2\x00"))
	if err != nil {
		t.Fatal(err)
	}
	for rank, want := range []string{"/a [a] []", "/a [a] []", "/b [b x] []", "/b [b x] []", "/b [b x] []", "/c [c] [V=2]", "/c [c] [V=2]"} {
		if path, argv, env := s.Program(id.Rank(rank)); fmt.Sprint(path, " ", argv, " ", env) != want {
			t.Errorf("rank %d: %s %v %v", rank, path, argv, env)
		}
	}
	if _, err := (task.CreateBody{Parts: []task.PartBody{{First: 1, Arguments: 2}}}).Unpack([]byte("/a\x00/d\x00/b\x00b\x00")); err == nil {
		t.Error("a part lacks an argument")
	}
}

func TestStringsDoNotFit(t *testing.T) {
	for _, k := range []struct {
		packed               string
		arguments, variables int
		ok                   bool
	}{
		{"/p\x00/d\x00a\x00v\x00", 1, 1, true},
		{"/p\x00/d\x00", 0, 0, true},
		{"/p\x00/d\x00\x00\x00", 1, 1, true},
		{"", 0, 0, false},
		{"/p\x00/d", 0, 0, false},
		{"/p\x00/d\x00a", 1, 0, false},
		{"/p\x00/d\x00a\x00v\x00", 1, 0, false},
		{"/p\x00/d\x00a\x00v\x00", 1, 2, false},
		{"/p\x00/d\x00a\x00v\x00", 3, -1, false},
		{"/p\x00/d\x00a\x00v\x00", -1, 3, false},
	} {
		s, err := task.CreateBody{Arguments: k.arguments, Variables: k.variables}.Unpack([]byte(k.packed))
		if (err == nil) != k.ok || k.ok && (s.Path != "/p" || s.Dir != "/d" || len(s.Argv) != k.arguments || len(s.Env) != k.variables) {
			t.Errorf("%q as %d and %d: %+v, %v", k.packed, k.arguments, k.variables, s.Exec, err)
		}
	}
}
