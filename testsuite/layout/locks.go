package layout

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// locksParagraph begins the paragraph of a package comment that names the package's locks.
var locksParagraph = regexp.MustCompile(`(?m)^(# )?Locks\b`)

// LocksOf returns the mutexes that the given files of a package declare, each as Type.field or as
// the name of a variable. paragraph is the package comment from the word Locks on, empty without
// that word.
func LocksOf(files []string) (locks []string, paragraph string, err error) {
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			return nil, "", fmt.Errorf("%s: %w", filepath.Base(name), err)
		}
		if at := locksParagraph.FindStringIndex(file.Doc.Text()); at != nil {
			paragraph = strings.Join(strings.Fields(file.Doc.Text()[at[0]:]), " ")
		}
		for _, declaration := range file.Decls {
			if d, ok := declaration.(*ast.GenDecl); ok {
				locks = append(locks, declared(d)...)
			}
		}
	}
	slices.Sort(locks)
	return locks, paragraph, nil
}

// declared returns the mutexes of a declaration of types or variables.
func declared(d *ast.GenDecl) (locks []string) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.ValueSpec:
			if isMutex(spec.Type) {
				for _, name := range spec.Names {
					locks = append(locks, name.Name)
				}
			}
		case *ast.TypeSpec:
			ast.Inspect(spec.Type, func(n ast.Node) bool {
				field, ok := n.(*ast.Field)
				if ok && isMutex(field.Type) {
					for _, name := range field.Names {
						locks = append(locks, spec.Name.Name+"."+name.Name)
					}
					if len(field.Names) == 0 {
						locks = append(locks, spec.Name.Name+".Mutex")
					}
				}
				return true
			})
		}
	}
	return locks
}

func isMutex(t ast.Expr) bool {
	s, ok := t.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	pkg, ok := s.X.(*ast.Ident)
	return ok && pkg.Name == "sync" && (s.Sel.Name == "Mutex" || s.Sel.Name == "RWMutex")
}

// CheckLocks returns the locks that the paragraph of a package does not name. A package with one
// lock needs no paragraph.
func CheckLocks(locks []string, paragraph string) (missing []string) {
	if len(locks) < 2 {
		return nil
	}
	for _, lock := range locks {
		if !regexp.MustCompile(`(^|[^\w.])` + regexp.QuoteMeta(lock) + `($|\W)`).MatchString(paragraph) {
			missing = append(missing, lock)
		}
	}
	return missing
}
