package guest

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
)

// tagged returns the names of the tests in a folder that are compiled only with the build tag
// guest. Other tags, separated by commas, are set anyway.
func tagged(dir, tags string) (names []string, err error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		return nil, err
	}
	outside := build.Default
	outside.BuildTags = strings.Split(tags, ",")
	inside := outside
	inside.BuildTags = append([]string{"guest"}, outside.BuildTags...)
	for _, file := range files {
		with, err := inside.MatchFile(dir, filepath.Base(file))
		if err != nil {
			return nil, err
		}
		without, err := outside.MatchFile(dir, filepath.Base(file))
		if err != nil {
			return nil, err
		}
		if !with || without {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
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
