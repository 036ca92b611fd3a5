package guest

import (
	"errors"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
)

// tagged returns the names of the tests in a folder that are compiled only with the build tag
// guest. Other tags, separated by commas, are set anyway.
func tagged(dir, tags string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	others := strings.Split(tags, ",")
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		with, without, err := compiled(f, others)
		if err != nil {
			return nil, err
		}
		if !with || without {
			continue
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && strings.HasPrefix(fn.Name.Name, "Test") && fn.Name.Name != "TestMain" {
				names = append(names, fn.Name.Name)
			}
		}
	}
	if len(names) == 0 {
		return nil, errors.New("no test has the build tag guest")
	}
	return names, nil
}

// compiled reports whether a file is compiled with the tag guest, and without it.
func compiled(f *ast.File, tags []string) (with, without bool, err error) {
	with, without = true, true
	for _, group := range f.Comments {
		for _, c := range group.List {
			if c.Pos() > f.Package || !constraint.IsGoBuild(c.Text) {
				continue
			}
			line, err := constraint.Parse(c.Text)
			if err != nil {
				return false, false, err
			}
			with = with && line.Eval(func(tag string) bool { return tag == "guest" || slices.Contains(tags, tag) })
			without = without && line.Eval(func(tag string) bool { return slices.Contains(tags, tag) })
		}
	}
	return with, without, nil
}
