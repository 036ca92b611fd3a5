// Package ldso finds the libraries that a dynamic loader would load for a program. It reads files
// and executes nothing: a file names its own loader, so asking that loader, as ldd does, executes
// whatever the file chooses.
//
// The order of the search follows ld.so(8) of the GNU C library, or musl where the file
// names musl's loader. Variants of libraries for newer processors (glibc-hwcaps) are left out,
// because nodes may have older ones, and so are auditors (LD_AUDIT, DT_AUDIT). Whatever is read may
// be hostile. The size of each thing, the number of libraries, the number of places tried and the
// bytes read in all are bounded.
package ldso

import (
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
)

// Bounds of one search. Programs with some hundred libraries exist.
const (
	maxLibraries = 4096
	maxTried     = 1 << 18  // paths
	maxWork      = 64 << 20 // bytes of files and paths that are read or made, and entries that are looked at
)

// maxKept is how many bytes of what was read are remembered for the next file.
const maxKept = 64 << 20

// Search finds libraries. It remembers those that it has read, for the next file. It is not safe
// for concurrent use.
type Search struct {
	LibraryPath string // more folders with libraries, as in LD_LIBRARY_PATH
	Preload     string // libraries that every program loads first, as in LD_PRELOAD

	etc   string             // the folder of the loaders' configuration; empty: /etc
	cache *cache             // what the cache of the GNU loader says; nil: not read yet
	read  map[string]*object // by path: files that were loaded, none that was passed over
	kept  int                // bytes in read
}

// Needs is what a file needs to be loaded. All paths are absolute and as the loader makes them: a
// ".." in one may follow a symbolic link.
type Needs struct {
	Machine elf.Machine // 0: of no machine whose loaders are known
	Loader  string      // empty: the file names none, or none for its machine is here; then nothing else is known
	// Libraries are those that are here, in the order in which they are loaded.
	Libraries []string
	// Index is the file that leads the loader to libraries outside of its default folders; empty:
	// there are no such libraries.
	Index string
	// Missing are libraries that are needed and not here.
	Missing []*Missing
}

// Missing is a library that is needed and not here.
type Missing struct {
	Library string // its name, or its path
	By      string // the path of a file that needs it
	Lost    error  // why folders below the working directory were not searched
}

func (m *Missing) Error() string {
	text := fmt.Sprintf("library %s, which %s needs: not found; ", m.Library, m.By)
	if m.Lost != nil {
		return text + fmt.Sprintf("a folder below the current one, which cannot be used (%v), was not searched", m.Lost)
	}
	return text + "LD_LIBRARY_PATH adds folders with libraries"
}

// Needs returns what the file at an absolute path needs. loader is for files that name none, as
// libraries do; empty: they need nothing. The error says why the file cannot be loaded at all.
func (s *Search) Needs(path, loader string) (Needs, error) {
	w := &walk{Search: s, dir: sync.OnceValues(os.Getwd)}
	main, err := readObject(path, elf.EM_NONE, &w.work)
	if err != nil {
		return Needs{}, err
	}
	needs := Needs{Machine: main.machine}
	if main.interpreter != "" {
		loader = main.interpreter
	}
	if loader == "" {
		return needs, nil
	}
	if !filepath.IsAbs(loader) {
		return needs, fmt.Errorf("its dynamic loader, %q, is not an absolute path", loader)
	}
	own := w.object(loader, main.machine)
	if own == nil {
		return needs, nil
	}
	needs.Loader = loader
	w.needs, w.queue = needs, []*loaded{{object: main, path: path}}
	w.seen = map[string]bool{loader: true, filepath.Base(loader): true, own.soname: true}
	w.loader = w.newLoader()
	err = w.all()
	return w.needs, err
}

// object returns a file that can be loaded on a machine, or nil: then the search goes on at the
// next place. Only loaded files are kept.
func (w *walk) object(path string, machine elf.Machine) *object {
	o := w.read[path]
	if o == nil {
		var err error
		if o, err = readObject(path, machine, &w.work); err != nil {
			return nil
		}
		if o.machine == machine {
			w.keep(path, o)
		}
	}
	if o.machine != machine {
		return nil
	}
	return o
}

// keep remembers a file for the next search. What was kept before is forgotten when that would be
// too much.
func (s *Search) keep(path string, o *object) {
	size := len(path) + o.size()
	if s.kept += size; s.read == nil || s.kept > maxKept {
		s.read, s.kept = make(map[string]*object), size
	}
	s.read[path] = o
}

// config is the path of a file of the loaders' configuration.
func (s *Search) config(name string) string {
	if s.etc == "" {
		return "/etc/" + name
	}
	return filepath.Join(s.etc, name)
}

// loaded is a file at its place among those that are loaded.
type loaded struct {
	*object
	path string
	by   *loaded // the file that needs it; nil: it is the one that the search is for
}

// origin is the folder of the file.
func (l *loaded) origin() string { return l.path[:max(1, strings.LastIndexByte(l.path, '/'))] }

// walk goes through all that is loaded for one file, breadth first as loaders do: each name once,
// however many files need it.
type walk struct {
	*Search
	loader loader
	dir    func() (string, error) // the working directory
	lost   error                  // why a relative path was not tried
	needs  Needs
	seen   map[string]bool // names, and the sonames of what was found
	queue  []*loaded
	tried  int // paths
	work   int // bytes, as in maxWork
}

// all finds what the first file of the queue needs.
func (w *walk) all() error {
	main := w.queue[0]
	for _, name := range strings.FieldsFunc(w.Preload, func(r rune) bool { return r == ' ' || r == ':' }) {
		w.take(name, main) // a loader goes on without one that is missing
	}
	for at := 0; at < len(w.queue); at++ {
		by := w.queue[at]
		for _, name := range by.needed {
			w.lost = nil
			if !w.take(name, by) {
				w.needs.Missing = append(w.needs.Missing, &Missing{name, by.path, w.lost})
				w.seen[name] = true
			}
			if len(w.queue) > maxLibraries {
				return fmt.Errorf("it needs more than %d libraries", maxLibraries)
			}
			if w.tried > maxTried {
				return fmt.Errorf("its libraries may be in more than %d places", maxTried)
			}
			if w.work > maxWork {
				return fmt.Errorf("to find its libraries takes more than %d MiB of files and paths", maxWork>>20)
			}
		}
	}
	for _, l := range w.queue[1:] {
		w.needs.Libraries = append(w.needs.Libraries, l.path)
	}
	return nil
}

// take adds a library, and reports whether it is here.
func (w *walk) take(name string, by *loaded) bool {
	w.work += len(name)
	if w.seen[name] || w.loader.provides(name) {
		return true
	}
	l := w.find(name, by)
	if l == nil {
		return false
	}
	w.seen[name], w.seen[l.soname] = true, true
	w.queue = append(w.queue, l)
	return true
}
