// Package plain finds the packages in whose tests the race detector would find nothing. It compiles
// and links everything once more, and makes tests five to ten times as slow.
//
// A package is plain if no file of it or of its tests, and of what they import from this module,
// begins a goroutine: by a go statement, or by a function or method with a name in begins.
// Goroutines that the standard library begins and ends within a call do not count. The detector
// checks unsafe pointers, too, so a package that itself imports unsafe is not plain.
package plain

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"path/filepath"
	"slices"
)

// Package is a package as go list -json describes it.
type Package struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Imports, TestImports, XTestImports []string
}

// Fields lists the fields of Package for the flag -json of go list.
const Fields = "ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Imports,TestImports,XTestImports"

// Decode reads the output of go list -json.
func Decode(in io.Reader) (all []Package, err error) {
	for d := json.NewDecoder(in); ; {
		var p Package
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list: %w", err)
		}
		all = append(all, p)
	}
}

// begins are names of functions and methods that begin a goroutine: of sync.WaitGroup and
// errgroup.Group, of time and context, of testing, of net/http/httptest.
var begins = []string{"Go", "AfterFunc", "Parallel", "RunParallel", "NewServer", "NewUnstartedServer", "NewTLSServer"}

// Packages returns the import paths of the plain packages in all that have tests. all must contain
// what they import from their module.
func Packages(all []Package) (paths []string, err error) {
	s := search{packages: make(map[string]Package), known: make(map[string]bool)}
	for _, p := range all {
		s.packages[p.ImportPath] = p
	}
	for _, p := range all {
		tests := slices.Concat(p.TestGoFiles, p.XTestGoFiles)
		if len(tests) == 0 {
			continue
		}
		many, err := anyBegins(p.Dir, tests)
		if err != nil {
			return nil, err
		}
		imports := slices.Concat(p.Imports, p.TestImports, p.XTestImports)
		many = many || slices.Contains(imports, "unsafe")
		for _, path := range append(imports, p.ImportPath) {
			if !many {
				if many, err = s.many(path); err != nil {
					return nil, err
				}
			}
		}
		if !many {
			paths = append(paths, p.ImportPath)
		}
	}
	return paths, nil
}

type search struct {
	packages map[string]Package
	known    map[string]bool // by import path: it, or what it imports, begins a goroutine
}

// many reports whether a package without its tests begins a goroutine. Packages of other modules do
// not count.
func (s *search) many(path string) (bool, error) {
	p, ours := s.packages[path]
	if !ours {
		return false, nil
	}
	if many, ok := s.known[path]; ok {
		return many, nil
	}
	many, err := anyBegins(p.Dir, p.GoFiles)
	for _, i := range p.Imports {
		if err == nil && !many {
			many, err = s.many(i)
		}
	}
	s.known[path] = many
	return many, err
}

// anyBegins reports whether one of the files of a folder begins a goroutine.
func anyBegins(dir string, files []string) (bool, error) {
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		if beginsGoroutine(f) {
			return true, nil
		}
	}
	return false, nil
}

// beginsGoroutine reports whether a file begins a goroutine.
func beginsGoroutine(f *ast.File) (found bool) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.SelectorExpr:
			found = found || slices.Contains(begins, n.Sel.Name)
		}
		return !found
	})
	return found
}
