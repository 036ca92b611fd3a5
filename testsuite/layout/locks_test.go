package layout

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// The package comment of a package with several locks names all of them, so that it can state their
// order.
func TestLocks(t *testing.T) {
	several := 0
	for _, p := range packages(t) {
		var files []string
		for _, file := range p.GoFiles {
			files = append(files, filepath.Join(p.Dir, file))
		}
		locks, paragraph, err := LocksOf(files)
		if err != nil {
			t.Fatal(err)
		}
		if len(locks) > 1 {
			several++
		}
		if missing := CheckLocks(locks, paragraph); len(missing) > 0 {
			t.Errorf("%s: the paragraph Locks of the package comment does not name %v", p.ImportPath, missing)
		}
	}
	if several < 10 {
		t.Errorf("only %d packages with several locks were found", several)
	}
}

func TestLocksAreFound(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.go")
	text := `// Package x has locks.
//
// Locks, outermost first: table, then A.mu and
// A.other.
package x

import "sync"

type A struct {
	mu, other sync.Mutex
	inner     struct{ deep sync.RWMutex }
}

type B struct{ sync.Mutex }

var table sync.Mutex
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	locks, paragraph, err := LocksOf([]string{file})
	if want := []string{"A.deep", "A.mu", "A.other", "B.Mutex", "table"}; err != nil || !slices.Equal(locks, want) {
		t.Errorf("%v, %v", locks, err)
	}
	if missing := CheckLocks(locks, paragraph); !slices.Equal(missing, []string{"A.deep", "B.Mutex"}) {
		t.Errorf("missing in %q: %v", paragraph, missing)
	}
	if missing := CheckLocks([]string{"A.mu"}, ""); missing != nil {
		t.Errorf("a single lock needs no paragraph: %v", missing)
	}
}
