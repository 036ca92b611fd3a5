package layout

import (
	"reflect"
	"strings"
	"testing"
	"testing/fstest"
)

// Includes finds the headers that the compiler finds, and returns an error for others.
func TestIncludesAreFound(t *testing.T) {
	text := func(s string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(s)} }
	tree := fstest.MapFS{
		"Makefile":           text("x.o:\n\tcc -I top/include x.c\n"),
		"top/include/a.h":    text(""),
		"border/b.h":         text("#include \"own.h\"\n"),
		"border/own.h":       text(""),
		"low/Makefile":       text("INCLUDE := ../../border\nF := -O2 -I $(INCLUDE)\n"),
		"low/x/x.c":          text("#include <stdio.h>\n#include <a.h>\n  # include \"b.h\"\n"),
		"low/y/y_test.go":    text("exec.Command(\"cc\", \"-I\", \"../x\")"),
		"low/x/x.h":          text("#include \"textflag.h\"\n"),
		"low/y/testdata/y.c": text("#include \"x.h\"\n"),
	}
	got, err := Includes(tree)
	want := []Include{
		{"border", "border", "border/b.h", false}, {"low/x", "top/include", "low/x/x.c", false}, {"low/x", "border", "low/x/x.c", false},
		{"low/y", "low/x", "low/y/testdata/y.c", true},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	tree["low/x/x.c"] = text("#include \"gone.h\"\n")
	if _, err := Includes(tree); err == nil || !strings.Contains(err.Error(), `low/x/x.c includes "gone.h"`) {
		t.Errorf("a missing header: %v", err)
	}
}
